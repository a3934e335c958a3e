"""The cost model's formulas: the design's cases 13 and 14, closed forms against sums, and what must hold for any input."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from libra.config.parts import EngineTuning, HardwareConfig, ModelShape, load_hardware, load_model
from libra.core.cost import allreduce
from libra.core.cost.batch import run_batch
from libra.core.cost.engine import TABLED_ROWS, EngineCost
from libra.core.cost.move import (
    gradient_to_rollout,
    kv_move_s,
    publication_s,
    reallocation_pays,
    relocate,
    rollout_to_gradient,
)
from libra.core.cost.training import TokenLoad, TrainLayout, rollout_memory, train_memory, train_step
from libra.errors import PreflightError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
A800 = load_hardware(CONFIGS / "hardware/a800-sxm4-80gb.toml")
A100 = load_hardware(CONFIGS / "hardware/a100-sxm4-80gb.toml")
H100 = load_hardware(CONFIGS / "hardware/h100-sxm5-80gb.toml")
QWEN4 = load_model(CONFIGS / "model/qwen3-4b.toml")
QWEN14 = load_model(CONFIGS / "model/qwen3-14b.toml")
QWEN30 = load_model(CONFIGS / "model/qwen3-30b-a3b.toml")
SMOL = load_model(CONFIGS / "model/smollm2-135m.toml")
ENGINES = {tp: EngineCost(A800, QWEN14, tp) for tp in (1, 2, 4, 8)}
ROOMY = structs.replace(A800, engine=structs.replace(A800.engine, memory_utilisation=0.9))
MOE = {tp: EngineCost(ROOMY, QWEN30, tp) for tp in (1, 2, 4, 8)}

degrees = st.sampled_from([1, 2, 4, 8])
batches = st.integers(1, 512)
contexts = st.integers(0, 2_000_000)


def bare(hardware: HardwareConfig, allreduce_us: float) -> HardwareConfig:
    """The hardware with one flat all-reduce and no host time: the devices' part of the formula alone."""
    flat = dict.fromkeys((2, 4, 8), (allreduce_us,) * 4)
    return structs.replace(hardware, allreduce_us=flat, engine=EngineTuning(row_s=0.0, fixed_s=0.0))


BARE = {tp: EngineCost(bare(A800, 8.0), QWEN14, tp) for tp in (1, 2, 4, 8)}


# --- decoding


@pytest.mark.parametrize(("tp", "ms"), [(1, 18.05), (2, 9.67), (4, 5.15), (8, 2.90)])
def test_a_decode_step_of_case_13_divides_by_tp_once(tp: int, ms: float) -> None:
    model = structs.replace(QWEN14, parameters=14_000_000_000)
    got = EngineCost(bare(A800, 8.0), model, tp).step_s(1, 16_384) * 1e3
    assert got == pytest.approx(ms, rel=0.01)


def test_the_devices_part_of_a_step_scales_exactly_with_tp() -> None:
    steps = {tp: EngineCost(bare(A800, 1e-9), QWEN14, tp).step_s(4, 16_384) for tp in (1, 2, 4, 8)}
    for tp in (2, 4, 8):
        assert steps[1] / steps[tp] == pytest.approx(tp, rel=1e-6)


@given(degrees, st.integers(0, 300), st.integers(1, 600), contexts)
def test_decode_in_closed_form_is_the_sum_of_its_steps(tp: int, tokens: int, batch: int, kv_tokens: int) -> None:
    engine = ENGINES[tp]
    steps = sum(engine.step_s(batch, kv_tokens + i * batch) for i in range(tokens))
    assert engine.decode_s(tokens, batch, kv_tokens) == pytest.approx(steps, rel=1e-9, abs=1e-12)


def test_the_closed_form_crosses_from_arithmetic_to_memory_bound() -> None:
    engine, batch = EngineCost(bare(A800, 8.0), QWEN14, 1), 256
    compute_s = batch * 2 * QWEN14.active / (A800.flops * A800.engine.flops_efficiency)
    assert engine.step_s(batch, 0) == pytest.approx(compute_s)
    assert engine.step_s(batch, 1_000_000) > 2 * compute_s
    steps = sum(engine.step_s(batch, i * batch) for i in range(1200))
    assert engine.decode_s(1200, batch, 0) == pytest.approx(steps, rel=1e-9)


