"""A distribution given by a few of its percentiles: what measurements of other people's systems come as.

Between the given points log(value) is linear in the normal score z of the percentile, beyond the ends the outermost slope
goes on; so two points make a log-normal, and more follow what was measured. `least` and `most` are limits of the thing itself
(a turn has a token, a search has ten turns at most), part of the distribution.
"""

import math
from bisect import bisect_right
from itertools import pairwise
from statistics import NormalDist

from msgspec import Struct

from libra.errors import ConfigError

_normal = NormalDist()


class Law(Struct, frozen=True, forbid_unknown_fields=True):
    points: tuple[tuple[float, float], ...]
    """(p, value) with 0 < p < 1, both increasing, values positive; at least two."""
    least: float
    most: float = 1e12

    def __post_init__(self) -> None:
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.points))
        inside = all(0 < p < 1 and 0 < v < math.inf for p, v in self.points)
        if len(self.points) < 2 or not rising or not inside or not 0 <= self.least <= self.most:
            raise ConfigError(
                "workload law",
                [
                    f"got {self.points}, least {self.least}, most {self.most}; expected at least two (p, value) points, "
                    "0 < p < 1 rising, values > 0 not falling, and 0 <= least <= most"
                ],
            )


class Curve:
    """A law made ready for drawing."""

    def __init__(self, law: Law) -> None:
        self._z = [_normal.inv_cdf(p) for p, _ in law.points]
        self._log = [math.log(v) for _, v in law.points]
        self._slope = [(b - a) / (y - x) for (a, b), (x, y) in zip(pairwise(self._log), pairwise(self._z), strict=True)]
        self._least, self._most = law.least, law.most

    def at(self, z: float) -> float:
        """The value whose normal score is z: draws, if z is standard normal."""
        i = min(max(bisect_right(self._z, z) - 1, 0), len(self._slope) - 1)
        value = math.exp(self._log[i] + self._slope[i] * (z - self._z[i]))
        return min(max(value, self._least), self._most)
