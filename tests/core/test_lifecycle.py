"""Ranks, roles and weights: what the core does about absence, death, standstill and silence."""

from msgspec import structs
from virtual_shell import VirtualShell

from libra.config.schema import BucketConfig, Config, DeadlineConfig, EvalConfig, RolloutConfig, RunConfig
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core

CONFIG = Config(
    run=RunConfig(steps=3),
    bucket=(BucketConfig(engines=2),),
    rollout=RolloutConfig(groups_per_batch=2, samples_per_group=2),
    eval=EvalConfig(tasks=0),
    deadline=DeadlineConfig(role_restarts=1),
)
TRAINERS, ENGINES = (1, 2), (3, 4)


def joined() -> tuple[Core, dict[int, int]]:
    """A core whose ranks have all joined, and the StartRole of each."""
    core = Core(CONFIG)
    core.handle(e.RunStarted(0.0))
    starts = {}
    for rank in (*TRAINERS, *ENGINES):
        for command in core.handle(e.RankJoined(0.1, rank, "host", "cpu")):
            if isinstance(command, c.StartRole):
                starts[command.rank] = command.seq
    return core, starts


def of(kind: type, commands: list[c.Command]) -> list[c.Command]:
    return [x for x in commands if isinstance(x, kind)]


def warm() -> tuple[Core, dict[int, int]]:
    """A core with version 0 held by all core ranks and engines up, not yet installed."""
    core, starts = joined()
    out: list[c.Command] = []
    for rank, start in starts.items():
        out += core.handle(e.RoleReady(1.0, start, rank))
    (form,) = of(c.FormGroup, out)
    for rank in TRAINERS:
        out = core.handle(e.GroupFormed(2.0, form.seq, rank))
    (warm_start,) = of(c.WarmStart, out)
    for rank in TRAINERS:
        core.handle(e.WarmStarted(3.0, warm_start.seq, rank, False, 0.5, 1.0))
    return core, starts


def hold(core: Core, version: int, t: float) -> list[c.Command]:
    return [x for rank in TRAINERS for x in core.handle(e.WeightsHeld(t, rank, version))]


def test_a_unit_starts_once_all_of_its_ranks_are_here() -> None:
    core = Core(CONFIG)
    core.handle(e.RunStarted(0.0))
    got = [of(c.StartRole, core.handle(e.RankJoined(0.1, rank, "h", "cpu"))) for rank in (4, 1, 3, 2)]
    assert [[(x.rank, x.role, x.unit) for x in starts] for starts in got] == [
        [(4, "rollout", 1)],
        [],
        [(3, "rollout", 0)],
        [(1, "trainer", -1), (2, "trainer", -1)],
    ]


def test_the_core_group_is_formed_by_its_members_once_all_have_said_hello() -> None:
    core, starts = joined()
    assert not of(c.FormGroup, core.handle(e.RoleReady(1.0, starts[1], 1)))
    (form,) = of(c.FormGroup, core.handle(e.RoleReady(1.1, starts[2], 2)))
    assert form.members == TRAINERS


def test_ranks_that_never_join_end_the_run_with_their_numbers() -> None:
    core = Core(CONFIG)
    (timer,) = core.handle(e.RunStarted(0.0))
    for rank in (1, 3):
        core.handle(e.RankJoined(0.1, rank, "h", "cpu"))
    (end,) = of(c.FinishRun, core.handle(e.TimerFired(60.0, timer.seq)))
    assert not end.ok
    assert "ranks 2, 4 did not join within 60 s" in end.reason


def test_a_trainer_that_ends_ends_the_run_and_says_why() -> None:
    core, starts = joined()
    (end,) = of(c.FinishRun, core.handle(e.RoleExited(1.0, 2, starts[2], 1, "ran out of memory")))
    assert not end.ok
    assert "core rank 2 ended: ran out of memory" in end.reason


def test_a_role_that_does_not_come_up_is_stopped_and_started_again() -> None:
    core = Core(CONFIG)
    core.handle(e.RunStarted(0.0))
    start, timer = core.handle(e.RankJoined(0.1, 3, "h", "cpu"))
    (stop,) = of(c.StopRole, core.handle(e.TimerFired(90.1, timer.seq)))
    assert (stop.rank, stop.start) == (3, start.seq)
    (again,) = of(c.StartRole, core.handle(e.RoleExited(90.2, 3, start.seq, -9, "killed")))
    assert again.seq > start.seq


def test_a_vllm_engine_has_minutes_to_be_made_and_is_then_started_again() -> None:
    core = Core(structs.replace(CONFIG, bucket=(BucketConfig(engine="vllm"),)))
    core.handle(e.RunStarted(0.0))
    start, _ = core.handle(e.RankJoined(0.1, 3, "h", "cpu"))
    form, timer = core.handle(e.RoleReady(1.0, start.seq, 3))
    assert isinstance(form, c.FormGroup)
    assert isinstance(timer, c.SetTimer)
    assert timer.at == 1.0 + CONFIG.deadline.engine_start_s
    out = core.handle(e.TimerFired(601.0, timer.seq))
    assert of(c.StopRole, out)
    assert any("needs a larger deadline.engine_start_s" in x.what for x in of(c.Report, out))


