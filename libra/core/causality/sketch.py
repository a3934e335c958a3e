"""Bounded, weighted distributions of one non-negative quantity, and the questions that a residual is asked.

Two representations, one reader. A node that has seen few trajectories keeps them all; a busy one counts them in
logarithmic bins (after DDSketch, Masson et al., VLDB 2019): bin 0 holds [0, unit) and stands for 0, bin i >= 1 holds
[unit g^(i-1), unit g^i) with g = (1 + a) / (1 - a) and stands for 2 unit g^i / (g + 1). So a quantile of the bins is off
by at most the relative error a = 5 % for values within [unit, unit x 1e6), by less than one unit below; values above
share the last bin. Means of whole nodes are kept as exact sums beside the bins.

A `Profile` is the sorted, accumulated view that answers questions in O(log size); nodes build it when asked after a change.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul

from msgspec import Struct

TOKENS, TURNS, TOOL_S = 0, 1, 2
"""The quantities, as indices: sampled tokens, turns, seconds in tools."""
UNITS = (1.0, 1.0, 0.01)
"""Lower end of bin 1 of each quantity: a token, a turn, ten milliseconds."""
RELATIVE_ERROR = 0.05
"""a: how far a bin's representative may be from what it stands for."""
_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_RATIO = math.log(_RATIO)
BINS = 1 + math.ceil(math.log(1e6) / _LOG_RATIO)
"""Bins of a sketch: about 140."""
_TOUCH = 1e-12
"""Slack against rounding in comparisons of accumulated weights, as a share of the total."""


def _representatives(unit: float) -> tuple[float, ...]:
    return (0.0, *(2 * unit * _RATIO**i / (_RATIO + 1) for i in range(1, BINS)))


REPRESENTATIVES = tuple(_representatives(unit) for unit in UNITS)


def bin_of(quantity: int, value: float) -> int:
    """The bin that counts `value` of `quantity`."""
    scaled = value / UNITS[quantity]
    if scaled < 1.0:
        return 0
    return min(BINS - 1, 1 + int(math.log(scaled) / _LOG_RATIO))


class Profile:
    """A distribution as sorted values with accumulated weights. It must not outlive a change of what it was made from."""

    __slots__ = ("_given", "_mean", "_moments", "_total", "_values", "_weights")

    def __init__(self, values: Sequence[float], weights: Sequence[float], mean: float) -> None:
        self._values = values
        self._given = weights
        self._weights = array("d", accumulate(weights))
        self._total = self._weights[-1]
        self._mean = mean
        self._moments: array[float] | None = None

    def beyond(self, since: float) -> "Tail | None":
        """What is left for those whose value exceeds `since`; None if there are none. All of them for since <= 0."""
        if since <= 0:
            return Tail(self, 0.0, 0, 0.0, self._total, self._mean)
        i = bisect_right(self._values, since)
        if i == 0:
            return Tail(self, since, 0, 0.0, self._total, self._mean - since)
        below = self._weights[i - 1]
        weight = self._total - below
        if weight <= self._total * _TOUCH:
            return None
        moments = self.moments()
        return Tail(self, since, i, below, weight, (moments[-1] - moments[i - 1]) / weight - since)

    def rank(self, weight: float) -> float:
        """The smallest value whose accumulated weight reaches `weight` (nearest rank)."""
        i = bisect_left(self._weights, weight - self._total * _TOUCH)
        return self._values[i] if i < len(self._values) else self._values[-1]

    def moments(self) -> "array[float]":
        """Accumulated weight x value."""
        if self._moments is None:
            self._moments = array("d", accumulate(map(mul, self._given, self._values)))
        return self._moments

    def slice_means(self, first: int, below: float, weight: float, k: int) -> list[float]:
        """Means of `k` slices of equal weight, lowest first, of the `weight` that lies above the lowest `below`.

        `first` is the number of the value where that begins. A value's weight is split between slices if need be.
        """
        weights, values, moments, last = self._weights, self._values, self.moments(), len(self._values) - 1
        width = weight / k
        before = moments[first - 1] if first else 0.0
        means: list[float] = []
        i = first
        for j in range(1, k + 1):
            mark = below + width * j
            i = bisect_left(weights, mark, i, last)
            # weight x value of everything below the mark
            moment = moments[i - 1] + (mark - weights[i - 1]) * values[i] if i else mark * values[0]
            means.append((moment - before) / width)
            before = moment
        return means

    def shares(self, edges: Sequence[float]) -> tuple[float, ...]:
        """Shares of the weight in (-inf, e0], (e0, e1], ..., (e_last, inf)."""
        reached = [0.0]
        for edge in edges:
            i = bisect_right(self._values, edge)
            reached.append(self._weights[i - 1] if i else 0.0)
        reached.append(self._total)
        return tuple((b - a) / self._total for a, b in pairwise(reached))


class Tail(Struct, gc=False):
    """The part of a profile from value number `first` on, shifted by `since`; `below` is the weight before it."""

    profile: Profile
    since: float
    first: int
    below: float
    weight: float
    mean: float

    def quantile(self, p: float) -> float:
        """Nearest-rank quantile, 0 < p <= 1."""
        return self.profile.rank(self.below + p * self.weight) - self.since

    def slices(self, k: int) -> list[float]:
        """Means of `k` equally probable slices, smallest first."""
        since = self.since
        return [m - since for m in self.profile.slice_means(self.first, self.below, self.weight, k)]


def occupied(bins: "array[float]") -> tuple[int, int]:
    """First and one past the last bin with any weight: a view of these alone answers the same at a fraction of the cost."""
    raw = bins.tobytes()
    size = bins.itemsize
    return (len(raw) - len(raw.lstrip(b"\0"))) // size, -(-len(raw.rstrip(b"\0")) // size)


def new_bins() -> "array[float]":
    return array("d", bytes(8 * BINS))
