"""Filling the cache with contexts: which new tokens of which rows go through the model together.

Every context token but the last is stored here; the last one is fed by the decode step, which wants its logits. Long
runs are cut into pieces, and pieces of similar length share a batch, so that the padded scores of attention stay small.
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


def fill(model: Decoder, cache: RowCache, runs: list[Run]) -> None:
    """Store the keys and values of all `runs` (one a row)."""
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
