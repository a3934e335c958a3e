"""The cost model against published figures: what each target is, what we get, and the error that is left.

| anchor | experiment in the model |
|---|---|
| TP crossover | 512 sequences, lengths evenly over the stated range, dealt round-robin to 8xTP1 or 1xTP8; ratio of makespans |
| rollout x95 | 512 sequences of 32K against 512 of 1K on 8 devices, as 2xTP4 and as 1xTP8: the published figure lies between |
| training x3.9 | one step on 512 sequences of 32K against 1K |
| decode step | the formula with 14e9 parameters, 16,384 KV tokens, 8 us an all-reduce, no host time |
| KV move | 40K tokens of Qwen3-14B between TP1 engines, inside a node and across |

Absolute tokens a second are no anchor: the published ones fit no single unit.

**What is fitted, and how little that proves.** The two crossover ratios are met by two free numbers: `engine.row_s`, and the
memory an engine may use on a device (`memory_utilisation` x memory - `workspace_bytes`, one number). They were chosen among
about a hundred settings with all anchors in view, and they pull against each other: host time a row makes one wide engine
lose on short sequences and costs it some of its lead on long ones; scarce room makes eight narrow engines lose on long ones.
In no setting tried was the larger of the two misses below about 20 %, so the misses are balanced. `training.sequence_tokens`
is fitted on the one training ratio, `host_efficiency` and `port_efficiency` on the moves. The decode steps check arithmetic,
with their own all-reduce and no host time, not the constants that a run uses. Nothing here is a prediction held out.
`sensitivity` shows what the ratios do when one assumption changes: with engines
that own their device (0.9 of the memory) the long crossover changes its sign, and without `row_s` the short one does.
Called by `tests/bench/calibration.py` and by the tests that hold the bounds.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct, structs

from libra.config.parts import EngineTuning, HardwareConfig, ModelShape
from libra.core.cost.batch import BatchOutcome, run_batch
from libra.core.cost.engine import EngineCost
from libra.core.cost.move import kv_move_s
from libra.core.cost.training import TokenLoad, TrainLayout, train_step

GOLDEN = (5**0.5 - 1) / 2
SEQUENCES = 512
DEVICES = 8
SHORT_TOKENS = (1, 2048)
LONG_TOKENS = (16_384, 32_768)
DECODE_MS = {1: 18.05, 2: 9.67, 4: 5.15, 8: 2.90}
DECODE_ALLREDUCE_US = 8.0


class Anchor(Struct, frozen=True):
    """One published figure and ours. `low` and `high` are the bounds that we hold `got` to."""

    name: str
    unit: str
    target: float
    got: float
    low: float
    high: float

    @property
    def relative_error(self) -> float:
        return self.got / self.target - 1.0

    @property
    def holds(self) -> bool:
        return self.low <= self.got <= self.high


def spread_lengths(low: int, high: int, count: int) -> list[int]:
    """`count` lengths evenly over [low, high], in an order without trend (multiples of the golden ratio, modulo 1)."""
    return [low + round((high - low) * ((i + 0.5) * GOLDEN % 1.0)) for i in range(count)]


def slowest_engine(
    engine: EngineCost, lengths: list[int], prompt_tokens: int = 0, max_batch: int = SEQUENCES
) -> BatchOutcome:
    """The engine that ends last when `lengths` are dealt round-robin to as many engines as the devices make."""
    engines = DEVICES // engine.tp
    outcomes = (run_batch(engine, lengths[i::engines], prompt_tokens, max_batch) for i in range(engines))
    return max(outcomes, key=lambda outcome: outcome.makespan_s)


def anchors(hardware: HardwareConfig, model: ModelShape) -> Iterator[Anchor]:
    """All anchors in turn. The published figures are those of Qwen3-14B on A800: with other parts the targets mean nothing."""
    yield from _crossover(hardware, model)
    yield from _rollout_growth({tp: EngineCost(hardware, model, tp) for tp in (4, 8)})
    yield _training_growth(hardware, model)
    yield from _decode(hardware, model)
    yield from _move(hardware, model)


def crossover_ratios(
    hardware: HardwareConfig,
    model: ModelShape,
    order: Callable[[list[int]], list[int]] = list,
    prompt_tokens: int = 0,
    max_batch: int = SEQUENCES,
) -> tuple[float, float]:
    """(short 8xTP1 over 1xTP8, long 1xTP8 over 8xTP1) in tok/s, with the sequences arriving in this order of lengths."""
    narrow, wide = (EngineCost(hardware, model, tp) for tp in (1, DEVICES))

    def makespan_s(engine: EngineCost, span: tuple[int, int]) -> float:
        return slowest_engine(engine, order(spread_lengths(*span, SEQUENCES)), prompt_tokens, max_batch).makespan_s

    return (
        makespan_s(wide, SHORT_TOKENS) / makespan_s(narrow, SHORT_TOKENS),
        makespan_s(narrow, LONG_TOKENS) / makespan_s(wide, LONG_TOKENS),
    )


def sensitivity(hardware: HardwareConfig, model: ModelShape) -> Iterator[tuple[str, float, float]]:
    """(what is changed, short ratio, long ratio): how much the crossover owes to each assumption, one at a time."""
    yield "as declared", *crossover_ratios(hardware, model)
    yield "shortest first", *crossover_ratios(hardware, model, sorted)
    yield "longest first", *crossover_ratios(hardware, model, lambda lengths: sorted(lengths, reverse=True))
    yield "prompts of 256 tokens", *crossover_ratios(hardware, model, prompt_tokens=256)
    yield "at most 256 rows an engine", *crossover_ratios(hardware, model, max_batch=256)
    changes = (
        {"memory_utilisation": 0.6},
        {"memory_utilisation": 0.9},
        {"row_s": 2e-5},
        {"row_s": 0.0},
        {"flops_efficiency": 0.4},
    )
    for change in changes:
        tuned = structs.replace(hardware, engine=structs.replace(hardware.engine, **change))
        yield ", ".join(f"{k} = {v:g}" for k, v in change.items()), *crossover_ratios(tuned, model)


def _crossover(hardware: HardwareConfig, model: ModelShape) -> Iterator[Anchor]:
    short, long = crossover_ratios(hardware, model)
    for name, target, got in (("short 8xTP1 over 1xTP8", 3.13, short), ("long 1xTP8 over 8xTP1", 2.84, long)):
        yield Anchor(f"crossover {name}", "ratio of tok/s", target, got, 0.75 * target, 1.25 * target)


def _rollout_growth(engines: dict[int, EngineCost]) -> Iterator[Anchor]:
    for tp, low, high in ((8, 60.0, 95.0), (4, 95.0, 150.0)):
        share = SEQUENCES * tp // DEVICES
        grown = run_batch(engines[tp], [32_768] * share).makespan_s / run_batch(engines[tp], [1024] * share).makespan_s
        yield Anchor(f"rollout 1K to 32K, TP{tp}", "ratio of seconds", 95.0, grown, low, high)


def _training_growth(hardware: HardwareConfig, model: ModelShape) -> Anchor:
    layout = TrainLayout(devices=DEVICES)
    long, short = (train_step(hardware, model, layout, TokenLoad.of([n] * SEQUENCES)).total_s for n in (32_768, 1024))
    return Anchor("training 1K to 32K", "ratio of seconds", 3.9, long / short, 0.9 * 3.9, 1.1 * 3.9)


def _decode(hardware: HardwareConfig, model: ModelShape) -> Iterator[Anchor]:
    flat = dict.fromkeys((2, 4, 8), (DECODE_ALLREDUCE_US,) * 4)
    bare = structs.replace(
        hardware, allreduce_us=flat, engine=EngineTuning(bandwidth_efficiency=0.85, row_s=0.0, fixed_s=0.0)
    )
    stated = structs.replace(model, parameters=14_000_000_000)
    for tp, target in DECODE_MS.items():
        got = EngineCost(bare, stated, tp).step_s(1, 16_384) * 1e3
        yield Anchor(f"decode step TP{tp}", "ms", target, got, 0.99 * target, 1.01 * target)


def _move(hardware: HardwareConfig, model: ModelShape) -> Iterator[Anchor]:
    for name, same_node, limit in (("inside a node", True, 330.0), ("across nodes", False, 733.0)):
        got = kv_move_s(hardware, model, 40_960, 1, 1, same_node) * 1e3
        yield Anchor(f"KV move of 40K tokens {name}", "ms, at most", limit, got, 0.0, limit)
