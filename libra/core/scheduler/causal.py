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

Running turns that are looked at again are cut where the same cost, with a prefill of everything, is at most `CUT_GAIN` of the
cost of staying among the present neighbours with no prefill at all (roots compared).

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

SLICES = 6
"""Equally probable parts of the residual's distribution; the last one is its longest sixth."""
WAIT_GAIN = 0.8
"""A wait must promise a finish time of at most this share of the best engine's that is free: estimates of waits are rough."""

CUT_GAIN = 0.8
"""A cut must promise a finish time of at most this share of the one without."""


class Causal(Policy):
    """A forecast is the residual's first four moments in tokens. Costs of candidates are seconds (the square root)."""

    rebalances = True

    def __init__(self, shapes: Sequence[Shape], tree: CausalityTree, overtake_s: float) -> None:
        super().__init__(shapes)
        self.tree = tree
        self.overtake_s = overtake_s

    def forecast(self, traj: int, since: float) -> Forecast:
        return moments(self.tree.slices(traj, since, SLICES))

    def residual_tokens(self, forecast: Forecast) -> float:
        return forecast[0]

    def lead_s(self, forecast: Forecast) -> float:
        return self.early_s(forecast[0], self.overtake_s)

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        best_of: dict[int, tuple[float, int]] = {}
        stay = inf
        elsewhere: dict[tuple[int, bool], float] = {}
        """Prefill seconds by bucket and whether it is the prefix's node: they do not depend on the engine."""
        for e in offer.engines:
            cost = self._cost(turn, e, 0.0, elsewhere)
            if e is turn.last:
                stay = cost
            if (cost, e.id) < best_of.get(e.bucket, (inf, 0)):
                best_of[e.bucket] = (cost, e.id)
        now, best = min(best_of.values())
        candidates = [(id, sqrt(cost)) for cost, id in best_of.values()]
        if turn.last is not None and stay < inf and best_of[turn.last.bucket][1] != turn.last.id:
            candidates.append((turn.last.id, sqrt(stay)))
        if turn.may_wait and offer.full:
            waits = [(self._cost(turn, e, self._wait_s(turn, e), elsewhere), e.id, e) for e in offer.full]
            candidates += [(id, sqrt(cost)) for cost, id, _ in waits]
            cost, id, e = min(waits, key=lambda w: w[:2])
            if cost < now * WAIT_GAIN * WAIT_GAIN:
                target = id if e is turn.last else bucket_target(e.bucket)
                return Decision(-1, "waiting there ends sooner than starting elsewhere", tuple(candidates), target)
        stays = turn.last is not None and best == turn.last.id
        reason = "soonest expected finish: stays with its prefix" if stays else "soonest expected finish"
        return Decision(best, reason, tuple(candidates))

    def rather_elsewhere(self, turn: TurnView, offer: Offer) -> Decision | None:
        """Staying is undisturbed, among the present neighbours; leaving makes it prefill all, and disturb others."""
        here = turn.last
        assert here is not None  # it runs there
        others_kv, others_residual = (
            here.context_tokens - turn.context_tokens,
            here.residual_tokens - round(turn.forecast[0]),
        )
        stay = self._finish(turn, self.shapes[here.bucket], here.running - 1, others_kv, others_residual, 0.0, 0.0)
        elsewhere: dict[tuple[int, bool], float] = {}
        costs = [(self._cost(turn, e, 0.0, elsewhere), e.id) for e in offer.engines if e is not here]
        cost, best = min(costs, default=(inf, -1))
        if cost > stay * CUT_GAIN * CUT_GAIN:
            return None
        candidates = ((here.id, sqrt(stay)), *((id, sqrt(cost)) for cost, id in costs))
        return Decision(best, "cut: it would finish much sooner there", candidates)

    def _cost(self, turn: TurnView, e: EngineLoad, wait_s: float, elsewhere: dict[tuple[int, bool], float]) -> float:
        """Square seconds of beginning there; see the module."""
        shape = self.shapes[e.bucket]
        last, context = turn.last, turn.context_tokens
        if e is last:
            prefill_s = shape.prefill_s(context - turn.cached_tokens, turn.cached_tokens)
        else:
            key = (e.bucket, last is not None and e.node == last.node)
            prefill_s = elsewhere.get(key, -1.0)
            if prefill_s < 0.0:
                source = None if last is None else self.shapes[last.bucket]
                prefill_s = elsewhere[key] = shape.bring_s(context, turn.cached_tokens, source, key[1])
        return self._finish(turn, shape, e.running, e.context_tokens, e.residual_tokens, wait_s + prefill_s, prefill_s)

    def _finish(
        self, turn: TurnView, shape: Shape, rows: int, kv_tokens: int, residual: int, start_s: float, stall_s: float
    ) -> float:
        """Square seconds beside `rows` that hold `kv_tokens` and have `residual` tokens to come; own start after `start_s`.

        The mean of F(r)^2, F(r) = start + r (step + growth r), from r's moments, and what the neighbours lose.
        """
        factor, costs_step_s = shape.factor, shape.costs.step_s
        step_s = factor * costs_step_s(rows + 1, kv_tokens + turn.context_tokens)
        growth_s = 0.5 * factor * shape.growth_s
        m1, m2, m3, m4 = turn.forecast
        own = start_s * (start_s + 2.0 * (m1 * step_s + m2 * growth_s))
        own += m2 * step_s * step_s + growth_s * (2.0 * m3 * step_s + m4 * growth_s)
        if rows <= 0:
            return own
        before_s = factor * costs_step_s(rows, kv_tokens)
        delay_s = (step_s - before_s) * min(m1, residual / rows) + stall_s
        return own + 2.0 * before_s * residual * delay_s

    def _wait_s(self, turn: TurnView, e: EngineLoad) -> float:
        """Until enough rows have left: each holds its share of the room and has a mean turn to go, in no known order."""
        shape = self.shapes[e.bucket]
        lacking = turn.need_tokens + shape.queued_tokens / shape.engines - (e.kv_tokens - e.reserved_tokens)
        leave = max(1.0, lacking * e.running / e.reserved_tokens)
        return leave / e.running * shape.turn_tokens * shape.step_s(e.running, e.context_tokens)


def moments(slices: Sequence[float]) -> tuple[float, float, float, float]:
    """Means of the first four powers of equally probable values."""
    m1 = m2 = m3 = m4 = 0.0
    for r in slices:
        square = r * r
        m1 += r
        m2 += square
        m3 += square * r
        m4 += square * square
    n = len(slices)
    return m1 / n, m2 / n, m3 / n, m4 / n
