"""`sticky`: a trajectory stays on the engine of its first turn, where its prefix lies, and waits for room there.

A first turn goes to the engine with the fewest seated trajectories for its speed. What many systems do; its known fault is
that the tail of a batch is pinned to a few busy engines while others idle.
"""

from collections.abc import Sequence

from libra.core.scheduler.policy import Decision, Offer, Policy, TurnView
from libra.core.scheduler.seats import Seats
from libra.core.scheduler.shape import Shape


class Sticky(Policy):
    """Costs of candidates: trajectories seated there, over the shape's speed."""

    def __init__(self, shapes: Sequence[Shape], seats: Seats) -> None:
        super().__init__(shapes)
        self.seats = seats

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        if turn.last is not None:
            if offer.stays:
                return Decision(turn.last.id, "stays with its prefix")
            if turn.may_wait:
                return Decision(-1, "waits for room beside its prefix", wait_for=turn.last.id)
        costs = [(self.seats.active[e.id] / self.shapes[e.bucket].speed, e.id) for e in offer.engines]
        return Decision(min(costs)[1], "fewest trajectories", tuple((id, cost) for cost, id in costs))
