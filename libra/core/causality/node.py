"""One node of the causality tree: what remained, for those who came by here.

Forgetting without a sweep: an observation made under policy version v weighs growth^(v - base), growth = 1 / decay, so old
ones fade by standing still while new ones weigh more. Quantiles and means do not care about the common scale; the evidence
as of version `now` is weight x decay^(now - base). `base` moves up when the scale gets large (`_LARGE`), which touches the
bins once in hundreds of versions.
"""

import math
from array import array

from libra.core.causality.sketch import REPRESENTATIVES, TOKENS, TOOL_S, TURNS, Profile, bin_of, new_bins, occupied
from libra.core.signal import Signal

EXACT = 32
"""Trajectories that a node keeps one by one before it turns to bins."""
_LARGE = 1e12
"""Weight of one observation, relative to the base, at which the base moves."""

Key = Signal | int | str
"""How a parent knows a node: the signal that leads there; for roots the prompt, the family's name, or "" for all."""


Seen = tuple[float, float, float]
"""What remained for one trajectory: sampled tokens, turns, tool seconds. The scopes share one object."""
Places = tuple[int, int, int]
"""The bin of each quantity."""

Bins = tuple["array[float]", "array[float]", "array[float]"]


def places_of(seen: Seen) -> Places:
    return bin_of(TOKENS, seen[0]), bin_of(TURNS, seen[1]), bin_of(TOOL_S, seen[2])


def _count(bins: Bins, places: Places, weight: float) -> None:
    for counts, place in zip(bins, places, strict=True):
        counts[place] += weight


_NONE: list[Profile | None] = [None, None, None]
"""The profiles of a node that nobody has asked since it learned; shared, never written."""


class Fading:
    """Exponential forgetting: an observation counts `decay` times less with every policy version since. 1: never."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._growth = 1.0 / decay
        self.max_steps = int(math.log(_LARGE) / -math.log(decay)) if decay < 1.0 else 2**62
        """Versions above a node's base at which the base has to move."""

    def scale(self, steps: int) -> float:
        """Weight, relative to the base, of an observation made `steps` versions above it (at most `max_steps`)."""
        return self._growth**steps

    def fade(self, steps: int) -> float:
        """What is left of a weight after `steps` versions."""
        return self._decay**steps


class Node:
    __slots__ = (
        "_profiles", "alive", "base", "bins", "children", "depth", "key", "parent", "scope", "seen", "serial", "slot",
        "sums", "visits", "weight", "weights",
    )  # fmt: skip

    def __init__(self, serial: int, scope: int, depth: int, key: Key, parent: "Node | None", base: int) -> None:
        self.serial = serial
        self.scope = scope
        self.depth = depth
        self.key = key
        self.parent = parent
        self.children: dict[Signal, Node] | None = None
        self.alive = True
        self.slot = -1
        """Place among the leaves that may be dropped; -1 for inner nodes and the global root."""
        self.base = base
        self.visits = 0
        self.weight = 0.0
        self.sums = (0.0, 0.0, 0.0)
        self.seen: list[Seen] = []
        self.weights: list[float] = []
        """What was seen, one by one, while there are few."""
        self.bins: Bins | None = None
        """One array a quantity once there are many."""
        self._profiles: list[Profile | None] = _NONE

    def learn(self, seen: Seen, places: Places, version: int, fading: Fading) -> None:
        """`places` are the bins of `seen`: found once for all nodes that learn it."""
        if version - self.base > fading.max_steps:
            self.rebase(version, fading)
        weight = fading.scale(version - self.base)
        self.visits += 1
        self.weight += weight
        tokens, turns, tool_s = self.sums
        self.sums = (tokens + weight * seen[0], turns + weight * seen[1], tool_s + weight * seen[2])
        self._profiles = _NONE
        if self.bins is not None:
            _count(self.bins, places, weight)
            return
        self.seen.append(seen)
        self.weights.append(weight)
        if len(self.seen) > EXACT:
            self.bins = (new_bins(), new_bins(), new_bins())
            for s, w in zip(self.seen, self.weights, strict=True):
                _count(self.bins, places_of(s), w)
            self.seen, self.weights = [], []

    def evidence(self, now: int, fading: Fading) -> float:
        """Trajectories that passed here, faded to policy version `now`."""
        return self.weight * fading.fade(now - self.base) if now > self.base else self.weight

    def profile(self, quantity: int, fading: Fading) -> Profile:
        """The distribution of `quantity` here; needs at least one visit."""
        profile = self._profiles[quantity]
        if profile is None:
            mean = self.sums[quantity] / self.weight
            if self.bins is not None:
                low, high = occupied(self.bins[quantity])
                profile = Profile(REPRESENTATIVES[quantity][low:high], self.bins[quantity][low:high], mean)
            else:
                pairs = sorted(zip([s[quantity] for s in self.seen], self.weights, strict=True))
                profile = Profile([v for v, _ in pairs], [w for _, w in pairs], mean)
            if self._profiles is _NONE:
                self._profiles = [None, None, None]
            self._profiles[quantity] = profile
        return profile

    def rebase(self, version: int, fading: Fading) -> None:
        """Weigh everything as of `version`: no answer changes."""
        factor = fading.fade(version - self.base)
        self.base = version
        self.weight *= factor
        tokens, turns, tool_s = self.sums
        self.sums = (tokens * factor, turns * factor, tool_s * factor)
        self.weights = [w * factor for w in self.weights]
        if self.bins is not None:
            for b in self.bins:
                b[:] = array("d", [w * factor for w in b])
