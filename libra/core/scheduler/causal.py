"""`causal`: the engine on which this trajectory, and those that it disturbs, finish soonest.

For a trajectory with residual r (tokens; a distribution, as slices of equal probability) and an engine with B rows that
hold K tokens, of which R are predicted to come, with step seconds s = step(B, K) and s' = step(B + 1, K + context):

    start   = wait until there is room + (prefill of what is new, or of the whole elsewhere, or a KV move if cheaper)
    F(r)    = start + r x (s' + k r / 2)                       own finish; k: what the own growing context adds to a step
    D       = (s' - s) x min(mean r, R / B) + prefill           what each neighbour loses: slower steps, and a stall
    cost    = mean over slices of F(r)^2  +  2 x (s R) x D

This is the increase of the sum of squared finish times, a soft form of the latest one: neighbours with much still to come
weigh more (their finish time is about s x their residual, so B of them weigh s R), and a long residual is drawn to a fast,
quiet engine much more strongly than a short one. Congestion and KV enter through s', so with an empty or useless tree, when
all residuals look alike, what is left is a congestion-aware least-loaded rule. The neighbours are taken as they are: who
leaves is replaced.

Waiting. A shape without room is a candidate as well: its wait is that until enough of its rows have left. A turn waits only
where this pays by `WAIT_GAIN`. In the queue of a slot a turn counts as having come earlier by its predicted residual
seconds, at most `overtake_s`: long ones go first, and nobody is overtaken by who comes later than that.
"""

from collections.abc import Sequence
from math import inf, sqrt

from libra.core.causality import CausalityTree
from libra.core.scheduler.load import EngineLoad
from libra.core.scheduler.policy import Decision, Forecast, Offer, Policy, TurnView, bucket_target
from libra.core.scheduler.shape import Shape

SLICES = 8
"""Equally probable parts of the residual's distribution; the last one is its longest eighth."""
WAIT_GAIN = 0.8
"""A wait must promise a finish time of at most this share of the best engine's that is free: estimates of waits are rough."""
GROWTH_TOKENS = 1024
"""Step seconds are compared over so many tokens of context to see what one token adds."""


class Causal(Policy):
    """A forecast is the residual's slices in tokens, smallest first. Costs of candidates are seconds (the square root)."""

    def __init__(self, shapes: Sequence[Shape], tree: CausalityTree, overtake_s: float) -> None:
        super().__init__(shapes)
        self.tree = tree
        self.overtake_s = overtake_s

    def forecast(self, traj: int, since: float) -> Forecast:
        return self.tree.slices(traj, since, SLICES)

    def residual_tokens(self, forecast: Forecast) -> float:
        return sum(forecast) / len(forecast)

    def lead_s(self, forecast: Forecast) -> float:
        shape = self.shapes[0]
        return min(self.overtake_s, self.residual_tokens(forecast) * shape.factor * shape.typical_step_s)

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        mean = self.residual_tokens(turn.forecast)
        best_of: dict[int, tuple[float, int]] = {}
        stay = inf
        elsewhere: dict[tuple[int, int], float] = {}
        """Prefill seconds by bucket and node: they do not depend on the engine."""
        for e in offer.engines:
            cost = self._cost(turn, e, mean, 0.0, elsewhere)
            if e is turn.last:
                stay = cost
            if (cost, e.id) < best_of.get(e.bucket, (inf, 0)):
                best_of[e.bucket] = (cost, e.id)
        now, best = min(best_of.values())
        candidates = [(id, sqrt(cost)) for cost, id in best_of.values()]
        if turn.last is not None and stay < inf and best_of[turn.last.bucket][1] != turn.last.id:
            candidates.append((turn.last.id, sqrt(stay)))
        if turn.may_wait and offer.full:
            waits = [(self._cost(turn, e, mean, self._wait_s(turn, e), elsewhere), e.id, e) for e in offer.full]
            candidates += [(id, sqrt(cost)) for cost, id, _ in waits]
            cost, id, e = min(waits, key=lambda w: w[:2])
            if sqrt(cost) < sqrt(now) * WAIT_GAIN:
                target = id if e is turn.last else bucket_target(e.bucket)
                return Decision(-1, "waiting there ends sooner than starting elsewhere", tuple(candidates), target)
        stays = turn.last is not None and best == turn.last.id
        reason = "soonest expected finish: stays with its prefix" if stays else "soonest expected finish"
        return Decision(best, reason, tuple(candidates))

    def _cost(
        self, turn: TurnView, e: EngineLoad, mean: float, wait_s: float, elsewhere: dict[tuple[int, int], float]
    ) -> float:
        """Square seconds; see the module."""
        shape = self.shapes[e.bucket]
        rows, context = e.running + 1, turn.context_tokens
        held = e.context_tokens + context
        step_s = shape.step_s(rows, held)
        grown_s = (shape.step_s(rows, held + GROWTH_TOKENS) - step_s) / (2 * GROWTH_TOKENS)
        if e is turn.last:
            prefill_s = shape.prefill_s(context - turn.cached_tokens, turn.cached_tokens)
        else:
            known = elsewhere.get((e.bucket, e.node))
            if known is None:
                known = elsewhere[e.bucket, e.node] = self._bring_s(turn, e, shape)
            prefill_s = known
        start_s = wait_s + prefill_s
        own = 0.0
        for tokens in turn.forecast:
            finish_s = start_s + tokens * (step_s + grown_s * tokens)
            own += finish_s * finish_s
        own /= len(turn.forecast)
        if not e.running:
            return own
        before_s = shape.step_s(e.running, e.context_tokens)
        delay_s = (step_s - before_s) * min(mean, e.residual_tokens / e.running) + prefill_s
        return own + 2.0 * before_s * e.residual_tokens * delay_s

    def _bring_s(self, turn: TurnView, e: EngineLoad, shape: Shape) -> float:
        last = turn.last
        if last is None:
            return shape.prefill_s(turn.context_tokens)
        return shape.bring_s(turn.context_tokens, turn.cached_tokens, self.shapes[last.bucket], e.node == last.node)

    def _wait_s(self, turn: TurnView, e: EngineLoad) -> float:
        """Until enough rows have left: each holds its share of the room and has a mean turn to go, in no known order."""
        shape = self.shapes[e.bucket]
        lacking = turn.need_tokens + shape.queued_tokens / shape.engines - (e.kv_tokens - e.reserved_tokens)
        leave = max(1.0, lacking * e.running / e.reserved_tokens)
        return leave / e.running * shape.turn_tokens * shape.step_s(e.running, e.context_tokens)