def test_an_engine_is_restarted_so_often_and_then_given_up_and_the_run_goes_on() -> None:
    core, starts = joined()
    out = core.handle(e.RoleExited(1.0, 3, starts[3], -11, "crashed"))
    (again,) = of(c.StartRole, out)
    out = core.handle(e.RoleExited(2.0, 3, again.seq, -11, "crashed"))
    assert not of(c.StartRole, out)
    assert any("given up" in x.what for x in of(c.Report, out))
    assert not of(c.FinishRun, out)
    (end,) = of(c.FinishRun, core.handle(e.RankLost(3.0, 4, "no heartbeat")))
    assert "no engine is left" in end.reason


def test_word_of_an_earlier_process_is_ignored() -> None:
    core, starts = joined()
    core.handle(e.RoleExited(1.0, 3, starts[3], -11, "crashed"))
    assert core.handle(e.RoleReady(1.1, starts[3], 3)) == []
    assert core.handle(e.RoleExited(1.2, 3, starts[3], -11, "crashed")) == []
    assert core.fleet.engines[0].state == "starting"


def test_a_version_exists_only_once_all_core_ranks_hold_it() -> None:
    core, _ = warm()
    assert not of(c.InstallWeights, core.handle(e.WeightsHeld(3.1, 1, 0)))
    assert [x.unit for x in of(c.InstallWeights, core.handle(e.WeightsHeld(3.2, 2, 0)))] == [0, 1]


def test_a_slow_engine_skips_to_the_newest_version_and_delays_nobody() -> None:
    core, _ = warm()
    fast, slow = of(c.InstallWeights, hold(core, 0, 3.1))
    core.handle(e.WeightsInstalled(3.2, fast.seq, 3, 0, 0.1))
    (fast,) = of(c.InstallWeights, hold(core, 1, 4.0))
    core.handle(e.WeightsInstalled(4.1, fast.seq, 3, 1, 0.1))
    (fast,) = of(c.InstallWeights, hold(core, 2, 5.0))
    assert fast.unit == 0
    (late,) = of(c.InstallWeights, core.handle(e.WeightsInstalled(5.1, slow.seq, 4, 0, 2.0)))
    assert (late.unit, late.version) == (1, 2)


def test_a_silent_engine_is_reported_with_a_reason_and_replaced() -> None:
    core, starts = warm()
    out = hold(core, 0, 3.1)
    silent = of(c.InstallWeights, out)[1]
    timer = out[out.index(silent) + 1]
    assert isinstance(timer, c.SetTimer)
    assert timer.at == 3.1 + 25.0
    out = core.handle(e.TimerFired(timer.at, timer.seq))
    assert any("engine 1 has not answered about version 0 for 25 s" in x.what for x in of(c.Report, out))
    assert [(x.rank, x.start) for x in of(c.StopRole, out)] == [(4, starts[4])]


def test_an_engine_that_fails_to_install_three_times_is_replaced() -> None:
    core, starts = warm()
    order = of(c.InstallWeights, hold(core, 0, 3.1))[0]
    for attempt in range(3):
        out = core.handle(e.WeightsFailed(4.0 + attempt, order.seq, 3, 0, "digest mismatch"))
        stops = of(c.StopRole, out)
        assert len(stops) == (attempt == 2)
        if not stops:
            (order,) = of(c.InstallWeights, out)
    assert stops[0].start == starts[3]


def test_a_standing_role_is_ended() -> None:
    core, starts = joined()
    (stop,) = of(c.StopRole, core.handle(e.RoleStalled(70.0, 4, starts[4], "no progress for 60 s")))
    assert stop.start == starts[4]


def test_a_stop_at_once_after_the_loss_of_a_rank_is_a_failure() -> None:
    """torchrun ends the other ranks when one has died: the run must not be told as stopped in good order."""
    core, _ = joined()
    core.handle(e.RankLost(1.0, 3, "its link closed"))
    (end,) = of(c.FinishRun, core.handle(e.StopRequested(1.2, True, "SIGTERM")))
    assert not end.ok
    assert "lost rank 3" in end.reason


def test_turns_of_a_dead_engine_are_generated_elsewhere_at_once() -> None:
    shell = VirtualShell(CONFIG, seed=3, kill_rate=0.02).run()
    assert shell.end is not None
    generated = [x for x in shell.commands if isinstance(x, c.Generate)]
    assert len(generated) > len({(x.traj, x.seq) for x in generated if x.engine == 0})
    assert any("is down: crashed" in x.what for x in shell.commands if isinstance(x, c.Report))
