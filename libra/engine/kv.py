"""The row cache: where keys and values live, who holds which row, and what gives way when room is short.

    free --claim--> live (a turn decodes in it) --keep--> idle (a trajectory's prefix) --claim--> live
                      |                                     |
                      +--free                               +--forget, drop_prefixes, eviction (least recently used)

Invariant: the tokens of all rows (a live row counts its context and all that it may still sample, an idle one what it
holds) never exceed `kv_tokens`. One buffer a layer, [2, rows, kv heads, length, head dim], grows in both directions as
needed; rows x length stays below PADDING x `kv_tokens`, whatever the mix of lengths. Used by the engine only.
"""

from collections import OrderedDict

import torch
from torch import Tensor

PADDING = 2
"""Memory is bounded by this many times `kv_tokens`: rows of unequal length leave the ends of short ones unused."""
FIRST_ROWS = 16
"""Rows of the first buffer, where the bound allows; later ones double."""
LENGTH_STEP_TOKENS = 16
"""Row lengths are multiples of this."""


class Row:
    """A place in the cache. `index` may change whenever the cache packs or grows; hold the Row, not the number."""

    __slots__ = ("cached", "index", "live", "tokens")

    def __init__(self, index: int, tokens: int) -> None:
        self.index = index
        self.tokens = tokens
        """Tokens accounted to this row."""
        self.live = True
        self.cached: list[int] = []
        """Idle rows: the tokens whose keys and values are here."""


class RowCache:
    """Keys and values of the running turns, and of idle trajectories as far as there is room."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, kv_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.kv_tokens = kv_tokens
        self.used_tokens = 0
        self._idle: OrderedDict[int, Row] = OrderedDict()
        self._at: list[Row | None] = []
        self._length = 0
        self._dim = (kv_heads, head_dim)
        self._like = {"device": device, "dtype": dtype}
        self.layers: list[Tensor] = [torch.zeros(2, 0, kv_heads, 0, head_dim, **self._like) for _ in range(layers)]

    @property
    def area_tokens(self) -> int:
        """Rows x length of the buffer: what is really allocated."""
        return len(self._at) * self._length

    def claim(self, traj: int, context: list[int], room_tokens: int) -> tuple[Row, int] | None:
        """A live row for `room_tokens` (context and all that may be sampled), with how many context tokens it holds.

        The last context token is never counted as held: it is fed again to get the first logits. Idle prefixes of other
        trajectories are evicted as needed. None, and nothing changed, if the live rows leave too little room.
        """
        live = [row for row in self._at if row is not None and row.live]
        longest = max([room_tokens, *(row.tokens for row in live)])
        if sum(row.tokens for row in live) + room_tokens > self.kv_tokens or not self._may_hold(len(live) + 1, longest):
            return None
        row, reused = self._idle.pop(traj, None), 0
        if row is not None:
            reused = min(len(row.cached), len(context) - 1)
            if row.cached[:reused] != context[:reused]:
                self.free(row)
                row, reused = None, 0
        own = 0 if row is None else row.tokens
        while self.used_tokens - own + room_tokens > self.kv_tokens:
            self._evict()
        if row is None:
            self._make_place(room_tokens, rows=1)
            row = Row(self._at.index(None), 0)
            self._at[row.index] = row
        row.live, row.cached = True, []
        self.used_tokens += room_tokens - row.tokens
        row.tokens = room_tokens
        self._make_place(room_tokens, rows=0)
        return row, reused

    def keep(self, traj: int, row: Row, cached: list[int]) -> None:
        """The turn in `row` ended; `cached` tokens stay as the prefix of `traj`."""
        self.used_tokens += len(cached) - row.tokens
        row.tokens, row.cached, row.live = len(cached), cached, False
        self._idle[traj] = row

    def free(self, row: Row) -> None:
        self.used_tokens -= row.tokens
        self._at[row.index] = None

    def forget(self, traj: int) -> None:
        """Free the idle prefix of `traj`, if there is one."""
        row = self._idle.pop(traj, None)
        if row is not None:
            self.free(row)

    def drop_prefixes(self) -> None:
        """Free all idle rows: their contents belong to other weights."""
        while self._idle:
            self._evict()

    def copy(self, source: Row, target: Row, tokens: int) -> None:
        """Give `target` the first `tokens` keys and values of `source`."""
        for kv in self.layers:
            kv[:, target.index, :, :tokens] = kv[:, source.index, :, :tokens]

    def pack(self) -> None:
        """Move live rows towards the front, so that decoding reads few rows in vain (a quarter more than live ones)."""
        live = [row for row in self._at if row is not None and row.live]
        bound = len(live) + len(live) // 4 + 2
        for hole, row in enumerate(self._at):
            if row is not None and row.live:
                continue
            if not live or live[-1].index < max(bound, hole):
                return
            self._swap(live.pop(), hole)

    def _evict(self) -> None:
        _, row = self._idle.popitem(last=False)
        self.free(row)

    def _swap(self, row: Row, hole: int) -> None:
        other, source = self._at[hole], row.index
        for kv in self.layers:
            if other is not None:
                spare = kv[:, hole, :, : other.tokens].clone()
            kv[:, hole, :, : row.tokens] = kv[:, source, :, : row.tokens]
            if other is not None:
                kv[:, source, :, : other.tokens] = spare
        self._at[hole], self._at[source] = row, other
        row.index = hole
        if other is not None:
            other.index = source

    def _may_hold(self, rows: int, longest: int) -> bool:
        return rows * _round_up(longest) <= PADDING * self.kv_tokens + LENGTH_STEP_TOKENS

    def _make_place(self, length: int, rows: int) -> None:
        """See to it that `rows` (0 or 1) are free and that all are `length` long at least; grow or evict, as it takes."""
        while length > self._length or self._at.count(None) < rows:
            held = [row for row in self._at if row is not None]
            longest = max([length, *(row.tokens for row in held)])
            if self._may_hold(len(held) + rows, longest):
                self._grow(held, len(held) + rows, longest)
            else:
                self._evict()

    def _grow(self, held: list[Row], rows: int, longest: int) -> None:
        """A new buffer, with slack where the bound allows, `held` rows at its front: live ones first."""
        length = max(self._length, _round_up(longest + longest // 4))
        if not self._may_hold(rows, length):
            length = _round_up(longest)
        limit = (PADDING * self.kv_tokens + LENGTH_STEP_TOKENS) // length
        rows = max(rows, min(max(2 * rows, FIRST_ROWS), limit))
        held = sorted(held, key=lambda row: not row.live)
        order = torch.tensor([row.index for row in held], dtype=torch.int64, device=self._like["device"])
        common = min(length, self._length)
        for i, old in enumerate(self.layers):
            # Zeros, not empty: masked keys get weight 0, and 0 x NaN would still be NaN.
            new = torch.zeros(2, rows, self._dim[0], length, self._dim[1], **self._like)
            new[:, : len(held), :, :common] = old[:, :, :, :common].index_select(1, order)
            self.layers[i] = new
        self._at = [*held, *[None] * (rows - len(held))]
        for i, row in enumerate(held):
            row.index = i
        self._length = length


def _round_up(tokens: int) -> int:
    return -(-tokens // LENGTH_STEP_TOKENS) * LENGTH_STEP_TOKENS
