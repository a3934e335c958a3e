"""Filling the cache with contexts: which new tokens of which rows go through the model together.

Every context token but the last is stored here; the last one is fed by the decode step, which wants its logits. Long
runs are cut into pieces, and pieces of similar length share a batch, so that the padded scores of attention stay small.
Equal contexts that come together (the samples of a group) are computed once and copied.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from libra.engine.attention import PrefillAttention
from libra.engine.kv import Row, RowCache
from libra.engine.model import Decoder

PIECE_TOKENS = 512
"""Longest run of one row in one forward pass."""
BATCH_SCORES = 1 << 22
"""Most padded scores (query tokens x keys, per head) in one forward pass of several rows; a single row may need more."""


@dataclass(slots=True)
class Run:
    """`tokens` belong in `row` from position `start` on."""

    row: Row
    start: int
    tokens: list[int]


def fill(model: Decoder, cache: RowCache, runs: list[Run]) -> int:
    """Store the keys and values of all `runs` (one a row); how many tokens were copied rather than computed."""
    first: dict[tuple[int, ...], Run] = {}
    copies: list[tuple[Run, Run]] = []
    computed: list[Run] = []
    for run in runs:
        # Only whole contexts can be equal: the same continuation of different prefixes has other keys.
        original = run if run.start else first.setdefault(tuple(run.tokens), run)
        if original is run:
            computed.append(run)
        else:
            copies.append((original, run))
    _compute(model, cache, computed)
    for original, run in copies:
        cache.copy(original.row, run.row, len(run.tokens))
    return sum(len(run.tokens) for _, run in copies)


def _compute(model: Decoder, cache: RowCache, runs: list[Run]) -> None:
    while runs:
        pieces = [Run(run.row, run.start, run.tokens[:PIECE_TOKENS]) for run in runs]
        for batch in _batches(pieces):
            ids = torch.tensor([token for piece in batch for token in piece.tokens], device=model.device)
            attention = PrefillAttention(
                [piece.row.index for piece in batch],
                [piece.start for piece in batch],
                [len(piece.tokens) for piece in batch],
                model.device,
                model.dtype,
            )
            model.fill(ids, attention.positions, cache.layers, attention)
        runs = [
            Run(run.row, run.start + PIECE_TOKENS, run.tokens[PIECE_TOKENS:])
            for run in runs
            if len(run.tokens) > PIECE_TOKENS
        ]


def _batches(pieces: list[Run]) -> Iterator[list[Run]]:
    pieces = sorted(pieces, key=lambda piece: len(piece.tokens))
    batch: list[Run] = []
    span = 0
    for piece in pieces:
        span = max(span, piece.start + len(piece.tokens))
        if batch and (len(batch) + 1) * len(piece.tokens) * span > BATCH_SCORES:
            yield batch
            batch, span = [], piece.start + len(piece.tokens)
        batch.append(piece)
    if batch:
        yield batch
