"""How long the parts of a configuration take, in run seconds: the simulator's and the emulated roles' one source.

Engines decode and prefill as `libra.core.cost.engine` says (`Machine` asks it); here is what is not an engine's: rounds of
training, weights that travel, shares of gradients, changes of role.
"""

from collections.abc import Sequence

from libra.config.schema import BucketConfig, Config, CostConfig
from libra.core.cost.move import gradient_to_rollout, publication_s, rollout_to_gradient
from libra.core.cost.training import TokenLoad, TrainLayout, train_step

REDUCE_BYTES = 4
"""Of one gradient element of a share: float32, the core's reduce dtype."""


def replica_of(config: Config) -> TrainLayout:
    """One data-parallel replica of the trainer: what works on one slot group of a round."""
    s = config.simulation
    return TrainLayout(devices=s.tp * s.pp, tp=s.tp, pp=s.pp, micro_batches=s.micro_batches, recompute=s.recompute)


def round_s(config: Config, cost: CostConfig, slots: Sequence[Sequence[int]]) -> float:
    """One round: `slots[i]` are the lengths that rank i takes. Replicas work side by side, the slowest one counts."""
    if not config.simulation.train:
        return 0.0
    replica = replica_of(config)
    slowest = 0.0
    for first in range(0, len(slots), replica.devices):
        lengths = [n for slot in slots[first : first + replica.devices] for n in slot]
        if lengths:
            seconds = train_step(cost.hardware, cost.model, replica, TokenLoad.of(lengths)).total_s
            slowest = max(slowest, seconds)
    return slowest


def install_s(config: Config, cost: CostConfig, bucket: BucketConfig) -> float:
    """From the order to fetch weights until an engine of the bucket has them, all engines fetching at once."""
    engines = sum(b.engines for b in config.bucket)
    same_node = config.simulation.same_node
    return publication_s(cost.hardware, cost.model, config.allocation.trainer, engines, bucket.tp, same_node)


def replica_install_s(config: Config, cost: CostConfig) -> float:
    """A gradient replica that stands fetches the next version: alone, into all devices of one layout."""
    width = replica_of(config).devices
    return publication_s(cost.hardware, cost.model, config.allocation.trainer, 1, width, config.simulation.same_node)


def share_s(cost: CostConfig, core: int, same_node: bool) -> float:
    """A core rank fetches its part of one replica's gradient sum, all core ranks at once, from one sender."""
    hardware = cost.hardware
    whole = float(cost.model.parameters * REDUCE_BYTES)
    host = hardware.host_bytes_per_s * hardware.host_efficiency
    link = host if same_node else hardware.ports_per_node * hardware.port_bytes_per_s * hardware.port_efficiency
    return whole / link + whole / core / host


def joining_s(cost: CostConfig, role: str) -> float:
    """A rank that changes its role in the middle of a run: until it can be of use."""
    change = rollout_to_gradient(cost.hardware) if role == "gradient" else gradient_to_rollout(cost.hardware)
    return change.total_s
