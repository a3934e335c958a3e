"""What scheduling learnt, saved: a restarted scheduler decides the same, another run starts from what it may know."""

import msgspec
import pytest

from libra.config.schema import (
    BucketConfig,
    CausalityConfig,
    Config,
    EvalConfig,
    RolloutConfig,
    RunConfig,
    SchedulerConfig,
)
from libra.core.causality import CausalityTree, TreeConfig, restore, save
from libra.core.coordinator import Core
from libra.core.learned import Learned, carried_over
from libra.core.signal import Signal
from libra.errors import CoreError
from tests.core.restarting import restart
from tests.core.virtual_shell import VirtualShell

LEARNING = ("causal", "cmlfq", "expected_cost", "trajectory_priority", "oracle")
FOUND = Signal("search", "large", "ok")


def config(policy: str = "causal", **tree: float) -> Config:
    return Config(
        run=RunConfig(steps=8),
        bucket=(
            BucketConfig(name="short", engines=2, max_batch=4, kv_tokens=400),
            BucketConfig(name="long", tp=2, engines=1, max_batch=4, kv_tokens=600),
        ),
        rollout=RolloutConfig(groups_per_batch=3, samples_per_group=4),
        scheduler=SchedulerConfig(
            policy=policy,  # type: ignore[arg-type]
            thresholds_tokens=(20,),
            max_wait_s=1.0,
            tree=CausalityConfig(**tree),  # type: ignore[arg-type]
        ),
        eval=EvalConfig(tasks=4),
    )


def taught(config: TreeConfig | None = None, trajectories: int = 12, version: int = 0) -> CausalityTree:
    """Each prompt twice: 100 tokens, a search that finds much, then 50 per prompt more."""
    tree = CausalityTree(config)
    for i in range(trajectories):
        tree.start(i, i // 2, "f")
        tree.advance(i, FOUND, 100, 1, 0.5)
        tree.finish(i, 100 + 50 * (1 + i // 2), 2, 0.5, version)
    return tree


def residual(tree: CausalityTree, prompt: int, traj: int = 999) -> float:
    tree.start(traj, prompt, "f")
    tree.advance(traj, FOUND, 100, 1, 0.5)
    mean = tree.predict(traj).mean
    tree.abandon(traj)
    return mean


@pytest.mark.parametrize("policy", LEARNING)
def test_a_scheduler_restarted_from_its_saved_state_gives_the_same_commands(policy: str) -> None:
    undisturbed = VirtualShell(config(policy), seed=3, fail_rate=0.05, kill_rate=0.01, kept=0.3).run()
    shell = VirtualShell(config(policy), seed=3, fail_rate=0.05, kill_rate=0.01, kept=0.3)
    handle, restarts = shell.core.handle, 0

    def disturbed(event):  # type: ignore[no-untyped-def]
        nonlocal restarts
        commands = handle(event)
        if len(shell.events) % 37 == 0:
            restart(shell.core, shell.residual_tokens)
            restarts += 1
        return commands

    shell.core.handle = disturbed  # type: ignore[method-assign]
    shell.run()
    assert restarts > 10
    assert len(shell.core.placement.tree.nodes) > 30, "little was learnt: the test shows nothing"
    assert shell.commands == undisturbed.commands


def test_a_core_starts_from_what_another_one_learnt() -> None:
    first = VirtualShell(config(), seed=1).run().core
    state = carried_over(first.learned(), first.placement.tree.config, same_prompts=True)
    again = Core(config(), learned=state)
    assert len(again.placement.tree.nodes) > 30
    assert again.placement.tree.now == 0
    assert VirtualShell(config(), seed=2, learned=state).run().end is not None


def test_asking_for_the_state_changes_nothing() -> None:
    shell = VirtualShell(config(), seed=1).run()
    encode = msgspec.msgpack.encode
    assert encode(shell.core.learned()) == encode(shell.core.learned())


def test_a_tree_under_another_forgetting_is_refused() -> None:
    state = Core(config(decay=0.5)).learned()
    with pytest.raises(CoreError, match=r"got a tree of .*decay=0\.5.*expected .*decay=0\.9"):
        Core(config(decay=0.9), learned=state)


def test_what_is_carried_over_answers_as_before() -> None:
    tree = taught(version=40)
    moved = restore(carried_over(Learned(tree=save(tree)), tree.config, same_prompts=True).tree)
    assert residual(moved, prompt=3) == pytest.approx(residual(tree, prompt=3))
    assert residual(moved, prompt=777) == pytest.approx(residual(tree, prompt=777))
    assert moved.now == 0


def test_prompts_of_other_tasks_stay_behind() -> None:
    tree = taught()
    moved = restore(carried_over(Learned(tree=save(tree)), tree.config, same_prompts=False).tree)
    assert not moved.roots[0]
    assert residual(tree, prompt=0) < residual(moved, prompt=0)
    assert residual(moved, prompt=0) == pytest.approx(residual(moved, prompt=5))


def test_what_was_learnt_before_weighs_less_than_what_the_new_run_learns() -> None:
    """Ten old observations at version 40 and ten new ones at version 5 of the next run: the new ones count more."""
    config = TreeConfig(decay=0.8)
    moved = restore(carried_over(Learned(tree=save(taught(config, 10, 40))), config, same_prompts=False).tree)
    before = residual(moved, prompt=777)
    for i in range(10):
        moved.start(i, 100 + i, "f")
        moved.advance(i, FOUND, 100, 1, 0.5)
        moved.finish(i, 100 + 1000, 2, 0.5, 5)
    assert residual(moved, prompt=777) > (before + 1000) / 2


def test_forgetting_may_differ_from_run_to_run() -> None:
    tree = taught(TreeConfig(decay=0.5), version=3)
    moved = restore(carried_over(Learned(tree=save(tree)), TreeConfig(decay=1.0), same_prompts=True).tree)
    assert moved.config.decay == 1.0
    assert residual(moved, prompt=2) == pytest.approx(residual(tree, prompt=2))


def test_what_has_faded_to_nothing_stays_behind() -> None:
    tree = taught(TreeConfig(decay=0.5), trajectories=2, version=0)
    tree.start(50, 900, "g")
    tree.finish(50, 10, 1, 0.0, 400)
    moved = restore(carried_over(Learned(tree=save(tree)), tree.config, same_prompts=True).tree)
    assert list(moved.roots[0]) == [900]
    assert list(moved.roots[1]) == ["g"]


def test_a_smaller_tree_takes_what_has_room() -> None:
    small = TreeConfig(max_nodes=16)
    moved = restore(carried_over(Learned(tree=save(taught(trajectories=60))), small, same_prompts=True).tree)
    assert len(moved.nodes) == 16
    assert residual(moved, prompt=777) > 0
    assert all(leaf.slot == i for i, leaf in enumerate(moved.leaves))


def test_trajectories_in_flight_stay_behind() -> None:
    tree = taught()
    tree.start(7, 3, "f")
    moved = restore(carried_over(Learned(tree=save(tree)), tree.config, same_prompts=True).tree)
    assert not moved.walks
