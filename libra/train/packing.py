"""Rows of unlike lengths as one sequence without padding, and causal attention inside each row.

    tokens    a a a a b b b b c d d          everything but attention runs on exactly these
    blocks    [a a a a]  [d d]               attention runs on rows of like lengths, padded to the block's
              [b b b b]  [c c]               width by repeating the row's own last token

Padding stands behind a row's end, where causal attention cannot see it, and its outputs are not picked up again: no mask
is needed, and a NaN stays inside its row. For rows of 8 to 110 tokens this halves the work that padding would make.

Registered with transformers as an attention function; `Packing` travels to it as a keyword argument of the model.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

ATTENTION = "libra_packed"
"""Name under which transformers knows `attend`."""


class Packing(NamedTuple):
    """How a sequence of `t` tokens falls into rows, and rows into blocks."""

    positions: torch.Tensor
    """(1, t) int64: each token's position in its row."""
    blocks: tuple[torch.Tensor, ...]
    """Each (rows, width) int64: indices into the sequence."""
    restore: torch.Tensor
    """(t) int64: where each token stands among the blocks' flattened entries, one block after the other."""

    def to(self, device: torch.device) -> "Packing":
        return Packing(self.positions.to(device), tuple(b.to(device) for b in self.blocks), self.restore.to(device))


def pack(lengths: Sequence[int]) -> Packing:
    """The packing of rows of these lengths (each >= 1), which follow one another in the given order.

    A block takes rows, longest first, down to half its width: so at most half of any block is padding.
    """
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    by_length = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    runs: list[list[int]] = []
    for row in by_length:
        if not runs or 2 * lengths[row] <= lengths[runs[-1][0]]:
            runs.append([])
        runs[-1].append(row)
    blocks: list[torch.Tensor] = []
    restore = torch.empty(starts[-1], dtype=torch.int64)
    offset = 0
    for run in runs:
        width = lengths[run[0]]
        first = torch.tensor([starts[row] for row in run]).unsqueeze(1)
        length = torch.tensor([lengths[row] for row in run]).unsqueeze(1)
        column = torch.arange(width).unsqueeze(0)
        block = first + torch.minimum(column, length - 1)
        real = (column < length).flatten()
        restore[block.flatten()[real]] = offset + real.nonzero().flatten()
        offset += block.numel()
        blocks.append(block)
    positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0)
    return Packing(positions, tuple(blocks), restore)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packing: Packing,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' interface: query (1, heads, t, dim), key and value (1, kv heads, t, dim) to (1, t, heads, dim)."""
    gqa = query.shape[1] != key.shape[1]
    flat = [x[0].transpose(0, 1) for x in (query, key, value)]
    outputs = []
    for block in packing.blocks:
        q, k, v = (x.index_select(0, block.flatten()).unflatten(0, block.shape).transpose(1, 2) for x in flat)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, packing.restore).unsqueeze(0), None
