"""Machines that differ from the cost model: the core is not told, and its correction finds out."""

import msgspec
import pytest
from simulated_parts import small

from libra.config import preflight
from libra.config.schema import Config, TruthConfig
from libra.core import commands as c
from libra.core import events as e
from libra.errors import PreflightError
from libra.sim.plan import plan
from libra.sim.report import SimReport
from libra.sim.shell import Simulation


def config(policy: str = "causal", **truth: float) -> Config:
    return msgspec.structs.replace(
        small(run__steps=6, scheduler__policy=policy),
        truth=TruthConfig(**truth),  # type: ignore[arg-type]
    )


def run(config: Config) -> tuple[Simulation, SimReport, list[e.AnyEvent]]:
    events: list[e.AnyEvent] = []

    def watch(event: e.AnyEvent, _: object) -> None:
        events.append(event)

    simulation = Simulation(plan(config), watch)
    return simulation, simulation.run(), events


def test_the_core_is_never_told() -> None:
    simulation, report, _ = run(config(slowdown=1.5))
    assert simulation.core.config.truth == TruthConfig()
    assert {p.truth for p in report.pace.values()} == {1.5}


@pytest.mark.parametrize("slowdown", [0.5, 2.0])
def test_a_general_slowdown_is_learned(slowdown: float) -> None:
    """Against the same run without it: what a prediction leaves out stays in the factor either way."""
    plain, slow = (run(config("least_loaded", **t))[1] for t in ({}, {"slowdown": slowdown}))  # type: ignore[arg-type]
    for name, pace in slow.pace.items():
        known = min(1.0, pace.turns / 20)
        assert pace.factor / plain.pace[name].factor == pytest.approx(slowdown, rel=0.12 + 0.5 * (1 - known))
    most = max(slow.pace.values(), key=lambda p: p.turns)
    assert most.turns > 50
    assert most.error_after < most.error_before
    assert slow.makespan_s > plain.makespan_s if slowdown > 1 else slow.makespan_s < plain.makespan_s


def test_one_slow_engine_slows_its_turns() -> None:
    slow, _, events = run(config(slow_engine=0, slow_factor=4.0))
    pace = {m.id: m.pace for m in slow._machines.values()}
    assert pace[0] == 4.0
    assert {pace[i] for i in pace if i} == {1.0}
    assert any(isinstance(x, e.TurnGenerated) and x.engine == 0 for x in events)


def test_noisy_tools_take_what_the_truth_says_and_the_core_hears_it() -> None:
    _, plain_report, plain = run(config())
    _, noisy_report, noisy = run(config(tool_noise=0.8))
    told = [[x.seconds for x in events if isinstance(x, e.ToolReturned)] for events in (plain, noisy)]
    assert sorted(told[0]) != sorted(told[1])
    assert plain_report.trajectories == noisy_report.trajectories


def test_the_truth_is_the_same_whatever_is_decided() -> None:
    """Tool seconds belong to (prompt, sample, turn): both policies hear the same of each."""
    heard: list[dict[tuple[int, int, int], float]] = []
    for policy in ("causal", "least_loaded"):
        seconds: dict[tuple[int, int, int], float] = {}
        opened: dict[int, tuple[int, int]] = {}
        turns: dict[int, int] = {}

        def watch(event: e.AnyEvent, commands, seconds=seconds, opened=opened, turns=turns) -> None:  # type: ignore[no-untyped-def]
            if isinstance(event, e.ToolReturned):
                turns[event.traj] = turns.get(event.traj, 0) + 1
                seconds[(*opened[event.traj], turns[event.traj])] = event.seconds
            for x in commands:
                if isinstance(x, c.OpenTrajectory):
                    opened[x.traj] = (x.prompt, x.sample)

        Simulation(plan(config(policy, tool_noise=0.5, engine_spread=0.2, step_noise=0.2)), watch).run()
        heard.append(seconds)
    assert heard[0] == heard[1]
    assert len(heard[0]) > 50


def test_the_same_truth_gives_the_same_run() -> None:
    noisy = config(seed=3, engine_spread=0.2, step_noise=0.3, tool_noise=0.3)
    assert run(noisy)[2] == run(noisy)[2]


def test_a_slow_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PreflightError, match=r"truth.slow_engine: got 9, expected -1 \(none\) or an engine, 0 to 3"):
        plan(config(slow_engine=9))


def test_a_live_run_has_a_truth_of_its_own() -> None:
    with pytest.raises(PreflightError, match="truth: got a table, expected none"):
        preflight.check(Config(truth=TruthConfig(slowdown=2.0)), machine=False)
