"""Every policy carries whole runs to their end, under failures, deaths and scarce room, and decides the same again."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_shell import VirtualShell

from libra.config.schema import BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig, SchedulerConfig
from libra.core import commands as c
from libra.core.coordinator import Core
from libra.core.scheduler.policy import Decision, Offer, Policy, TurnView, bucket_target
from libra.errors import ConfigError

POLICIES = (
    "least_loaded", "causal", "cmlfq", "expected_cost", "sticky", "length_aware", "trajectory_priority", "oracle",
)  # fmt: skip


def small(policy: str, mode: str = "async", max_wait_s: float = 300.0, **scheduler: object) -> Config:
    return Config(
        run=RunConfig(steps=5, mode=mode),
        bucket=(
            BucketConfig(name="short", engines=2, max_batch=6, kv_tokens=200),
            BucketConfig(name="long", tp=2, max_batch=4, kv_tokens=400),
        ),
        rollout=RolloutConfig(groups_per_batch=4, samples_per_group=4),
        scheduler=SchedulerConfig(policy=policy, thresholds_tokens=(20,), max_wait_s=max_wait_s, **scheduler),
        eval=EvalConfig(tasks=8),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    policy=st.sampled_from(POLICIES),
    mode=st.sampled_from(["async", "one-step-off", "sync"]),
    seed=st.integers(0, 10_000),
    fail=st.sampled_from([0.0, 0.2]),
    kill=st.sampled_from([0.0, 0.005]),
    max_wait_s=st.sampled_from([0.01, 1.0, 300.0]),
    review_s=st.sampled_from([0.02, 0.5, 10.0]),
)
def test_no_policy_starves_overflows_or_forgets(
    policy: str, mode: str, seed: int, fail: float, kill: float, max_wait_s: float, review_s: float
) -> None:
    """The shell checks on the way that no room is exceeded, no trajectory runs twice, and only running turns are cut."""
    config = small(policy, mode, max_wait_s, review_s=review_s)
    shell = VirtualShell(config, seed, fail_rate=fail, kill_rate=kill).run()
    assert shell.end is not None, "nothing is left to happen, and the run has not ended: somebody starves"
    placement = shell.core.placement
    consumed = [x for x in shell.commands if isinstance(x, c.BatchConsumed)]
    assert all(b.lag <= config.max_lag for b in consumed)
    if shell.end.ok:
        assert len(consumed) == 5
        assert placement.decisions == {}
        assert placement.tree.walks == {}
        assert not any(placement.seats.active.values())
        assert [s.queued_tokens for s in placement.shapes] == [0, 0]
        for engine in shell.core.fleet.engines.values():
            load = engine.load
            assert load.running == load.reserved_tokens == load.outstanding_tokens == 0
            assert load.context_tokens == load.residual_tokens == 0
    else:
        assert "no engine is left" in shell.end.reason


@pytest.mark.parametrize("policy", POLICIES)
def test_replayed_events_give_the_same_commands(policy: str) -> None:
    shell = VirtualShell(small(policy), seed=3, fail_rate=0.1, kill_rate=0.002)
    foreseen: list[float] = []
    tell = shell.residual_tokens

    def noted(traj: int) -> float:
        foreseen.append(tell(traj))
        return foreseen[-1]

    if policy == "oracle":
        shell.core.placement.policy.foresight = noted  # type: ignore[attr-defined]
    shell.run()
    again = Core(small(policy), oracle=lambda _: foreseen.pop(0))
    assert [command for event in shell.events for command in again.handle(event)] == shell.commands


class Fickle(Policy):
    """Wants to wait for the other bucket each time that it is asked, as rough estimates of waits can make a policy do."""

    asked = 0

    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        self.asked += 1
        if turn.may_wait:
            return Decision(-1, "changed its mind", wait_for=bucket_target(self.asked % 2))
        return Decision(self.least_loaded(offer.engines).id, "may not wait any more")


def test_a_policy_that_changes_its_mind_cannot_hold_up_the_core() -> None:
    shell = VirtualShell(small("least_loaded", "async", 1.0), seed=5)
    shell.core.placement.policy = fickle = Fickle(shell.core.placement.shapes)
    shell.run()
    assert shell.end is not None
    assert shell.end.ok
    turns = sum(isinstance(x, c.Generate) for x in shell.commands)
    assert turns > 100
    assert fickle.asked < 20 * turns, "a turn is not asked about again and again inside one event"


def test_held_out_tasks_teach_nothing() -> None:
    config = small("causal")
    shell = VirtualShell(config, seed=1)
    carry_out = shell.carry_out
    nodes: list[int] = []

    def watch(command: c.Command) -> None:
        if isinstance(command, c.Evaluated):
            nodes.append(len(shell.core.placement.tree.nodes))
        carry_out(command)

    shell.carry_out = watch  # type: ignore[method-assign]
    shell.run()
    assert nodes[0] == 0
    assert nodes[1] > 0
    tree = shell.core.placement.tree
    (root,) = tree.roots[2].values()
    assert root.visits == 5 * 4 * 4, "each training trajectory once, no held-out one"
    assert list(tree.roots[1]) == ["calculator"]


def test_the_oracle_needs_somebody_who_knows_the_future() -> None:
    with pytest.raises(ConfigError, match="only a simulation can tell"):
        Core(small("oracle"))


def test_turns_are_compared_with_their_predictions() -> None:
    placement = VirtualShell(small("causal"), seed=2).run().core.placement
    kinds = placement.correction.kinds()
    assert set(kinds) == {"short", "long"}
    assert all(k.evidence > 20 for k in kinds.values())
    assert placement.shapes[0].factor == kinds["short"].factor != 1.0
