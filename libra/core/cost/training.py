"""Seconds of a training step, and the memory of both stages.

    work  = passes x [2 P_active (T + S x s0) + 2 layers x width x sum n^2]      passes: forward 1, backward 2, recompute 1
    step  = [work / (N x F x MFU) + tensor-parallel all-reduces] / (1 - bubble), bubble = (p - 1) / (m + p - 1)

T tokens in S sequences of lengths n; s0 is what a sequence costs whatever its length, in token-equivalents; width = heads x
head dim, causal attention counted once. So 6 P T, or 8 P T with full recompute, plus the attention term. Communication of
sharded data parallelism is part of MFU. Called by simulator and planner.
"""

from collections.abc import Sequence

from msgspec import Struct

from libra.config.parts import HardwareConfig, ModelShape
from libra.core.cost.allreduce import allreduce_s
from libra.core.cost.engine import ACTIVATION_BYTES, ALLREDUCES_PER_LAYER, EngineCost
from libra.errors import PreflightError

OPTIMISER_BYTES = 16
"""A parameter: float32 weight 4, float32 gradient 4, two Adam moments 8 (mixed precision)."""
REPLICA_BYTES = 8
"""A parameter of a gradient replica: float32 weight 4, float32 gradient sum 4; it has no optimiser."""
LOGIT_BYTES = 6
"""A logit: bf16 from the product, float32 in the loss."""


class TokenLoad(Struct, frozen=True):
    """What a batch weighs: sequences, their tokens, and the sum of their squared lengths."""

    sequences: int
    tokens: int
    squares: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "TokenLoad":
        """The load of sequences of these lengths, prompt and observations included."""
        return cls(len(lengths), sum(lengths), sum(n * n for n in lengths))


class TrainLayout(Struct, frozen=True, kw_only=True):
    """How training lies on its devices. Data-parallel size is devices / (tp x pp)."""

    devices: int
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1
    """Of one data-parallel replica, in one step."""
    recompute: bool = False

    @property
    def data_parallel(self) -> int:
        """Replicas that take different micro-batches."""
        return self.devices // (self.tp * self.pp)

    @property
    def bubble(self) -> float:
        """Share of a step that a pipeline's stages stand idle: (p - 1) / (m + p - 1)."""
        return (self.pp - 1) / (self.micro_batches + self.pp - 1)


class StepCost(Struct, frozen=True):
    """Seconds of one step by what they are spent on; `total_s` is their sum."""

    dense_s: float
    attention_s: float
    sequence_s: float
    links_s: float
    bubble_s: float

    @property
    def total_s(self) -> float:
        return self.dense_s + self.attention_s + self.sequence_s + self.links_s + self.bubble_s


class TrainMemory(Struct, frozen=True):
    """Bytes on one training device at the peak of a step."""

    state_bytes: float
    activation_bytes: float
    logit_bytes: float
    device_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.state_bytes + self.activation_bytes + self.logit_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.device_bytes


class RolloutMemory(Struct, frozen=True):
    """Bytes on one device of an engine; `kv_bytes` is what the room for tokens takes."""

    weights_bytes: float
    workspace_bytes: float
    kv_bytes: float
    device_bytes: float
    capacity_tokens: int


def layout_problems(hardware: HardwareConfig, model: ModelShape, layout: TrainLayout) -> list[str]:
    """Why this layout cannot exist, one line a reason."""
    problems: list[str] = []
    if min(layout.devices, layout.tp, layout.pp, layout.micro_batches) < 1:
        return [f"training layout: got {layout}, expected every number to be 1 or more"]
    if layout.devices % (layout.tp * layout.pp):
        problems.append(
            f"training layout: tp x pp = {layout.tp * layout.pp}, expected a divisor of devices = {layout.devices}"
        )
    if model.heads % layout.tp:
        problems.append(
            f"training layout: tp = {layout.tp}, expected a divisor of heads = {model.heads} of {model.name}"
        )
    if layout.tp > hardware.devices_per_node:
        problems.append(
            f"training layout: tp = {layout.tp}, expected at most devices_per_node = {hardware.devices_per_node}"
        )
    if model.layers % layout.pp:
        problems.append(
            f"training layout: pp = {layout.pp}, expected a divisor of layers = {model.layers} of {model.name}"
        )
    return problems


