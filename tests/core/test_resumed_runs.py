"""Whole runs of the core that are cut at a checkpoint and go on: nothing is skipped, nothing is trained twice."""

from typing import TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_shell import VirtualShell

from libra.config.schema import (
    BucketConfig,
    CheckpointConfig,
    Config,
    EvalConfig,
    RolloutConfig,
    RunConfig,
    SchedulerConfig,
)
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.saved import Best, SavedCore

STEPS, GROUPS, SAMPLES = 8, 4, 4
C = TypeVar("C", bound=c.Command)


def config(mode: str = "async", every: int = 1, evaluate: int = 0, policy: str = "causal", **eval_: float) -> Config:
    return Config(
        run=RunConfig(steps=STEPS, mode=mode),  # type: ignore[arg-type]
        bucket=(BucketConfig(name="a", engines=2, max_batch=16, kv_tokens=900), BucketConfig(name="b", max_batch=4)),
        rollout=RolloutConfig(groups_per_batch=GROUPS, samples_per_group=SAMPLES),
        scheduler=SchedulerConfig(policy=policy),  # type: ignore[arg-type]
        eval=EvalConfig(**{"tasks": 6, "every": evaluate, **eval_}),  # type: ignore[arg-type]
        checkpoint=CheckpointConfig(every=every, keep=2),
    )


