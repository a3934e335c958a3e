"""Whole simulated runs: the live job's vocabulary, nothing lost, nothing exceeded, the same again for the same seed."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_parts import last, one_engine, small, turn, write

from libra.config import Config
from libra.core import commands as c
from libra.core import events as e
from libra.core.cost import EngineCost
from libra.sim.plan import plan
from libra.sim.shell import Simulation, simulate
from libra.telemetry.journal import DIRECTORY, Head, JournalWriter
from libra.telemetry.replay import Answers, check
from libra.telemetry.summary import Summary


def watched(config: Config) -> tuple[Simulation, list[e.AnyEvent], list[c.Command]]:
    events: list[e.AnyEvent] = []
    commands: list[c.Command] = []

    def watch(event: e.AnyEvent, given: list[c.Command]) -> None:
        events.append(event)
        commands.extend(given)

    simulation = Simulation(plan(config), watch)
    simulation.run()
    return simulation, events, commands


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    one, two, other = (watched(small(run__seed=seed)) for seed in (3, 3, 4))
    assert one[1:] == two[1:]
    assert one[0].report() == two[0].report()
    assert one[1] != other[1]


def test_the_report_says_all_that_a_summary_says_and_more() -> None:
    report = msgspec.to_builtins(simulate(small()))
    assert set(Summary.__struct_fields__) < set(report)
    assert report["ok"]
    assert report["trajectories"] == 8
    assert {"rollout", "trainer", "tp1", "tp2", "tp4", "tp8"} == set(report["utilisation"])
    assert all(0 <= share <= 1 for share in report["utilisation"].values())
    assert 0 < report["time_to_90_s"] <= report["last_finished_s"] <= report["makespan_s"] + 1e-9
    assert report["makespan_over_bound"] >= 1


@pytest.mark.parametrize("mode", ["async", "one-step-off", "sync"])
def test_a_simulated_journal_replays_and_every_answer_answers_a_command(mode: str, tmp_path: Path) -> None:
    prepared = plan(small(run__mode=mode, run__steps=3, eval__tasks=2, simulation__train=False))
    with JournalWriter(tmp_path / DIRECTORY, Head.of(prepared.config, "x")) as journal:
        answers = Answers()
        wrong: list[str] = []

        def watch(event: e.AnyEvent, commands: list[c.Command]) -> None:
            journal.event(event)
            journal.commands(commands)
            wrong.append(answers.answered(event) if isinstance(event, e.Answer) else "")
            wrong.append(answers.issued(commands))

        Simulation(prepared, watch).run()
    assert set(wrong) == {""}
    report = check(tmp_path)
    assert report.ok, report.problem
    assert report.events > 100


def test_every_token_of_the_workload_is_sampled_once() -> None:
    simulation, events, commands = watched(small(run__mode="async", run__steps=4))
    told = Counter[int]()
    for x in events:
        if isinstance(x, e.TurnGenerated):
            told[x.traj] += x.tokens
    source = simulation.plan.source
    wanted = {
        x.traj: source.trajectory(x.kind, x.prompt, x.sample, x.prompt // 2).sampled_tokens
        for x in commands
        if isinstance(x, c.OpenTrajectory)
    }
    assert told == wanted
    ended = {x.traj: x.loss_tokens for x in events if isinstance(x, e.EpisodeEnded)}
    assert ended == wanted


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from(["async", "one-step-off", "sync"]),
    lag=st.integers(1, 3),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["search", "math"]),
    over=st.sampled_from(["overrun", "continue"]),
    turn_tokens=st.sampled_from([64, 1024, 8192]),
)
def test_no_run_breaks_the_lag_or_the_room(mode, lag, seed, kind, over, turn_tokens) -> None:
    """The shell itself checks room, batch and lag, token by token; here that it ends, and that the core says so too."""
    config = small(
        run__mode=mode, run__steps=4, run__seed=seed, rollout__max_lag=lag if mode == "async" else None,
        env__kind=kind, env__over_cap=over, env__turn_tokens=turn_tokens,
    )  # fmt: skip
    report = simulate(config)
    assert report.ok
    assert report.trajectories == 32
    assert report.lag_max is None or report.lag_max <= config.max_lag
    assert report.makespan_s >= report.bound_s * (1 - 1e-9)
    if over == "continue":
        assert report.kv_preemptions == 0


def test_one_trajectory_alone_takes_its_closed_form_time(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", (turn(300, observed=200, tool_s=2.5), last(50)))
    config = one_engine(small(rollout__groups_per_batch=1, rollout__samples_per_group=2, env__trace=str(trace)))
    config = msgspec.structs.replace(config, bucket=(msgspec.structs.replace(config.bucket[0], max_batch=1),))
    assert config.cost is not None
    cost = EngineCost(config.cost.hardware, config.cost.model, 1)
    first = cost.prefill_s(500) + cost.decode_s(300, 1, 500)
    second = cost.prefill_s(200, 800) + cost.decode_s(50, 1, 1000)
    _, events, _ = watched(config)
    generated = [x.t for x in events if isinstance(x, e.TurnGenerated) and x.traj == 0]
    assert generated[0] == pytest.approx(first)
    # its sibling runs while its tool does; then it has the engine for itself
    assert generated[1] == pytest.approx(max(2 * first, first + 2.5) + second)


def test_two_turns_on_one_engine_share_its_steps(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", (last(100),), (last(300),))
    config = one_engine(small(rollout__groups_per_batch=1, rollout__samples_per_group=2, env__trace=str(trace)))
    assert config.cost is not None
    cost = EngineCost(config.cost.hardware, config.cost.model, 1)
    _, events, _ = watched(config)
    times = {x.traj: x.t for x in events if isinstance(x, e.TurnGenerated)}
    together = 2 * cost.prefill_s(500) + cost.decode_s(100, 2, 1000)
    assert times[0] == pytest.approx(together)
    assert times[1] == pytest.approx(together + cost.decode_s(200, 1, 600))


def test_turns_that_outgrow_their_reservation_are_preempted_and_computed_again(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", *[(last(3000),)] * 4)
    config = small(rollout__groups_per_batch=1, env__trace=str(trace), env__turn_tokens=1000)
    config = one_engine(config, kv_tokens=6000)
    report = simulate(config)
    assert report.ok
    assert report.tokens_sampled == 12_000
    assert report.kv_preemptions > 0
    assert report.recomputed_tokens > 0
    honest = simulate(msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, turn_tokens=3000)))
    assert honest.kv_preemptions == 0
    assert honest.makespan_s > report.makespan_s


def test_a_turn_that_outgrows_its_engine_goes_on_where_there_is_room(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", *[(last(3000),)] * 2)
    config = small(
        rollout__groups_per_batch=1, rollout__samples_per_group=2, env__trace=str(trace), env__turn_tokens=500
    )
    tiny = msgspec.structs.replace(config.bucket[0], kv_tokens=2000, max_batch=1)
    config = msgspec.structs.replace(config, bucket=(tiny, config.bucket[1]))
    simulation, events, _ = watched(config)
    assert simulation.report().ok
    assert simulation.report().tokens_sampled == 6000
    assert any(isinstance(x, e.TurnGenerated) and x.finish == "cut" for x in events)
    assert not any(isinstance(x, e.ToolReturned) for x in events), "it is still the same turn"


def test_publication_swaps_weights_between_steps_and_prefixes_of_old_ones_are_lost() -> None:
    simulation, events, commands = watched(small(run__mode="async", run__steps=8))
    ordered = {x.seq: x for x in commands if isinstance(x, c.InstallWeights)}
    done = [x for x in events if isinstance(x, e.WeightsInstalled)]
    assert len({x.version for x in done}) >= 3
    assert all(x.version == ordered[x.cmd].version for x in done)
    mixed = [x for x in events if isinstance(x, e.TurnGenerated) and x.oldest < x.newest]
    assert mixed, "some turn runs through a publication"
    assert simulation.report().reused_tokens > 0


def test_training_takes_its_time_and_a_batch_alone_takes_none() -> None:
    trained, alone = (simulate(small(run__steps=2, allocation__trainer=8, simulation__train=t)) for t in (True, False))
    assert trained.trainer_busy_s > 0 == alone.trainer_busy_s
    assert trained.seconds > alone.seconds
    assert trained.stage_s["training"] > 0


def test_the_oracle_of_a_policy_is_the_truth() -> None:
    from libra.core.coordinator import Core

    seen: list[int] = []

    class Curious(Core):
        def __init__(self, config: Config, oracle, learned) -> None:
            super().__init__(config)
            self.oracle = oracle

        def handle(self, event: e.AnyEvent) -> list[c.Command]:
            if isinstance(event, e.TurnReady) and event.traj == 0:
                seen.append(self.oracle(0))
            return super().handle(event)

    simulation = Simulation(plan(small()), make_core=Curious)
    simulation.run()
    assert seen == [simulation.plan.source.trajectory("train", 0, 0, 0).sampled_tokens]