def train_step(hardware: HardwareConfig, model: ModelShape, layout: TrainLayout, load: TokenLoad) -> StepCost:
    """Seconds of one optimiser step on `load`. Raises PreflightError for a layout that cannot exist."""
    if problems := layout_problems(hardware, model, layout):
        raise PreflightError(problems)
    tuning = hardware.training
    passes = 4.0 if layout.recompute else 3.0
    per_flop = passes / (layout.devices * hardware.flops * tuning.mfu)
    dense_s = 2.0 * model.active * load.tokens * per_flop
    attention_s = 2.0 * model.layers * model.attention_width * load.squares * per_flop
    sequence_s = 2.0 * model.active * load.sequences * tuning.sequence_tokens * per_flop
    links_s = _links_s(hardware, model, layout, load)
    useful_s = dense_s + attention_s + sequence_s + links_s
    return StepCost(dense_s, attention_s, sequence_s, links_s, useful_s * layout.bubble / (1.0 - layout.bubble))


def _links_s(hardware: HardwareConfig, model: ModelShape, layout: TrainLayout, load: TokenLoad) -> float:
    """Seconds of tensor-parallel all-reduces: forward, backward, and again where the forward is recomputed."""
    if layout.tp == 1 or not load.tokens:
        return 0.0
    micro_tokens = load.tokens / (layout.data_parallel * layout.micro_batches)
    message = micro_tokens * model.hidden * ACTIVATION_BYTES
    reductions = ALLREDUCES_PER_LAYER * (3 if layout.recompute else 2) * model.layers // layout.pp
    return layout.micro_batches * reductions * allreduce_s(hardware, layout.tp, message)


def train_memory(
    hardware: HardwareConfig,
    model: ModelShape,
    layout: TrainLayout,
    micro_tokens: int,
    state_bytes: int = OPTIMISER_BYTES,
) -> TrainMemory:
    """Bytes on one device with micro-batches of `micro_tokens`; the state (so many bytes a parameter) is sharded over all.

    Activations kept for the backward of one layer and token, in bf16: two normalised inputs, query, keys, values, attention
    output, and gate, up and product of the feed-forward (of each expert a token visits); attention scores are not kept.
    With recompute only each layer's input is kept, and one layer's activations at a time. A pipeline stage keeps up to pp
    micro-batches in flight.
    """
    if problems := layout_problems(hardware, model, layout):
        raise PreflightError(problems)
    visits = max(1, model.experts_per_token)
    elements = (
        2 * model.hidden + 2 * model.attention_width + 2 * model.kv_heads * model.head_dim + 3 * model.ffn * visits
    ) / layout.tp
    layers = model.layers / layout.pp
    in_flight = min(layout.pp, layout.micro_batches)
    kept = layers * model.hidden * in_flight + elements if layout.recompute else layers * elements * in_flight
    return TrainMemory(
        state_bytes=float(state_bytes) * model.parameters / layout.devices,
        activation_bytes=kept * ACTIVATION_BYTES * micro_tokens,
        logit_bytes=float(LOGIT_BYTES * model.vocabulary * micro_tokens) / layout.tp,
        device_bytes=hardware.memory_bytes,
    )


def rollout_memory(engine: EngineCost) -> RolloutMemory:
    """Bytes on one device of `engine`."""
    return RolloutMemory(
        weights_bytes=engine.weights_bytes / engine.tp,
        workspace_bytes=engine.hardware.engine.workspace_bytes,
        kv_bytes=engine.capacity_tokens * engine.kv_bytes_per_token / engine.tp,
        device_bytes=engine.hardware.memory_bytes,
        capacity_tokens=engine.capacity_tokens,
    )
