"""`oracle`: `causal` with the true residual in place of the tree's distribution.

What there is to gain by knowing more: only a simulator can tell a trajectory's residual, through `Core(config, oracle=...)`.
"""

from collections.abc import Sequence

from libra.core.causality import CausalityTree
from libra.core.scheduler.causal import Causal, moments
from libra.core.scheduler.policy import Forecast, Foresight
from libra.core.scheduler.shape import Shape


class Oracle(Causal):
    def __init__(self, shapes: Sequence[Shape], tree: CausalityTree, overtake_s: float, foresight: Foresight) -> None:
        super().__init__(shapes, tree, overtake_s)
        self.foresight = foresight

    def forecast(self, traj: int, since: float) -> Forecast:
        return moments((max(0.0, self.foresight(traj)),))