def written(saved: SavedCore) -> SavedCore:
    """Through the format on disk."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=SavedCore)


def all_of(shell: VirtualShell, kind: type[C]) -> list[C]:
    return [x for x in shell.commands if isinstance(x, kind)]


def prompts(shell: VirtualShell) -> list[int]:
    """Of training groups, in the order of their opening, once each."""
    return list(dict.fromkeys(x.prompt for x in all_of(shell, c.OpenTrajectory) if x.kind == "train"))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    mode=st.sampled_from(["async", "one-step-off", "sync"]),
    seed=st.integers(0, 1000),
    cut=st.integers(1, STEPS - 1),
    evaluate=st.sampled_from([0, 2]),
)
def test_a_run_that_is_cut_anywhere_goes_on_to_its_end(mode: str, seed: int, cut: int, evaluate: int) -> None:
    first = VirtualShell(config(mode, evaluate=evaluate), seed, fail_rate=0.05).run()
    if cut not in first.checkpoints:
        return  # a batch that was skipped while the one before was being written
    saved = written(first.checkpoints[cut])
    assert (saved.step, len(saved.newest_at)) == (cut, cut + 1)
    then = VirtualShell(config(mode, evaluate=evaluate), seed + 1, fail_rate=0.05, saved=saved).run()
    assert then.end is not None
    assert then.end.ok, then.end.reason
    consumed = all_of(then, c.BatchConsumed)
    assert [b.batch for b in consumed] == list(range(cut, STEPS))
    assert prompts(then) == list(range(cut * GROUPS, STEPS * GROUPS)), (
        "all that were reached begin anew, in their order"
    )
    versions = [saved.version, *(b.version for b in consumed)]
    assert versions == sorted(versions)
    assert all(b.lag <= config(mode).max_lag for b in consumed)
    opened = [x.traj for x in all_of(then, c.OpenTrajectory)]
    assert min(opened) == saved.next_traj, "numbers go on"
    assert not all_of(then, c.WarmStart)
    assert not [x for x in all_of(then, c.Evaluated) if x.kind == "eval_start"]
    (load,) = all_of(then, c.LoadCheckpoint)
    assert (load.step, load.version) == (cut, saved.version)


def test_the_same_events_give_a_resumed_core_the_same_commands() -> None:
    saved = VirtualShell(config(), 3).run().checkpoints[4]
    shell = VirtualShell(config(), 5, saved=written(saved)).run()
    again = Core(config(), saved=written(saved))
    given = [command for event in shell.events for command in again.handle(event)]
    assert given == shell.commands


def test_what_was_learnt_is_there_again_and_the_old_trajectories_are_not() -> None:
    first = VirtualShell(config(), 3).run()
    saved = first.checkpoints[6]
    core = Core(config(), saved=written(saved))
    assert saved.learned.tree.walks == []
    assert core.learned() == saved.learned
    assert msgspec.structs.replace(core.saved(6), seconds=saved.seconds) == saved


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_stop_saves_the_last_boundary_and_nothing_else_is_lost(mode: str) -> None:
    shell = VirtualShell(config(mode, every=1000), 1)
    shell.at(30.0, e.StopRequested, now=False, author="someone")
    shell.run()
    assert shell.end is not None
    assert shell.end.ok
    done = len(all_of(shell, c.BatchConsumed))
    assert 0 < done < STEPS, "the test must cut in the middle"
    assert [x.step for x in all_of(shell, c.SaveCheckpoint)] == [done]
    assert shell.checkpoints[done].step == done


def test_a_stop_at_once_waits_for_no_disk() -> None:
    shell = VirtualShell(config(every=1000), 1)
    shell.at(30.0, e.StopRequested, now=True, author="someone")
    shell.run()
    assert not all_of(shell, c.SaveCheckpoint)


@pytest.mark.parametrize("seed", range(3))
def test_saves_that_fail_are_told_and_end_nothing(seed: int) -> None:
    shell = VirtualShell(config(), seed, save_fault_rate=1.0).run()
    assert shell.end is not None
    assert shell.end.ok
    told = [x for x in all_of(shell, c.Report) if "was not saved" in x.what]
    assert len(told) == len(all_of(shell, c.SaveCheckpoint)) > 3
    assert not all_of(shell, c.TidyCheckpoints)


class Silent(VirtualShell):
    """Its disk never answers."""

    def carry_out(self, command: c.Command) -> None:
        if not isinstance(command, c.SaveCheckpoint):
            super().carry_out(command)


def test_a_disk_that_hangs_holds_nothing_up_but_the_end_and_that_for_a_time() -> None:
    shell = Silent(config(), 0).run()
    assert shell.end is not None
    assert shell.end.ok
    assert len(all_of(shell, c.BatchConsumed)) == STEPS
    assert any("not written within" in x.what for x in all_of(shell, c.Report))
    last_batch = max(event.t for event in shell.events if isinstance(event, e.StepDone))
    assert last_batch < 200 < shell.now < 1500


def test_the_newest_two_and_the_best_are_kept() -> None:
    shell = VirtualShell(config(evaluate=2), 7).run()
    steps = shell.core.checkpoints.steps
    best = shell.core.checkpoints.best
    points = {x.batch: x.reward for x in all_of(shell, c.Evaluated) if x.kind != "eval_start" and not x.failed}
    assert best is not None
    assert best.reward == max(points.values())
    assert best == Best(min(b for b, r in points.items() if r == best.reward and b >= 1), best.reward)
    saved = [x.step for x in all_of(shell, c.SaveCheckpoint)]
    assert set(steps) == {*saved[-2:], best.step}
    dropped = [step for x in all_of(shell, c.TidyCheckpoints) for step in x.steps]
    assert sorted([*dropped, *steps]) == saved, "each one is kept or dropped, once"


def test_a_checkpoint_is_kept_while_its_evaluation_lasts() -> None:
    shell = VirtualShell(config(evaluate=2, at_once=1), 2)
    kept: list[tuple[int, ...]] = []
    judged: list[int] = []
    handle = shell.core.handle

    def watched(event: e.AnyEvent) -> list[c.Command]:
        commands = handle(event)
        for command in commands:
            if isinstance(command, c.TidyCheckpoints) and shell.core.evaluation.kind == "eval":
                kept.append(tuple(shell.core.checkpoints.steps))
                judged.append(shell.core.evaluation._batch)
        return commands

    shell.core.handle = watched  # type: ignore[method-assign]
    shell.run()
    assert judged, "the test must see saves beside an evaluation"
    assert all(step in steps for step, steps in zip(judged, kept, strict=True))


# --- held-out tasks beside training


@pytest.mark.parametrize("mode", ["async", "one-step-off", "sync"])
def test_held_out_tasks_beside_training_are_no_part_of_it(mode: str) -> None:
    shell = VirtualShell(config(mode, evaluate=2), 4).run()
    assert shell.end is not None
    assert shell.end.ok
    beside = [x for x in all_of(shell, c.Evaluated) if x.kind == "eval"]
    assert beside
    assert [x.batch for x in beside] == sorted({x.batch for x in beside})
    assert all(x.tasks == 6 and not x.failed and x.version <= x.newest for x in beside)
    assert [b.trajectories for b in all_of(shell, c.BatchConsumed)] == [GROUPS * SAMPLES] * STEPS
    assert shell.core.rollout.stages() == {}
    assert shell.core.rollout.open_groups == 0


class Watched(VirtualShell):
    """Notes, for each turn of a held-out task that is placed beside training, how many turns of training wait."""

    def generate(self, command: c.Generate) -> None:
        super().generate(command)
        if self.episodes[command.traj].kind == "eval":
            trajectories = self.core.rollout._trajectories.values()
            self.waits.append(sum(t.stage == "waiting" and t.group.kind == "train" for t in trajectories))

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.waits: list[int] = []
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_no_held_out_turn_goes_before_one_of_training(seed: int) -> None:
    tight = config(evaluate=1, at_once=3)
    tight = msgspec.structs.replace(tight, bucket=(BucketConfig(name="a", max_batch=6, kv_tokens=200),))
    shell = Watched(tight, seed).run()
    assert shell.end is not None
    assert shell.end.ok
    assert len(shell.waits) > 5
    assert set(shell.waits) == {0}


def test_tasks_that_do_not_end_in_time_are_given_up_and_judge_nothing() -> None:
    shell = VirtualShell(config(evaluate=2, deadline_s=0.2), 4).run()
    assert shell.end is not None
    assert shell.end.ok
    cut = [x for x in all_of(shell, c.Evaluated) if x.kind == "eval"]
    assert any(x.given_up for x in cut)
    assert all(x.failed >= x.given_up for x in cut)
    worth = {x.batch for x in all_of(shell, c.Evaluated) if not x.failed}
    assert shell.core.checkpoints.best is None or shell.core.checkpoints.best.step in worth
    assert shell.core.rollout.stages() == {}


def test_an_evaluation_cut_by_the_end_is_made_anew_after_the_resume() -> None:
    first = VirtualShell(config(evaluate=2), 4).run()
    then = VirtualShell(config(evaluate=2), 5, saved=written(first.checkpoints[4])).run()
    assert next(x.batch for x in all_of(then, c.Evaluated) if x.kind == "eval") == 4
