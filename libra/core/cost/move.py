"""Seconds to move things: KV caches, weights, replicas.

    KV move      = setup + n x kv / (min(TP_source, TP_target) x host x eta_h)
                   [+ n x kv / (ports x port x eta_p) between nodes]
    publication  = W / core / (host x eta_h)  +  max(source egress, consumer ingress)  +  W / TP / (host x eta_h)

A move inside a node is staged in pinned host memory (resharded there by head), its two copies overlapped chunk by chunk; each
device of the smaller side has a host link of its own. Between nodes the network stage follows the staged one.
Checked against the published 40K tokens: under 330 ms inside a node, at most 733 ms across. Called by scheduler and planner.
"""

from typing import Literal

from msgspec import Struct

from libra.config.parts import HardwareConfig, ModelShape
from libra.core.cost.engine import EngineCost


class Relocation(Struct, frozen=True):
    """The cheaper way to continue a context elsewhere, and the price of both ways."""

    way: Literal["move", "recompute"]
    seconds: float
    move_s: float
    recompute_s: float


class Transition(Struct, frozen=True):
    """One replica's change of role: seconds in the background, then seconds in which it works for nobody."""

    background_s: float
    blocking_s: float

    @property
    def total_s(self) -> float:
        """Device seconds lost for each device of the replica: neither role is served meanwhile."""
        return self.background_s + self.blocking_s


def kv_move_s(
    hardware: HardwareConfig, model: ModelShape, tokens: int, source_tp: int, target_tp: int, same_node: bool
) -> float:
    """Seconds to move the KV of `tokens` between engines of two degrees; 0 for none."""
    if tokens <= 0:
        return 0.0
    moved = float(tokens * model.kv_bytes_per_token)  # repeated heads travel once
    lanes = min(source_tp, target_tp, model.kv_heads)
    seconds = hardware.move_setup_s + moved / (lanes * hardware.host_bytes_per_s * hardware.host_efficiency)
    if not same_node:
        seconds += moved / _node_egress(hardware)
    return seconds


def relocate(source: EngineCost, target: EngineCost, tokens: int, same_node: bool) -> Relocation:
    """Move the KV or prefill again on `target`, whichever is estimated cheaper; a tie moves."""
    move_s = kv_move_s(target.hardware, target.model, tokens, source.tp, target.tp, same_node)
    recompute_s = target.recompute_s(tokens)
    if move_s <= recompute_s:
        return Relocation("move", move_s, move_s, recompute_s)
    return Relocation("recompute", recompute_s, move_s, recompute_s)


def publication_s(
    hardware: HardwareConfig, model: ModelShape, trainer_devices: int, engines: int, tp: int, same_node: bool = False
) -> float:
    """Seconds from the end of an optimiser step until `engines` engines of degree `tp` hold the new weights.

    Each core device copies its shard to its host; every engine pulls a full copy over its own link; its devices load their
    shards. All engines pull at once, so the trainers' nodes share their egress among them.
    """
    if engines <= 0:
        return 0.0
    weights = float(model.parameters * model.weight_bytes)
    host = hardware.host_bytes_per_s * hardware.host_efficiency
    trainer_nodes = -(-trainer_devices // hardware.devices_per_node)
    if same_node:
        pull_s = engines * weights / (trainer_devices * host)
    else:
        engines_per_node = min(engines, max(1, hardware.devices_per_node // tp))
        egress_s = engines * weights / (trainer_nodes * _node_egress(hardware))
        ingress_s = engines_per_node * weights / _node_egress(hardware)
        pull_s = max(egress_s, ingress_s)
    return weights / trainer_devices / host + pull_s + weights / tp / host


def rollout_to_gradient(hardware: HardwareConfig) -> Transition:
    """An engine's replica joins training: state is fetched in the background, then restored."""
    return Transition(hardware.transition.snapshot_s, hardware.transition.restore_s)


def gradient_to_rollout(hardware: HardwareConfig) -> Transition:
    """A gradient replica goes home: its engine is activated."""
    return Transition(0.0, hardware.transition.engine_activation_s)


def reallocation_pays(now_s: float, new_s: float, horizon_steps: float, transition_s: float) -> bool:
    """Whether a gain per step, over the steps it will last, exceeds the price of the change."""
    return (now_s - new_s) * horizon_steps > transition_s


def _node_egress(hardware: HardwareConfig) -> float:
    return hardware.ports_per_node * hardware.port_bytes_per_s * hardware.port_efficiency
