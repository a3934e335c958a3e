"""A bucket as the policies see it: what a turn costs on an engine of this shape, in seconds.

Costs come from `libra.core.cost` where the configuration names hardware and model. Without, a nominal device stands in
(one CPU core, `NOMINAL`), so that every policy works everywhere; the correction, which compares each turn with its
prediction, brings either to the engine's real pace.
"""

from typing import Protocol

from msgspec.structs import replace

from libra.config.parts import EngineTuning, HardwareConfig, ModelShape
from libra.config.schema import BucketConfig, Config, ModelConfig
from libra.core.cost.engine import EngineCost
from libra.core.cost.move import kv_move_s
from libra.core.cost.reuse import Reuse

NOMINAL = HardwareConfig(
    name="nominal-cpu-core",
    flops=40e9,
    memory_bytes_per_s=1e10,
    memory_bytes=64e9,
    devices_per_node=64,
    in_node_bytes_per_s=1e10,
    port_bytes_per_s=1e9,
    allreduce_us={64: (100.0, 200.0, 1000.0, 10_000.0)},
    engine=EngineTuning(workspace_bytes=0.0, fixed_s=3e-3, row_s=1.2e-4),
)
"""One CPU core: 40 GFLOP/s of arithmetic, and what the `torch` engine's loop takes beside it with the demo's model in short
turns, prefills of neighbours included (docs/benchmarks.md: 4,674 tokens/s with 32 rows, 6,845 with 128)."""
NOMINAL_WORDS = 256
"""Vocabulary of the nominal model: the real one belongs to the tokenizer, which the core does not know."""
FAR_TOKENS = 1e6
"""Context at which memory bounds a step for certain."""
TYPICAL_CONTEXT_TOKENS = 4096
"""Context of one row where a shape's typical load is asked for."""

FIRST_TURN_TOKENS = 256.0
"""Mean tokens of a turn before any was seen."""


class Costs(Protocol):
    """What policies need of an engine's costs (`EngineCost` is one)."""

    @property
    def tp(self) -> int: ...
    def step_s(self, batch: int, kv_tokens: float) -> float: ...
    def decode_s(self, tokens: int, batch: int, kv_tokens: float) -> float: ...
    def prefill_s(self, new_tokens: int, cached_tokens: int = 0) -> float: ...


class Shape:
    """One bucket. Seconds are predictions times `factor`; `queued_tokens` is the room that turns wait for here."""

    def __init__(self, index: int, bucket: BucketConfig, costs: Costs, kv_move: bool = False) -> None:
        self.index = index
        self.name = bucket.name
        self.engines = bucket.engines
        """How many there are now; 0 is possible where ranks move."""
        self.costs = costs
        self.kv_move = kv_move
        """Engines can fetch a prefix from another engine; else it is always computed again."""
        self.factor = 1.0
        """Observed over predicted seconds: the slow correction."""
        self.queued_tokens = 0
        """KV room needed by the turns that wait for this bucket or one of its engines."""
        self.turn_tokens = FIRST_TURN_TOKENS
        """Slow mean of the tokens that turns sample here."""
        self.reuse = Reuse()
        """How much of the prefixes that should lie on these engines is still there."""
        rows = min(bucket.max_batch, max(1, bucket.kv_tokens // (2 * TYPICAL_CONTEXT_TOKENS)))
        self.typical_step_s = costs.step_s(rows, bucket.kv_tokens / 2)
        """A decode step at half of the KV room."""
        self.growth_s = (costs.step_s(1, 2.0 * FAR_TOKENS) - costs.step_s(1, FAR_TOKENS)) / FAR_TOKENS
        """What one more token of context adds to a step where memory bounds it, uncorrected."""
        self.speed = rows / self.typical_step_s
        """Tokens a second of one engine at that load, uncorrected: what `least_loaded` divides by."""

    @property
    def tp(self) -> int:
        return self.costs.tp

    def step_s(self, batch: int, kv_tokens: float) -> float:
        return self.factor * self.costs.step_s(batch, kv_tokens)

    def decode_s(self, tokens: int, batch: int, kv_tokens: float) -> float:
        return self.factor * self.costs.decode_s(tokens, batch, kv_tokens)

    def prefill_s(self, new_tokens: int, cached_tokens: int = 0) -> float:
        return self.factor * self.costs.prefill_s(new_tokens, cached_tokens)

    def bring_s(self, context_tokens: int, cached_tokens: int, source: "Shape | None", same_node: bool) -> float:
        """Seconds until a context stands on an engine of this shape that does not hold it.

        The whole is prefilled, or the `cached_tokens` that lie on an engine of shape `source` are moved and the rest is
        prefilled: whichever is less.
        """
        whole_s = self.prefill_s(context_tokens)
        if not (self.kv_move and cached_tokens and source is not None):
            return whole_s
        if not (isinstance(self.costs, EngineCost) and isinstance(source.costs, EngineCost)):
            return whole_s
        move_s = kv_move_s(self.costs.hardware, self.costs.model, cached_tokens, source.tp, self.tp, same_node)
        return min(whole_s, move_s + self.prefill_s(context_tokens - cached_tokens, cached_tokens))


def shapes_of(config: Config) -> list[Shape]:
    """One shape a bucket; engines of one TP degree share their costs. Raises PreflightError where an engine cannot exist."""
    hardware = config.cost.hardware if config.cost else NOMINAL
    model = config.cost.model if config.cost else nominal_model(config.model)
    costs: dict[int, EngineCost] = {}
    for bucket in config.bucket:
        if bucket.tp not in costs:
            costs[bucket.tp] = EngineCost(hardware, model, bucket.tp)
    return [Shape(i, b, costs[b.tp], config.scheduler.kv_move) for i, b in enumerate(config.bucket)]


def nominal_model(m: ModelConfig) -> ModelShape:
    """The trained model as the cost model sees it."""
    shape = ModelShape(
        name="nominal", parameters=1, layers=m.layers, hidden=m.hidden, heads=m.heads, kv_heads=m.kv_heads,
        head_dim=max(1, m.hidden // m.heads), ffn=m.ffn, vocabulary=NOMINAL_WORDS, tied_embeddings=m.tied_embeddings,
        weight_bytes=4, kv_bytes=4,
    )  # fmt: skip
    return replace(shape, parameters=shape.implied_parameters())
