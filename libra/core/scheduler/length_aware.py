"""`length_aware`: the longer a context already is, the larger the TP degree of its bucket.

No history and no signals: the length so far stands for what is to come. The least loaded engine of the bucket takes the
turn; without room there it goes to the least loaded engine elsewhere, so nothing waits while an engine is free.
"""

from collections.abc import Sequence

from libra.core.scheduler.policy import Decision, Offer, Policy, TurnView
from libra.core.scheduler.shape import Shape


class LengthAware(Policy):
    """`thresholds`: context tokens, inclusive, between the buckets in order of TP."""

    def __init__(self, shapes: Sequence[Shape], thresholds: Sequence[int]) -> None:
        super().__init__(shapes)
        self.thresholds = thresholds

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        bucket = self.class_of(turn.context_tokens, self.thresholds)
        here = [e for e in offer.engines if e.bucket == bucket]
        if here:
            return Decision(self.least_loaded(here).id, "the bucket of its length")
        return Decision(self.least_loaded(offer.engines).id, "no room in the bucket of its length: least loaded")
