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


def stage_means(names: Sequence[str], parts: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """The mean of each reward stage over trajectories that ended; empty where they tell no stages."""
    told = [values for values in parts if len(values) == len(names)]
    return {name: math.fsum(v[i] for v in told) / len(told) for i, name in enumerate(names)} if told else {}


def pack(rows: Sequence[tuple[int, Row]], budget_tokens: int, workers: int) -> list[MicroBatch]:
    """Cut rows, each with its length in tokens, into micro-batches of at most `budget_tokens`, longest rows first.

    Rows are packed, not padded, so a micro-batch costs its tokens; a row longer than the budget goes alone. The number aimed
    at is a multiple of `workers`, so that no worker runs a dummy while others run real rows.
    """
    if not rows:
        return []
    ordered = sorted(rows, key=lambda r: (-r[0], r[1].traj))
    total = sum(length for length, _ in ordered)
    rounds = max(1, math.ceil(total / (budget_tokens * workers)))
    share = min(budget_tokens, math.ceil(total / (rounds * workers)))
    batches: list[MicroBatch] = []
    taken: list[Row] = []
    tokens = 0

    def flush() -> None:
        batches.append(MicroBatch(id=len(batches), tokens=tokens, rows=tuple(taken)))
        taken.clear()

    for length, row in ordered:
        # A row that crosses the share's edge is taken when more than half of it lies inside.
        over_share = tokens + length / 2 > share and len(batches) + 1 < rounds * workers
        if taken and (over_share or tokens + length > budget_tokens):
            flush()
            tokens = 0
        taken.append(row)
        tokens += length
    flush()
    return batches