@given(degrees, batches, contexts, st.integers(0, 100_000))
def test_a_step_never_falls_with_context_or_rows(tp: int, batch: int, kv_tokens: int, more: int) -> None:
    for engine in (ENGINES[tp], MOE[tp]):
        assert 0 < engine.step_s(batch, kv_tokens) <= engine.step_s(batch, kv_tokens + more)
        assert engine.step_s(batch, kv_tokens) <= engine.step_s(batch + 1, kv_tokens)


@given(batches, contexts)
def test_a_memory_bound_step_never_grows_with_tp(batch: int, kv_tokens: int) -> None:
    by_tp = [BARE[tp].step_s(batch, kv_tokens) for tp in (1, 2, 4, 8)]
    assert by_tp == sorted(by_tp, reverse=True)


def test_a_batch_beyond_the_table_costs_what_the_formula_says() -> None:
    engine = ENGINES[8]
    below, above = engine.step_s(TABLED_ROWS, 0), engine.step_s(TABLED_ROWS + 1, 0)
    assert below < above < below * 1.01


def test_few_rows_read_few_experts_and_many_rows_read_all() -> None:
    one, many = MOE[1].step_s(1, 0), MOE[1].step_s(512, 0)
    host = A800.engine.row_s
    bandwidth = A800.memory_bytes_per_s * A800.engine.bandwidth_efficiency
    assert one - host == pytest.approx(QWEN30.active * 2 / bandwidth, rel=0.03)
    assert many - 512 * host == pytest.approx(QWEN30.parameters * 2 / bandwidth, rel=0.01)


# --- prefill and turns


@given(degrees, st.integers(1, 20_000), st.integers(0, 20_000))
def test_a_cached_prefix_never_costs_more_than_computing_it(tp: int, new: int, cached: int) -> None:
    engine = ENGINES[tp]
    assert 0 < engine.prefill_s(new, cached) <= engine.prefill_s(new + cached) * (1 + 1e-12)
    assert engine.prefill_s(new, cached) <= engine.prefill_s(new + 1, cached)


def test_prefill_matches_the_standard_formula_on_one_device() -> None:
    n = 8192
    flops = 2 * QWEN14.parameters * n + 2 * 40 * n * n * 5120
    assert ENGINES[1].prefill_s(n) == pytest.approx(flops / (312e12 * A800.engine.flops_efficiency), rel=1e-9)


def test_a_turn_is_its_prefill_and_then_its_steps() -> None:
    engine = ENGINES[2]
    turn = engine.turn_s(500, 3000, 200, 7, 30_000)
    assert turn == pytest.approx(engine.prefill_s(500, 3000) + engine.decode_s(200, 8, 33_500))
    assert engine.prefill_s(0, 3000) == 0.0


# --- room


def test_kv_bytes_of_a_token_are_those_of_case_14() -> None:
    assert QWEN14.kv_bytes_per_token == 163_840


def test_capacity_grows_a_little_more_than_linearly_with_tp() -> None:
    room = {tp: e.capacity_tokens for tp, e in ENGINES.items()}
    weights_tokens = ENGINES[1].weights_bytes / ENGINES[1].kv_bytes_per_token
    for tp in (2, 4, 8):
        assert room[tp] > tp * room[1]
        # what is gained over linear growth is exactly the weights that are not held again
        assert room[tp] - tp * room[1] == pytest.approx((tp - 1) * weights_tokens, abs=tp)


def test_heads_held_twice_take_room_twice() -> None:
    assert MOE[8].kv_bytes_per_token == 2 * MOE[4].kv_bytes_per_token
    assert MOE[8].capacity_tokens < 2 * MOE[4].capacity_tokens


@pytest.mark.parametrize(
    ("hardware", "model", "tp", "message"),
    [
        (A800, QWEN30, 1, "TP 2 would fit"),
        (A800, QWEN14, 16, "devices_per_node = 8"),
        (A800, QWEN14, 5, r"inside a node: \[1, 2, 4, 8\]"),
        (A800, SMOL, 2, r"inside a node: \[1, 3\]"),
        (A800, QWEN14, 0, "1 or more"),
    ],
)
def test_an_engine_that_cannot_exist_is_refused_with_what_would(
    hardware: HardwareConfig, model: ModelShape, tp: int, message: str
) -> None:
    with pytest.raises(PreflightError, match=message):
        EngineCost(hardware, model, tp)


