"""One engine in virtual time against the cost model's own batch, which is a loop of its own; and what it has beside that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_parts import BATCH

from libra.core.cost import EngineCost
from libra.core.cost.batch import run_batch
from libra.sim.machine import NEVER, Machine, Row

assert BATCH.cost is not None
COST = {tp: EngineCost(BATCH.cost.hardware, BATCH.cost.model, tp) for tp in (1, 8)}


def run(machine: Machine, arrivals: list[tuple[float, Row]]) -> dict[int, float]:
    """Command -> when its row was finished or given back; the shell's part of the bargain, in a loop."""
    over: dict[int, float] = {}
    arrivals = sorted(arrivals, key=lambda a: a[0])
    while arrivals or machine.until < NEVER:
        if arrivals and arrivals[0][0] <= machine.until:
            now, row = arrivals.pop(0)
            machine.submit(row, now)
            continue
        now = machine.until
        over |= {row.cmd: now for row in machine.settle(now)}
        assert 0 <= machine.kv <= machine.room
        machine.proceed(now)
    assert not machine.rows
    assert machine.kv == 0
    return over


def fresh(tp: int = 1, version: int = 0) -> Machine:
    machine = Machine(0, COST[tp], COST[tp].capacity_tokens)
    machine.version = version
    return machine


@given(
    tp=st.sampled_from([1, 8]),
    prompt=st.integers(1, 4000),
    lengths=st.lists(st.integers(1, 30_000), min_size=1, max_size=30),
)
def test_a_batch_takes_as_long_as_the_cost_model_says(tp: int, prompt: int, lengths: list[int]) -> None:
    expected = run_batch(COST[tp], lengths, prompt)
    machine = fresh(tp)
    over = run(machine, [(0.0, Row(i, i, prompt, n, 0.0)) for i, n in enumerate(lengths)])
    assert len(over) == len(lengths)
    assert max(over.values()) == pytest.approx(expected.makespan_s)
    assert machine.preemptions == expected.preemptions
    assert machine.recomputed_tokens == expected.recomputed_tokens
    assert machine.decode_s + machine.prefill_s == pytest.approx(expected.makespan_s)


@given(at=st.floats(0.0, 60.0), tokens=st.integers(1, 2000))
def test_an_arrival_waits_for_the_end_of_the_step_under_way(at: float, tokens: int) -> None:
    cost = COST[1]
    alone = cost.prefill_s(1000) + cost.decode_s(2000, 1, 1000)
    over = run(fresh(), [(0.0, Row(0, 0, 1000, 2000, 0.0)), (at, Row(1, 1, 500, tokens, at))])
    if at >= alone:
        assert over[0] == pytest.approx(alone)
        assert over[1] == pytest.approx(at + cost.prefill_s(500) + cost.decode_s(tokens, 1, 500))
        return
    least = cost.prefill_s(500) + cost.decode_s(tokens, 1, 500)
    step = cost.step_s(2, 10_000)
    assert alone <= over[0] <= alone + cost.prefill_s(500) + min(tokens, 2000) * (step - cost.step_s(1, 0))
    assert over[1] >= at + least - 1e-9
    assert over[1] <= max(at, cost.prefill_s(1000)) + step + cost.prefill_s(500) + tokens * step


def test_a_prefix_is_reused_until_the_weights_change_or_its_room_is_needed() -> None:
    cost = COST[1]

    def second_turn(machine: Machine) -> float:
        start = 1000.0
        return run(machine, [(start, Row(2, 7, 1300, 1, start))])[2] - start

    def first_turn() -> Machine:
        machine = fresh()
        run(machine, [(0.0, Row(1, 7, 1000, 200, 0.0))])
        return machine

    one_step = cost.step_s(1, 1300)
    assert second_turn(first_turn()) == pytest.approx(cost.prefill_s(100, 1200) + one_step)
    swapped = first_turn()
    swapped.version = 1
    assert second_turn(swapped) == pytest.approx(cost.prefill_s(1300) + one_step)
    crowded = first_turn()
    run(crowded, [(100.0, Row(9, 9, 41_500, 10, 100.0))])
    assert second_turn(crowded) == pytest.approx(cost.prefill_s(1300) + one_step)
    forgotten = first_turn()
    forgotten.forget(7)
    assert second_turn(forgotten) == pytest.approx(cost.prefill_s(1300) + one_step)


@pytest.mark.parametrize("at", [0.0, 0.01, 5.0])
def test_a_cancelled_turn_leaves_at_the_end_of_the_step(at: float) -> None:
    machine = fresh()
    machine.submit(Row(1, 1, 1000, 2000, 0.0), 0.0)
    while machine.until <= at:
        now = machine.until
        machine.settle(now)
        machine.proceed(now)
    machine.cancel(1, 1, at)
    assert run(machine, []) == {}
    assert machine.state == "idle"


def test_a_cut_turn_comes_back_at_the_end_of_the_step_with_what_it_has() -> None:
    cost = COST[1]
    machine = fresh()
    row = Row(1, 7, 1000, 500, 0.0)
    machine.submit(row, 0.0)
    machine.proceed(machine.until)
    machine.settle(machine.until)
    machine.proceed(machine.until)
    joined = cost.prefill_s(1000)
    at = joined + cost.decode_s(100, 1, 1000) - 1e-6  # within the hundredth step
    assert machine.sampled(1, at) == 99
    machine.cut(1, at)
    assert machine.until == pytest.approx(joined + cost.decode_s(100, 1, 1000))
    assert [(r.cmd, r.sampled, r.left, r.cut) for r in machine.settle(machine.until)] == [(1, 100, 400, True)]
    assert machine.kv == 0
    again = Row(2, 7, 1100, 1, machine.until)
    machine.submit(again, machine.until)
    machine.proceed(machine.until)
    assert machine.reused_tokens == 1100, "its prefix is still there"


def test_a_queued_turn_is_cut_without_tokens_and_one_that_has_ended_is_not() -> None:
    machine = fresh()
    full = machine.room - 100
    machine.submit(Row(1, 1, full, 50, 0.0), 0.0)
    machine.proceed(0.0)
    machine.settle(machine.until)
    machine.proceed(machine.until)
    machine.submit(Row(2, 2, 1000, 50, 1.0), 1.0)
    machine.cut(2, 1.0)
    machine.cut(99, 1.0)
    assert [(r.cmd, r.sampled, r.cut) for r in machine.settle(machine.until)] == [(2, 0, True)]
    machine.proceed(machine.until)
    (ended,) = machine.settle(machine.until)
    assert (ended.cmd, ended.cut) == (1, False)
