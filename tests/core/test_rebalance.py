"""Running turns that are looked at again: what is cut, what is not, and that an order which comes too late does no harm."""

from typing import Literal

from libra.config.schema import BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig, SchedulerConfig
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core

SLOW, FAST = 0, 1
"""Engines: the fast one has four devices, and place for one turn, so that the other has to begin on the slow one."""
CAP = 100_000
REVIEW_S = 10.0


class Two:
    """A core with a slow and a fast engine and two trajectories, each of which is far from its end."""

    def __init__(self, policy: Literal["oracle", "least_loaded"] = "oracle", max_cuts: int = 8) -> None:
        config = Config(
            run=RunConfig(steps=1, mode="sync"),
            bucket=(
                BucketConfig(name="slow", max_batch=1, kv_tokens=1_000_000),
                BucketConfig(name="fast", tp=4, max_batch=1, kv_tokens=1_000_000),
            ),
            rollout=RolloutConfig(groups_per_batch=1, samples_per_group=2),
            scheduler=SchedulerConfig(policy=policy, review_s=REVIEW_S, max_cuts=max_cuts),
            eval=EvalConfig(at_start=False, at_end=False),
        )
        self.core = Core(config, oracle=lambda traj: 50_000.0)
        self.now = 0.0
        self.running: dict[int, c.Generate] = {}
        """By engine."""
        self.cuts: list[c.CutTurn] = []
        self.acts: dict[int, c.Act] = {}
        self.timers: list[c.SetTimer] = []
        self.starts: dict[int, int] = {}
        self.tell(e.RunStarted(0.0))
        for rank in self.core.fleet.ranks:
            self.tell(e.RankJoined(0.0, rank, "h", "cpu"))

    def tell(self, event: e.AnyEvent) -> None:
        self.now = event.t
        for command in self.core.handle(event):
            self.obey(command)

    def obey(self, command: c.Command) -> None:
        t, seq = self.now, command.seq
        match command:
            case c.StartRole():
                self.starts[command.rank] = seq
                self.tell(e.RoleReady(t, seq, command.rank))
            case c.FormGroup():
                for rank in command.members:
                    self.tell(e.GroupFormed(t, seq, rank))
            case c.WarmStart():
                for rank in command.ranks:
                    self.tell(e.WarmStarted(t, seq, rank, True, 0.0, 0.0))
                    self.tell(e.WeightsHeld(t, rank, 0))
            case c.InstallWeights():
                for rank in command.ranks:
                    self.tell(e.WeightsInstalled(t, seq, rank, command.version, 0.1))
            case c.OpenTrajectory():
                self.tell(e.TurnReady(t, seq, command.traj, 100, CAP))
            case c.Generate():
                self.running[command.engine] = command
            case c.Act():
                self.acts[command.traj] = command
            case c.CutTurn():
                self.cuts.append(command)
            case c.SetTimer():
                self.timers.append(command)
            case _:
                pass

    def wait_until(self, t: float) -> None:
        """Nothing but timers."""
        while self.timers and min(x.at for x in self.timers) <= t:
            timer = min(self.timers, key=lambda x: x.at)
            self.timers.remove(timer)
            self.tell(e.TimerFired(timer.at, timer.seq))

    def generated(self, engine: int, tokens: int, finish: e.Finish) -> c.Generate:
        turn = self.running.pop(engine)
        self.tell(e.TurnGenerated(self.now, turn.seq, turn.traj, engine, tokens, 0, 0, finish))
        return turn

    def fast_one_ends(self) -> None:
        """The trajectory on the fast engine ends: the engine is idle, and the other one runs on the slow engine."""
        turn = self.generated(FAST, 10, "stop")
        act = self.acts.pop(turn.traj)
        self.tell(e.EpisodeEnded(self.now, act.seq, act.traj, 1.0, 10, 110))

    def order_a_cut(self) -> None:
        self.fast_one_ends()
        self.wait_until(REVIEW_S + 1.0)
        assert len(self.cuts) == 1


def test_a_long_turn_on_a_slow_engine_is_cut_once_a_fast_one_is_idle_and_goes_on_there() -> None:
    two = Two()
    assert set(two.running) == {SLOW, FAST}
    slow = two.running[SLOW]
    two.order_a_cut()
    assert (two.cuts[0].traj, two.cuts[0].engine, two.cuts[0].turn) == (slow.traj, SLOW, slow.seq)
    two.generated(SLOW, 300, "cut")
    assert two.running[FAST].traj == slow.traj
    assert two.running[FAST].max_new_tokens == CAP - 300
    load = two.core.fleet.engines[FAST].load
    assert (load.running, load.context_tokens, load.outstanding_tokens) == (1, 400, CAP - 300)
    assert two.core.fleet.engines[SLOW].load.running == 0
    assert two.core.rollout._trajectories[slow.traj].turns == 0, "it is still its first turn"


def test_nothing_is_cut_before_it_has_run_for_long_or_while_no_other_engine_has_room() -> None:
    two = Two()
    two.wait_until(5 * REVIEW_S)
    assert two.cuts == [], "both engines are full"
    two.fast_one_ends()
    assert two.now < 5 * REVIEW_S + 1.0
    two.wait_until(6 * REVIEW_S + 1.0)
    assert len(two.cuts) == 1


def test_a_turn_that_has_little_to_come_stays() -> None:
    two = Two()
    two.core.placement.policy.foresight = lambda traj: 1.0  # type: ignore[attr-defined]
    two.fast_one_ends()
    two.wait_until(100.0)
    assert two.cuts == []


def test_one_cut_is_ordered_and_not_again_while_it_is_on_its_way() -> None:
    two = Two()
    two.order_a_cut()
    two.wait_until(10 * REVIEW_S)
    assert len(two.cuts) == 1


def test_an_order_that_comes_too_late_does_no_harm() -> None:
    two = Two()
    two.order_a_cut()
    slow = two.generated(SLOW, 300, "stop")
    act = two.acts[slow.traj]
    two.tell(e.ToolReturned(two.now, act.seq, slow.traj, "t", "ok", 3, 0.1, 403, CAP))
    assert two.running[FAST].traj == slow.traj
    assert two.core.rollout._trajectories[slow.traj].turns == 1
    assert two.core.rollout.rebalance._cutting is None


def test_the_death_of_its_engine_ends_the_wait_for_a_cut() -> None:
    two = Two()
    two.order_a_cut()
    slow = two.running.pop(SLOW)
    rank = two.core.fleet.engines[SLOW].ranks[0]
    two.tell(e.RoleExited(two.now, rank, two.starts[rank], -9, "killed"))
    assert two.running[FAST].traj == slow.traj
    assert two.core.rollout.rebalance._cutting is None


def test_cuts_are_bounded_and_can_be_forbidden() -> None:
    for most in (0, 1):
        two = Two(max_cuts=most)
        two.fast_one_ends()
        two.wait_until(REVIEW_S + 1.0)
        assert len(two.cuts) == most
        if most:
            two.generated(SLOW, 300, "cut")
            two.wait_until(10 * REVIEW_S)
            assert len(two.cuts) == 1
            assert all(x.at > two.now for x in two.timers) or not two.timers


def test_a_policy_that_does_not_rebalance_sets_no_alarms() -> None:
    def near(policy: Literal["oracle", "least_loaded"]) -> list[float]:
        two = Two(policy)
        return [x.at for x in two.timers if REVIEW_S <= x.at <= REVIEW_S + 1.0]

    assert len(near("oracle")) == 1, "one for all running turns"
    assert near("least_loaded") == []
