"""`trajectory_priority`: after Heddle (arXiv 2603.28101), as far as its ideas fit a scheduler of turns.

    priority    progressive: predicted residual, asked anew at each tool return; the longest goes first in its slot
    placement   presorted dynamic programme: recent predictions, sorted, are cut into one contiguous range for each bucket in
                order of TP, so that the busiest bucket is least busy; the ranges' borders then say where a length belongs
    migration   only while a tool runs: to the bucket of the new prediction when the turn comes back, else it stays

    best[g][i] = min over j of max(best[g - 1][j], work of sorted lengths j .. i on bucket g)

Ours: the programme runs over quantiles of the last `WINDOW` predictions, every `REPLAN` decisions; work is tokens over the
speed of the bucket's engines, and not less than the longest of the range alone on an engine; a full bucket spills to the
least loaded engine elsewhere.
"""

from collections import deque
from collections.abc import Sequence

from libra.core.causality import CausalityTree
from libra.core.scheduler.policy import Decision, Forecast, Offer, Policy, TurnView
from libra.core.scheduler.shape import Shape

WINDOW = 512
REPLAN = 256
POINTS = 24
"""Quantiles that stand for the window."""


class TrajectoryPriority(Policy):
    """A forecast is (mean residual,)."""

    def __init__(self, shapes: Sequence[Shape], tree: CausalityTree, overtake_s: float) -> None:
        super().__init__(shapes)
        self.tree = tree
        self.overtake_s = overtake_s
        self.borders: tuple[float, ...] = ()
        """Residual tokens, inclusive, between the buckets in order of TP; () until enough was predicted."""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._asked = 0

    def forecast(self, traj: int, since: float) -> Forecast:
        mean = self.tree.predict(traj, since=since).mean
        self._recent.append(mean)
        return (mean,)

    def residual_tokens(self, forecast: Forecast) -> float:
        return forecast[0]

    def lead_s(self, forecast: Forecast) -> float:
        return self.early_s(forecast[0], self.overtake_s)

    def memory(self) -> tuple[float, ...]:
        return (float(self._asked), float(len(self.borders)), *self.borders, *self._recent)

    def recall(self, memory: tuple[float, ...]) -> None:
        if memory:
            asked, borders, *values = memory
            self._asked, n = int(asked), int(borders)
            self.borders = tuple(values[:n])
            self._recent.extend(values[n:])

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        self._asked += 1
        if self._asked % REPLAN == POINTS and len(self._recent) >= POINTS and len(self.shapes) > 1:
            self.borders = self._plan()
        if not self.borders:
            return Decision(self.least_loaded(offer.engines).id, "no plan yet: least loaded")
        bucket = self.by_tp[sum(turn.forecast[0] > b for b in self.borders)]
        if offer.stays and turn.last is not None and turn.last.bucket == bucket:
            return Decision(turn.last.id, "stays in the bucket of its predicted length")
        here = [e for e in offer.engines if e.bucket == bucket]
        if here:
            return Decision(self.least_loaded(here).id, "the bucket of its predicted length")
        return Decision(self.least_loaded(offer.engines).id, "no room in the bucket of its length: least loaded")

    def _plan(self) -> tuple[float, ...]:
        ordered = sorted(self._recent)
        lengths = [ordered[(2 * i + 1) * len(ordered) // (2 * POINTS)] for i in range(POINTS)]
        shapes = [self.shapes[b] for b in self.by_tp]
        scale = len(ordered) / POINTS
        cuts = split(lengths, [(max(s.engines, 1e-9) * s.speed / scale, 1.0 / s.costs.step_s(1, 0)) for s in shapes])
        return tuple(lengths[c - 1] if c else 0.0 for c in cuts)


def split(lengths: Sequence[float], buckets: Sequence[tuple[float, float]]) -> list[int]:
    """Where to cut ascending `lengths` into one range (perhaps empty) for each bucket, so that the longest takes least.

    A bucket is (tokens a second of all its engines, of one row alone). Exact; earlier cuts win ties. Returns one index
    fewer than there are buckets: range g is lengths[cuts[g - 1] : cuts[g]].
    """
    n = len(lengths)
    total = [0.0]
    for length in lengths:
        total.append(total[-1] + length)

    def seconds(bucket: tuple[float, float], j: int, i: int) -> float:
        return max((total[i] - total[j]) / bucket[0], lengths[i - 1] / bucket[1]) if i > j else 0.0

    best = [seconds(buckets[0], 0, i) for i in range(n + 1)]
    chosen: list[list[int]] = []
    for bucket in buckets[1:]:
        cut = [min(range(i + 1), key=lambda j: (max(best[j], seconds(bucket, j, i)), j)) for i in range(n + 1)]
        best = [max(best[j], seconds(bucket, j, i)) for i, j in enumerate(cut)]
        chosen.append(cut)
    cuts: list[int] = []
    i = n
    for cut in reversed(chosen):
        i = cut[i]
        cuts.append(i)
    return cuts[::-1]
