"""The price of an order: simulated from the live state, both ways alike but for the order; honest where it cannot be."""

import struct
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from libra.config.load import load
from libra.config.schema import Config
from libra.control.price import Price, Question
from libra.control.state import LiveState
from libra.controller.turns import Turns
from libra.core.commands import BatchConsumed
from libra.core.events import OrderGiven
from libra.core.orders import Allocate, Arrange, MoveRanks
from libra.sim.plan import plan
from libra.sim.shell import Simulation
from libra.sim.whatif import LEAST_ENDED, price

CONFIGS = Path(__file__).parents[2] / "configs"


@lru_cache
def live(orders: tuple[MoveRanks, ...] = ()) -> LiveState:
    """The state of `configs/emulated-8.toml` (two trainers, engines of ranks 3, 4, 5, 6 and 7+8) after four batches."""
    config = load(str(CONFIGS / "emulated-8.toml"), ["--run.steps=6", "--rollout.groups_per_batch=4", "--env.drift=1"])
    states: list[LiveState] = []
    simulation = Simulation(plan(config))
    turns, batches = Turns(simulation.core), 0

    def watch(event, commands) -> None:  # type: ignore[no-untyped-def]
        nonlocal batches
        turns.event(event)
        for command in commands:
            turns.command(command)
            batches += isinstance(command, BatchConsumed)
        if batches == 4 and not states:
            states.append(turns.state(event.t))

    simulation.watch(watch)
    simulation.run()
    return states[0]


def really(gradient: int) -> float:
    """Mean seconds of the batches after so many ranks were ordered to lend, in the very job that `live` is a state of."""
    config = load(str(CONFIGS / "emulated-8.toml"), ["--run.steps=20", "--rollout.groups_per_batch=4", "--env.drift=1"])
    simulation, ended = Simulation(plan(config)), list[float]()

    def watch(event, commands) -> None:  # type: ignore[no-untyped-def]
        for command in commands:
            if isinstance(command, BatchConsumed):
                ended.append(event.t)
                if len(ended) == 4:
                    simulation.tell(OrderGiven(event.t, "x", "ann", None, Allocate(gradient=gradient)))

    simulation.watch(watch)
    simulation.run()
    return (ended[-1] - ended[5]) / (len(ended) - 6)


@pytest.mark.parametrize("gradient", [1, 4])
def test_the_price_agrees_with_what_then_happens(gradient: int) -> None:
    told = price(live(), (Allocate(gradient=gradient),))
    assert told.valid
    assert told.transition_s > 0
    assert told.throughput_ratio == pytest.approx(really(0) / really(gradient), rel=0.2)


def test_no_order_changes_nothing() -> None:
    same = price(live(), ())
    assert same.throughput_ratio == 1.0
    assert same.transition_s == 0.0


def test_a_price_is_the_same_each_time_but_for_the_seconds_it_took() -> None:
    order = (MoveRanks((3,), "gradient"),)
    first, second = price(live(), order), price(live(), order)
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_what_the_core_would_refuse_has_no_price_but_its_reason() -> None:
    refused = price(live(), (MoveRanks((7,), "gradient"),))
    assert not refused.valid
    assert "all of them move or none" in refused.reason


def test_ranks_that_were_put_aside_are_so_in_the_simulation_too() -> None:
    state = live()
    aside = replace(state, units=tuple(u for u in state.units if u.ranks != (3,)), spare=(3,))
    back = price(aside, (MoveRanks((3,), "rollout", "tp1"),))
    assert back.valid, back.reason
    assert back.throughput_ratio is not None
    assert back.throughput_ratio > 1.0


@pytest.mark.parametrize("lack", ["cost", "ended"])
def test_without_costs_or_history_it_scales_by_ranks_and_says_so(lack: str) -> None:
    state = live()
    if lack == "cost":
        config = replace(msgspec.json.decode(state.config, type=Config), cost=None)
        state = replace(state, config=msgspec.json.encode(config))
    else:
        state = replace(state, ended=state.ended[: LEAST_ENDED - 1])
    state = replace(state, train_s=10.0, rollout_s=60.0)
    scaled = price(state, (Arrange((MoveRanks((3,), "gradient"), MoveRanks((4,), "gradient"))),))
    assert scaled.rollout_s == pytest.approx(60.0 * 6 / 4)
    assert scaled.train_s == pytest.approx(10.0 * 2 / 4)
    assert scaled.throughput_ratio == pytest.approx(4 / 6, abs=1e-3)
    assert "a guess by the number of ranks alone" in scaled.notes[0]
    assert scaled.transition_s is None, "nothing is known of it"


@pytest.mark.process
def test_the_worker_answers_what_the_function_does() -> None:
    order = (MoveRanks((3,), "gradient"),)
    question = msgspec.msgpack.encode(Question(live(), order))
    done = subprocess.run(
        [sys.executable, "-m", "libra.sim.whatif"],
        input=struct.pack(">I", len(question)) + question,
        capture_output=True,
        timeout=60,
        check=True,
    )
    (length,) = struct.unpack(">I", done.stdout[:4])
    answer = msgspec.msgpack.decode(done.stdout[4 : 4 + length], type=Price)
    assert replace(answer, seconds=0.0) == replace(price(live(), order), seconds=0.0)
