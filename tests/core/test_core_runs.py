"""Whole runs of the core in virtual time, under random delays, failures and deaths."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_shell import VirtualShell

from libra.config.schema import BucketConfig, Config, DeadlineConfig, EvalConfig, RolloutConfig, RunConfig
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core

MODES = ("async", "one-step-off", "sync")


def small(mode: str = "async", steps: int = 6, room: int = 900, **rollout: object) -> Config:
    return Config(
        run=RunConfig(steps=steps, mode=mode),
        bucket=(BucketConfig(name="a", engines=2, max_batch=16, kv_tokens=room), BucketConfig(name="b", max_batch=4)),
        rollout=RolloutConfig(groups_per_batch=4, samples_per_group=4, **rollout),
        eval=EvalConfig(tasks=12),
    )


def batches(shell: VirtualShell) -> list[c.BatchConsumed]:
    return [x for x in shell.commands if isinstance(x, c.BatchConsumed)]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_consumes_its_batches_in_order_and_ends(mode: str) -> None:
    shell = VirtualShell(small(mode)).run()
    assert shell.end is not None
    assert shell.end.ok
    assert [b.batch for b in batches(shell)] == list(range(6))
    assert [x.kind for x in shell.commands if isinstance(x, c.Evaluated)] == ["eval_start", "eval_end"]
    assert all(b.groups == 4 and b.trajectories == 16 for b in batches(shell))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 10_000),
    fail=st.sampled_from([0.0, 0.1, 0.6]),
    kill=st.sampled_from([0.0, 0.003]),
    lag=st.integers(1, 4),
    room=st.sampled_from([60, 900]),
)
def test_no_delay_failure_or_death_breaks_a_run(
    mode: str, seed: int, fail: float, kill: float, lag: int, room: int
) -> None:
    """The lag holds, every batch is consumed once, nothing is left behind; the shell checks room and versions on the way."""
    config = small(mode, room=room, max_lag=lag if mode == "async" else None)
    shell = VirtualShell(config, seed, fail_rate=fail, kill_rate=kill).run()
    assert shell.end is not None
    consumed = batches(shell)
    assert all(b.lag <= config.max_lag for b in consumed)
    assert [b.batch for b in consumed] == list(range(len(consumed)))
    if shell.end.ok:
        assert len(consumed) == 6
        assert shell.core.rollout.stages() == {}
        assert shell.episodes == {}
        assert all(x.load.running == x.load.reserved_tokens == 0 for x in shell.core.fleet.engines.values())
    else:
        assert "no engine is left" in shell.end.reason


def test_a_run_whose_engines_all_die_for_good_ends_and_says_so() -> None:
    shell = VirtualShell(small(), seed=0, kill_rate=0.9).run()
    assert shell.end is not None
    assert not shell.end.ok
    assert "no engine is left" in shell.end.reason


@pytest.mark.parametrize("seed", range(3))
def test_the_same_events_give_the_same_commands(seed: int) -> None:
    shell = VirtualShell(small(), seed, fail_rate=0.1, kill_rate=0.001).run()
    again = Core(small())
    assert [command for event in shell.events for command in again.handle(event)] == shell.commands


def test_one_step_off_samples_a_batch_with_one_version() -> None:
    shell = VirtualShell(small("one-step-off", steps=8))
    slot_of: dict[int, int] = {}
    versions: dict[int, set[int]] = {}
    carry_out = shell.carry_out

    def watch(command: c.Command) -> None:
        if isinstance(command, c.OpenTrajectory) and command.kind == "train":
            slot_of[command.traj] = command.prompt // 4
        if isinstance(command, c.Generate) and command.traj in slot_of:
            versions.setdefault(slot_of[command.traj], set()).add(shell.engine_version[command.engine])
        carry_out(command)

    shell.carry_out = watch  # type: ignore[method-assign]
    shell.run()
    assert sorted(versions) == list(range(8))
    assert all(len(v) == 1 for v in versions.values())
    assert [min(versions[b]) for b in range(8)] == [0, 0, 1, 2, 3, 4, 5, 6]


def test_one_step_off_goes_on_when_all_engines_die_inside_a_batch() -> None:
    """An engine that starts afresh takes weights at once, although the others keep theirs until the batch is done."""
    shell = VirtualShell(small("one-step-off"))
    act, killed = shell.act, False

    def kill_all(command: c.Act) -> None:
        nonlocal killed
        if not killed and shell.core.admission.done == 2:
            killed = True
            for unit in list(shell.core.fleet.engines):
                shell.kill(unit)
        act(command)

    shell.act = kill_all  # type: ignore[method-assign]
    shell.run()
    assert killed
    assert shell.end is not None
    assert shell.end.ok


def test_sync_never_trains_on_an_old_token() -> None:
    assert {b.lag for b in batches(VirtualShell(small("sync", steps=8), seed=5).run())} == {0}


def test_failed_trajectories_are_retried_fresh_and_then_their_group_is_dropped() -> None:
    shell = VirtualShell(small(steps=4), seed=2, fail_rate=0.3).run()
    assert shell.end is not None
    assert shell.end.ok
    attempts = {x.attempt for x in shell.commands if isinstance(x, c.OpenTrajectory)}
    assert attempts == {0, 1}
    assert any(b.groups_trained < b.groups for b in batches(shell))
    assert all(b.trajectories <= 16 for b in batches(shell))


def test_a_run_where_nothing_carries_a_signal_skips_every_step_and_still_ends() -> None:
    """Skipped batches count as consumed; otherwise admission would stop for good after L of them."""
    shell = VirtualShell(small(), seed=1)
    shell.random.random = lambda: 0.9  # type: ignore[method-assign]  # every reward is 0
    shell.run()
    assert [b.trained for b in batches(shell)] == [False] * 6
    assert {b.version for b in batches(shell)} == {0}
    assert shell.count["OpenStep"] == 0


def test_overdue_groups_are_dropped_only_on_demand() -> None:
    def slow(shell: VirtualShell) -> VirtualShell:
        """Sample 0 of prompt 0 never gets its tool's answer."""
        act = shell.act
        shell.act = lambda command: None if command.traj in stuck else act(command)  # type: ignore[method-assign]
        carry_out = shell.carry_out

        def watch(command: c.Command) -> None:
            if isinstance(command, c.OpenTrajectory) and command.kind == "train" and not stuck:
                stuck.append(command.traj)
            carry_out(command)

        shell.carry_out = watch  # type: ignore[method-assign]
        return shell.run()

    stuck: list[int] = []
    dropped = slow(VirtualShell(small(overdue="drop_group"), seed=3))
    assert dropped.end is not None
    assert dropped.end.ok
    assert batches(dropped)[0].groups_trained < 4
    stuck = []
    waits = slow(VirtualShell(small(), seed=3))
    assert waits.end is None, "by default the slow one is waited for"
    assert batches(waits) == []


