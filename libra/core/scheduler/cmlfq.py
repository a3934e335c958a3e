"""`cmlfq`: the rule of the paper's version 2, to the letter.

    first turn     the bucket of the smallest TP degree, whatever its queue
    tool return    the deepest known node (own prompt's tree if it is known, else the tree of all); if the bucket of its
                   mean residual and the bucket of its P90 are the same, that bucket; else, or if nothing is known, stay

A turn waits for room in its bucket. Ours, where the paper is silent: the least loaded engine of the bucket takes it; a
bucket that has no engine left, or a wait longer than the scheduler allows, sends it to the least loaded engine elsewhere.
"""

from collections.abc import Sequence

from libra.core.causality import CausalityTree
from libra.core.scheduler.policy import Decision, Forecast, Offer, Policy, TurnView
from libra.core.scheduler.shape import Shape


class Cmlfq(Policy):
    """`thresholds`: residual tokens, inclusive, between the buckets in order of TP. A forecast is (mean, P90) or ()."""

    def __init__(self, shapes: Sequence[Shape], tree: CausalityTree, thresholds: Sequence[int]) -> None:
        super().__init__(shapes)
        self.tree = tree
        self.thresholds = thresholds

    def forecast(self, traj: int, since: float) -> Forecast:
        known = self.tree.paper(traj)
        return () if known is None else (known.mean, known.p90)

    def residual_tokens(self, forecast: Forecast) -> float:
        return forecast[0] if forecast else 0.0

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        if turn.last is None:
            return self.in_bucket(self.by_tp[0], turn, offer, "a new request starts in the smallest bucket")
        here = turn.last.bucket
        if not turn.forecast:
            return self._stay(turn, offer, "nothing is known yet: stay")
        mean, p90 = (self.class_of(tokens, self.thresholds) for tokens in turn.forecast)
        if mean != p90:
            return self._stay(turn, offer, "mean and P90 disagree about the bucket: stay")
        if mean == here:
            return self._stay(turn, offer, "mean and P90 say: stay")
        return self.in_bucket(mean, turn, offer, "mean and P90 agree on another bucket: move")

    def _stay(self, turn: TurnView, offer: Offer, reason: str) -> Decision:
        """On the same engine if it has room, else within the bucket."""
        assert turn.last is not None
        if offer.stays:
            return Decision(turn.last.id, reason)
        return self.in_bucket(turn.last.bucket, turn, offer, reason)
