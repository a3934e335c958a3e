"""Which engine takes a turn. One file a policy, all behind `policy.Policy`; `libra.core.placement` asks them.

    load      what is known of one engine            index    engines of a shape in order; what may take a turn
    shape     what a turn costs on a shape           seats    which engine a trajectory belongs to

Room and admission are one for all policies: they choose among what the index offers. The formulas are in docs/scheduling.md.
"""

from collections.abc import Sequence

from libra.config.schema import SchedulerConfig
from libra.core.causality import CausalityTree
from libra.core.scheduler.causal import Causal
from libra.core.scheduler.cmlfq import Cmlfq
from libra.core.scheduler.expected_cost import ExpectedCost
from libra.core.scheduler.least_loaded import LeastLoaded
from libra.core.scheduler.length_aware import LengthAware
from libra.core.scheduler.oracle import Oracle
from libra.core.scheduler.policy import Foresight, Policy
from libra.core.scheduler.seats import Seats
from libra.core.scheduler.shape import Shape
from libra.core.scheduler.sticky import Sticky
from libra.core.scheduler.trajectory_priority import TrajectoryPriority
from libra.errors import ConfigError

PAPERS = ("cmlfq", "expected_cost")
"""Policies whose tree never forgets: the paper's does not."""


def make(
    config: SchedulerConfig, shapes: Sequence[Shape], tree: CausalityTree, seats: Seats, foresight: Foresight | None
) -> Policy:
    """The policy that `config` names."""
    match config.policy:
        case "least_loaded":
            return LeastLoaded(shapes)
        case "causal":
            return Causal(shapes, tree, config.overtake_s)
        case "cmlfq":
            return Cmlfq(shapes, tree, config.thresholds_tokens)
        case "expected_cost":
            return ExpectedCost(shapes, tree)
        case "sticky":
            return Sticky(shapes, seats)
        case "length_aware":
            return LengthAware(shapes, config.thresholds_tokens)
        case "trajectory_priority":
            return TrajectoryPriority(shapes, tree, config.overtake_s)
        case "oracle":
            if foresight is None:
                problem = 'scheduler.policy: got "oracle", which knows the future; only a simulation can tell it'
                raise ConfigError("scheduler", [f"{problem}: choose another policy for a live run"])
            return Oracle(shapes, tree, config.overtake_s, foresight)
