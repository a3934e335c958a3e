"""A running trajectory as the tree sees it: its signals, and what it had spent at each tool return."""

import math

from libra.core.causality.node import Node
from libra.core.signal import Signal
from libra.errors import CoreError

Spent = tuple[float, float, float]
"""Sampled tokens, turns and tool seconds since the trajectory began."""


class Walk:
    """A running trajectory's way so far. `marks[d]` is what it had spent at tool return d (0: the start)."""

    __slots__ = ("family", "latest", "marks", "paths", "prompt", "returns", "signals")

    def __init__(self, prompt: int | str, family: str) -> None:
        self.prompt = prompt
        self.family = family
        self.signals: list[Signal] = []
        self.marks: list[Spent] = [(0.0, 0.0, 0.0)]
        self.latest: Spent = self.marks[0]
        self.returns = 0
        """Tool returns, also those deeper than the trees follow."""
        self.paths: tuple[list[Node], list[Node], list[Node]] = ([], [], [])
        """Known nodes from each root down: a cache, brought up to date by every question."""


def spent_by(traj: int, before: Spent, now: Spent) -> Spent:
    """`now`, checked: totals are finite and never fall."""
    for name, a, b in zip(("tokens", "turns", "tool_s"), before, now, strict=True):
        if not a <= b < math.inf:
            raise CoreError(
                f"causality: trajectory {traj} reports {name} = {b}, expected a finite total of at least {a}"
            )
    return (float(now[0]), float(now[1]), float(now[2]))
