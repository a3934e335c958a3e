"""`least_loaded`: every turn goes to the engine with the fewest outstanding tokens for its speed.

It looks at no history and moves freely: the strong and simple control that other policies are measured against.
"""

from libra.core.scheduler.policy import Decision, Offer, Policy, TurnView


class LeastLoaded(Policy):
    """Costs of candidates: outstanding tokens over the shape's speed, in seconds."""

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        costs = [self.pressure(e) for e in offer.engines]
        return Decision(min(costs)[1], "fewest outstanding tokens", tuple((id, cost) for cost, id in costs))