# --- all-reduce


def test_an_allreduce_takes_the_published_median_at_the_middle_of_its_class() -> None:
    for tp, row in A100.allreduce_us.items():
        for middle, median_us in zip(allreduce.CLASS_MIDDLES_BYTES, row, strict=True):
            assert allreduce.allreduce_s(A100, tp, middle) == pytest.approx(median_us * 1e-6)
    assert allreduce.allreduce_s(A100, 1, 1e9) == 0.0


@given(st.integers(1, 8), st.floats(0, 1e9), st.floats(0, 1e9))
def test_an_allreduce_never_gets_cheaper_with_bytes(tp: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    for hardware in (A800, A100, H100):
        assert allreduce.allreduce_s(hardware, tp, small) <= allreduce.allreduce_s(hardware, tp, large) * (1 + 1e-9)


def test_a_degree_between_two_rows_lies_between_them_and_one_beyond_the_table_is_refused() -> None:
    two, three, four = (allreduce.allreduce_s(A100, tp, 1000) for tp in (2, 3, 4))
    assert four < three < two
    with pytest.raises(PreflightError, match=r"add allreduce_us\.16"):
        allreduce.allreduce_s(A100, 16, 1000)


# --- a batch on one engine


def test_a_batch_that_fits_is_its_prefill_and_steps() -> None:
    engine = ENGINES[8]
    got = run_batch(engine, [100, 100, 100], prompt_tokens=50)
    assert got.preemptions == 0
    assert got.decode_steps == 100
    assert got.makespan_s == pytest.approx(3 * engine.prefill_s(50) + engine.decode_s(100, 3, 150))


def test_a_batch_beyond_the_room_is_preempted_and_recomputed() -> None:
    engine = ENGINES[1]
    length = engine.capacity_tokens // 2
    got = run_batch(engine, [length] * 4)
    assert got.preemptions > 0
    assert got.recomputed_tokens > 0
    room = run_batch(EngineCost(ROOMY, QWEN14, 1), [length] * 4)
    assert room.preemptions == 0
    assert got.makespan_s > room.makespan_s


@settings(max_examples=50)
@given(st.lists(st.integers(0, 40_000), max_size=40), st.integers(0, 2000), st.integers(1, 64))
def test_a_batch_always_ends_and_never_beats_its_longest_sequence(outputs: list[int], prompt: int, rows: int) -> None:
    engine = ENGINES[1]
    got = run_batch(engine, outputs, prompt_tokens=prompt, max_batch=rows)
    assert got.output_tokens == sum(outputs)
    assert got.decode_steps >= max(outputs, default=0)
    assert got.makespan_s >= engine.decode_s(max(outputs, default=0), 1, prompt) * (1 - 1e-9)


def test_a_sequence_longer_than_the_room_is_refused() -> None:
    with pytest.raises(PreflightError, match="room of 42114"):
        run_batch(ENGINES[1], [50_000])
    with pytest.raises(PreflightError, match="0 or more"):
        run_batch(ENGINES[1], [-1])


# --- moves


def test_a_published_kv_move_fits_its_bounds() -> None:
    assert 0.2 < kv_move_s(A800, QWEN14, 40_960, 1, 1, same_node=True) < 0.330
    assert 0.4 < kv_move_s(A800, QWEN14, 40_960, 1, 1, same_node=False) <= 0.733
    assert kv_move_s(A800, QWEN14, 0, 1, 1, same_node=True) == 0.0


def test_long_contexts_are_moved_and_short_ones_recomputed_over_a_slow_link() -> None:
    assert relocate(ENGINES[1], ENGINES[2], 30_000, same_node=True).way == "move"
    slow = structs.replace(A800, port_bytes_per_s=1e8)
    engine = EngineCost(slow, QWEN14, 2)
    across = relocate(engine, engine, 2000, same_node=False)
    assert across.way == "recompute"
    assert across.seconds == across.recompute_s == engine.prefill_s(2000) < across.move_s


def test_publication_waits_for_the_narrowest_link() -> None:
    one = publication_s(A800, QWEN14, trainer_devices=8, engines=1, tp=8)
    many = publication_s(A800, QWEN14, trainer_devices=8, engines=10, tp=8)
    port_s = QWEN14.parameters * 2 / (A800.port_bytes_per_s * A800.port_efficiency)
    assert many - one == pytest.approx(9 * port_s)
    assert publication_s(A800, QWEN14, 8, 0, 1) == 0.0


def test_transitions_are_the_published_ones_and_pay_only_over_a_long_enough_horizon() -> None:
    assert rollout_to_gradient(A800).total_s == pytest.approx(3.6 + 4.4)
    assert gradient_to_rollout(A800).total_s == pytest.approx(10.8)
    assert not reallocation_pays(20.0, 16.0, 5, 30.0)  # case 17
    assert reallocation_pays(20.0, 16.0, 20, 30.0)


# --- training and memory


def test_training_flops_are_6pt_and_8pt_with_recompute() -> None:
    hardware = structs.replace(A800, training=structs.replace(A800.training, sequence_tokens=0.0))
    load = TokenLoad.of([1000] * 8)
    plain = train_step(hardware, QWEN14, TrainLayout(devices=8), load)
    again = train_step(hardware, QWEN14, TrainLayout(devices=8, recompute=True), load)
    assert plain.dense_s == pytest.approx(6 * QWEN14.parameters * 8000 / (8 * 312e12 * 0.4))
    assert again.total_s / plain.total_s == pytest.approx(8 / 6)


def test_sparse_training_pays_for_active_parameters_and_keeps_state_for_all() -> None:
    load, layout = TokenLoad.of([4096] * 16), TrainLayout(devices=16)
    moe, dense = (train_step(A800, m, layout, load).dense_s for m in (QWEN30, QWEN14))
    assert moe / dense == pytest.approx(QWEN30.active / QWEN14.active)
    assert train_memory(A800, QWEN30, layout, 4096).state_bytes == 16 * QWEN30.parameters / 16


def test_a_pipeline_adds_its_bubble_to_the_work() -> None:
    load = TokenLoad.of([4096] * 64)
    layout = TrainLayout(devices=8, pp=4, micro_batches=9)
    cost = train_step(A800, QWEN14, layout, load)
    assert layout.bubble == pytest.approx(3 / 12)
    assert cost.bubble_s / cost.total_s == pytest.approx(layout.bubble)
    flat = train_step(A800, QWEN14, TrainLayout(devices=8), load)
    assert cost.total_s == pytest.approx(flat.total_s / (1 - layout.bubble))


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=20), st.integers(1, 1000), st.booleans())
def test_training_never_gets_cheaper_with_tokens(lengths: list[int], more: int, recompute: bool) -> None:
    layout = TrainLayout(devices=8, tp=2, micro_batches=2, recompute=recompute)
    less = train_step(A800, QWEN14, layout, TokenLoad.of(lengths))
    longer = train_step(A800, QWEN14, layout, TokenLoad.of([lengths[0] + more, *lengths[1:]]))
    assert 0 < less.total_s < longer.total_s


def test_recompute_trades_memory_for_seconds() -> None:
    keep = train_memory(A800, QWEN14, TrainLayout(devices=32), 8192)
    again = train_memory(A800, QWEN14, TrainLayout(devices=32, recompute=True), 8192)
    assert again.activation_bytes < keep.activation_bytes / 5
    assert again.fits
    assert again.state_bytes == keep.state_bytes == 16 * QWEN14.parameters / 32


def test_the_memory_of_an_engine_adds_up_to_what_it_may_use() -> None:
    memory = rollout_memory(ENGINES[4])
    allowed = A800.engine.memory_utilisation * A800.memory_bytes
    assert memory.weights_bytes + memory.workspace_bytes + memory.kv_bytes == pytest.approx(allowed, abs=163_840)


def test_a_layout_that_does_not_divide_is_refused_with_every_reason() -> None:
    with pytest.raises(PreflightError) as caught:
        train_step(A800, QWEN14, TrainLayout(devices=10, tp=3, pp=7), TokenLoad.of([10]))
    assert len(caught.value.problems) == 3
