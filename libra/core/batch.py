"""From complete groups to micro-batches: advantages, what trains, and how it is cut.

GRPO (arXiv 2402.03300, eq. 3): the advantage of sample i is (r_i - mean(r)) / std(r) over its group; with `group_mean` the
division is left out (Dr. GRPO, arXiv 2503.20783). A group whose rewards are all equal has no signal and is dropped.
"""

import math
from collections.abc import Sequence
from typing import Literal

from libra.core.commands import MicroBatch, Row

STD_FLOOR = 1e-6
"""Rewards that differ by less than this (standard deviation) count as equal."""


def advantages(rewards: Sequence[float], kind: Literal["group_std", "group_mean"]) -> list[float] | None:
    """One advantage a sample, or None where the rewards carry no signal. Population standard deviation."""
    n = len(rewards)
    mean = math.fsum(rewards) / n
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / n)
    if std < STD_FLOOR:
        return None
    scale = std if kind == "group_std" else 1.0
    return [(r - mean) / scale for r in rewards]


def pack(rows: Sequence[tuple[int, Row]], budget_tokens: int, workers: int) -> list[MicroBatch]:
    """Cut rows, each with its length in tokens, into micro-batches, longest first.

    Rows of similar length share a micro-batch, so padding is small. A micro-batch holds at most `budget_tokens` padded
    tokens (rows x longest row), except that one longer row goes alone. The number aimed at is a multiple of `workers`, so
    that no worker runs a dummy while others run real rows.
    """
    if not rows:
        return []
    ordered = sorted(rows, key=lambda r: (-r[0], r[1].traj))
    total = sum(length for length, _ in ordered)
    rounds = max(1, math.ceil(total / (budget_tokens * workers)))
    share = min(budget_tokens, math.ceil(total / (rounds * workers)))
    batches: list[MicroBatch] = []
    taken: list[Row] = []
    tokens = longest = 0

    def flush() -> None:
        if taken:
            batches.append(MicroBatch(id=len(batches), tokens=tokens, rows=tuple(taken)))
            taken.clear()

    for length, row in ordered:
        over_budget = (len(taken) + 1) * longest > budget_tokens
        # Take a row that crosses the share's edge when more than half of it lies inside: the last share stays whole.
        over_share = tokens + length / 2 > share and len(batches) + 1 < rounds * workers
        if taken and (over_budget or over_share):
            flush()
            tokens = 0
        if not taken:
            longest = length
        taken.append(row)
        tokens += length
    flush()
    return batches
