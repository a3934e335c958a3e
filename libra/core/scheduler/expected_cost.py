"""`expected_cost`: the rule of the paper's version 3, to the letter.

    cost(engine) = sum over length bins of p(bin) x decode seconds there + seconds of the move;   staying costs no move
    the least of all engines with room; ties prefer staying, then lower load, then lower index

p(bin) comes from the deepest known node, as in version 2. Ours, where the paper is silent: the bins and what stands for
each (`EDGES_TOKENS`); decoding beside the rows that run there now; load is the rows that run; a move is a prefill of the
context or, where engines can fetch a prefix, that; before anything is known, one bin of `UNKNOWN_TOKENS`.
"""

from collections.abc import Sequence
from itertools import pairwise

from libra.core.causality import CausalityTree
from libra.core.scheduler.load import EngineLoad
from libra.core.scheduler.policy import Decision, Forecast, Offer, Policy, TurnView
from libra.core.scheduler.shape import Shape

EDGES_TOKENS = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
"""Upper ends of the length bins, inclusive; one more bin lies above. The middle of a bin stands for it."""
UNKNOWN_TOKENS = 1_000
"""Residual before anything is known."""
TIE = 1e-9
"""Costs that differ by less than this share of their size are equal: rounding must not break a tie."""


def representatives(edges: Sequence[int]) -> tuple[int, ...]:
    """The middle of each bin; half as much again as the last edge for the bin above it."""
    return (*((a + b) // 2 for a, b in pairwise((0, *edges))), edges[-1] * 3 // 2)


class ExpectedCost(Policy):
    """A forecast is p(bin) for each bin, or (). Costs of candidates are seconds."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        tree: CausalityTree,
        edges: Sequence[int] = EDGES_TOKENS,
        lengths: Sequence[int] | None = None,
    ) -> None:
        super().__init__(shapes)
        self.tree = tree
        self.edges = tuple(float(e) for e in edges)
        self.lengths = tuple(lengths or representatives(edges))

    def forecast(self, traj: int, since: float) -> Forecast:
        return self.tree.paper_bins(traj, self.edges) or ()

    def residual_tokens(self, forecast: Forecast) -> float:
        return sum(p * n for p, n in zip(forecast, self.lengths, strict=False))

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        bins = [(p, n) for p, n in zip(turn.forecast, self.lengths, strict=False) if p] or [(1.0, UNKNOWN_TOKENS)]
        costs = [(self._cost(turn, e, bins), e) for e in offer.engines]
        least = min(cost for cost, _ in costs)
        ties = [e for cost, e in costs if cost <= least * (1 + TIE)]
        best = min(ties, key=lambda e: (e is not turn.last, e.running, e.id))
        reason = "least expected cost: stay" if best is turn.last else "least expected cost"
        return Decision(best.id, reason, tuple((e.id, cost) for cost, e in costs))

    def _cost(self, turn: TurnView, e: EngineLoad, bins: Sequence[tuple[float, int]]) -> float:
        shape = self.shapes[e.bucket]
        rows, kv_tokens = e.running + 1, e.context_tokens + turn.context_tokens
        seconds = sum(p * shape.decode_s(n, rows, kv_tokens) for p, n in bins)
        if turn.last is None or e is turn.last:
            return seconds
        source = self.shapes[turn.last.bucket]
        return seconds + shape.bring_s(turn.context_tokens, turn.cached_tokens, source, e.node == turn.last.node)