@pytest.mark.parametrize("now", [False, True])
def test_a_stop_finishes_the_open_step_or_ends_at_once(now: bool) -> None:
    shell = VirtualShell(small(steps=50), seed=4)
    handle = shell.core.handle
    asked = False

    def watch(event: e.AnyEvent) -> list[c.Command]:
        nonlocal asked
        out = handle(event)
        if not asked and shell.core.learner.step is not None and shell.core.admission.done == 3:
            asked = True
            out += handle(e.StopRequested(event.t, now, "a test"))
        return out

    shell.core.handle = watch  # type: ignore[method-assign]
    shell.run()
    assert shell.end is not None
    assert shell.end.ok
    assert len(batches(shell)) == (3 if now else 4)
    assert "a test" in shell.end.reason


def test_a_turn_larger_than_any_engine_fails_instead_of_waiting_for_ever() -> None:
    config = Config(
        run=RunConfig(steps=1),
        bucket=(BucketConfig(kv_tokens=10),),
        rollout=RolloutConfig(groups_per_batch=1, samples_per_group=2, retries=0),
        eval=EvalConfig(tasks=0),
    )
    shell = VirtualShell(config).run()
    assert shell.end is not None
    assert shell.end.ok
    reasons = [x.what for x in shell.commands if isinstance(x, c.Report)]
    assert any("needs 20 tokens of KV room, the largest engine left has 10" in r for r in reasons)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("retries", [0, 1])
def test_turns_that_only_a_lost_engine_could_hold_fail_and_the_run_goes_on_with_the_others(
    seed: int, retries: int
) -> None:
    config = Config(
        run=RunConfig(steps=6),
        bucket=(BucketConfig(name="small", engines=2, kv_tokens=60), BucketConfig(name="large", kv_tokens=900)),
        rollout=RolloutConfig(groups_per_batch=4, samples_per_group=2, retries=retries),
        eval=EvalConfig(tasks=0),
        deadline=DeadlineConfig(role_restarts=0),
    )
    shell = VirtualShell(config, seed)
    shell.at(3.0, e.RankLost, rank=config.devices, reason="its host is gone")
    shell.run()
    assert shell.end is not None, "the run hangs"
    assert shell.end.ok
    assert [b.batch for b in batches(shell)] == list(range(6))
    assert shell.core.rollout.stages() == {}
    assert shell.core.rollout.failed
    dropped = [x.what for x in shell.commands if isinstance(x, c.Report) and "is dropped" in x.what]
    assert all("tokens of KV room, the largest engine left has 60" in what for what in dropped)
    assert dropped or retries


def test_an_engine_that_is_lost_when_it_was_down_already_holds_up_nobody() -> None:
    """Its host hangs: the role gets nowhere and does not end when told to, and only later is the rank given up."""
    config = Config(
        run=RunConfig(steps=6),
        bucket=(BucketConfig(name="small", kv_tokens=60), BucketConfig(name="large", kv_tokens=900)),
        rollout=RolloutConfig(groups_per_batch=4, samples_per_group=2),
        eval=EvalConfig(tasks=0),
    )
    shell, large = VirtualShell(config), config.devices
    carry_out = shell.carry_out

    def watch(command: c.Command) -> None:
        if isinstance(command, c.StartRole) and command.rank == large:
            shell.at(3.0, e.RoleStalled, rank=large, start=command.seq, reason="no progress")
        if isinstance(command, c.StopRole) and command.rank == large:
            shell.reserved[shell.starts[command.start][1]].clear()  # it samples nothing any more
        else:
            carry_out(command)

    shell.carry_out = watch  # type: ignore[method-assign]
    shell.at(1000.0, e.RankLost, rank=large, reason="its host is gone")
    shell.run()
    assert shell.end is not None, "the run hangs"
    assert shell.end.ok
    assert [b.batch for b in batches(shell)] == list(range(6))


def test_a_loss_that_is_not_finite_ends_the_run_before_anything_is_published() -> None:
    shell = VirtualShell(small())
    at = shell.at

    def poison(delay: float, make: type, **fields: object) -> None:
        if make is e.StepDone:
            fields |= {"finite": False, "loss": float("nan")}
        if make is not e.WeightsHeld or fields["version"] == 0:
            at(delay, make, **fields)

    shell.at = poison  # type: ignore[method-assign]
    shell.run()
    assert shell.end is not None
    assert not shell.end.ok
    assert "step 0 on batch 0" in shell.end.reason
    assert not any(isinstance(x, c.InstallWeights) and x.version > 0 for x in shell.commands)
