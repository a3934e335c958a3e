"""The two ways tokens look into the row cache: one new token a row (decode), or runs of new tokens (prefill).

One layer's cache is [2, rows, kv heads, length, head dim], keys then values. The query heads that share a KV head
(group) are laid out as if they were further query positions, so grouped attention needs no copies of the cache.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class DecodeAttention:
    """One token for each of `rows` [tokens] at `positions` [tokens]; the cache is read through a view, never gathered.

    Attention runs over rows 0 .. `top` - 1 and keys 0 .. `span` - 1; rows in between that are not decoding are computed
    and thrown away (`RowCache.pack` keeps them few). `rows` must ascend.
    """

    def __init__(self, rows: Tensor, positions: Tensor, top: int, span: int, dtype: torch.dtype) -> None:
        self._rows, self._positions, self._top, self._span = rows, positions, top, span
        self._dense = top == rows.shape[0]
        newest = positions if self._dense else positions.new_zeros(top).index_copy_(0, rows, positions)
        self._mask = _mask(newest[:, None, None, None], span, dtype)

    def store(self, kv: Tensor, new: Tensor) -> None:
        kv[:, self._rows, :, self._positions] = new

    def attend(self, kv: Tensor, queries: Tensor) -> Tensor:
        if not self._dense:
            queries = queries.new_zeros(self._top, *queries.shape[1:]).index_copy_(0, self._rows, queries)
        keys, values = kv[:, : self._top, :, : self._span]
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self._mask)
        return (mixed if self._dense else mixed.index_select(0, self._rows)).flatten(1)


class PrefillAttention:
    """Runs of new tokens: run i puts `lengths[i]` tokens into row `rows[i]` from position `starts[i]` on.

    The tokens of all runs lie one after the other, without padding; only attention pads them to the longest run.
    """

    def __init__(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        row, start, length = torch.tensor([list(rows), list(starts), list(lengths)], device=device)
        self._runs, self._longest = len(rows), max(lengths)
        self._span = max(s + n for s, n in zip(starts, lengths, strict=True))
        offsets = torch.arange(self._longest, device=device)
        self._place = (offsets < length[:, None]).flatten().nonzero()[:, 0]
        run = self._place // self._longest
        self._row, self._row_of_token = row, row[run]
        self.positions = start[run] + self._place % self._longest
        self._mask = _mask((start[:, None] + offsets)[:, None, :, None], self._span, dtype)

    def store(self, kv: Tensor, new: Tensor) -> None:
        kv[:, self._row_of_token, :, self.positions] = new

    def attend(self, kv: Tensor, queries: Tensor) -> Tensor:
        _, heads, group, dim = queries.shape
        runs, longest, span = self._runs, self._longest, self._span
        padded = queries.new_zeros(runs * longest, heads, group, dim).index_copy_(0, self._place, queries)
        padded = padded.view(runs, longest, heads, group, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
        keys, values = kv[:, :, :, :span].index_select(1, self._row)
        mask = self._mask.expand(runs, group, longest, span).reshape(runs, 1, group * longest, span)
        mixed = F.scaled_dot_product_attention(padded, keys, values, attn_mask=mask)
        mixed = mixed.view(runs, heads, group, longest, dim).permute(0, 3, 1, 2, 4).reshape(runs * longest, -1)
        return mixed.index_select(0, self._place)


def _mask(newest: Tensor, span: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 for keys up to `newest` [..., 1], else -inf. Made once for all layers."""
    hidden = torch.arange(span, device=newest.device) > newest
    return torch.zeros(hidden.shape, dtype=dtype, device=newest.device).masked_fill_(hidden, -torch.inf)
