"""The scheduler under any order of answers, deaths and new weights that a machine can think of.

Hypothesis plays the shell: it chooses which outstanding command is answered next, and how. After every step: no trajectory
on two engines, the books of room and seats agree with the commands, room is never exceeded, no turn is kept waiting for one
target beyond its bound, no turn that takes any engine waits while one could take it, only running turns are cut, one at a
time, each trajectory a bounded number of times; a cut may come too late. Now and then the scheduler is made anew from its
saved state. At the end the same events give the same commands to a fresh core that was never disturbed.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libra.config.schema import BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig, SchedulerConfig
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.trajectory import Trajectory
from tests.core.restarting import restart

MAX_WAIT_S = 5.0
REVIEW_S = 0.5
MAX_CUTS = 2
POLICIES = (
    "least_loaded",
    "causal",
    "cmlfq",
    "expected_cost",
    "sticky",
    "length_aware",
    "trajectory_priority",
    "oracle",
)


def config_of(policy: str) -> Config:
    return Config(
        run=RunConfig(steps=50),
        bucket=(
            BucketConfig(name="short", engines=2, max_batch=2, kv_tokens=300),
            BucketConfig(name="long", tp=2, engines=1, max_batch=3, kv_tokens=500),
        ),
        rollout=RolloutConfig(groups_per_batch=2, samples_per_group=3),
        scheduler=SchedulerConfig(
            policy=policy, thresholds_tokens=(15,), max_wait_s=MAX_WAIT_S, review_s=REVIEW_S, max_cuts=MAX_CUTS
        ),
        eval=EvalConfig(at_start=False, at_end=False),
    )


def foresight(traj: int) -> float:
    return 7.0 * (traj % 5)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: str) -> None:
        self.config = config_of(policy)
        self.core = Core(self.config, oracle=foresight)
        self.now = 0.0
        self.events: list[e.AnyEvent] = []
        self.commands: list[c.Command] = []
        self.asked: dict[int, c.Command] = {}
        """Opened, generating, acting or installing, by command: what Hypothesis answers in any order."""
        self.starts: dict[int, int] = {}
        self.context: dict[int, int] = {}
        self.waiting_since: dict[int, float] = {}
        self.cuts: dict[int, int] = {}
        """Orders to cut, by trajectory."""
        self.cutting: int | None = None
        """The `Generate` whose turn was ordered to be cut, while it is not answered."""
        self.tell(e.RunStarted(0.0))
        for rank in self.core.fleet.ranks:
            self.tell(e.RankJoined(0.0, rank, "h", "cpu"))

    def tell(self, event: e.AnyEvent) -> None:
        """An event, and the plain answers to all that follows and is not the scheduler's affair."""
        self.events.append(event)
        commands = self.core.handle(event)
        self.commands += commands
        for command in commands:
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
            case c.Round():
                for rank in command.ranks:
                    self.tell(e.RoundDone(t, seq, rank, 0.0))
            case c.CloseStep():
                for rank in command.ranks:
                    self.tell(e.StepDone(t, seq, rank, True, 0.0, 1.0, 0.0))
                    self.tell(e.WeightsHeld(t, rank, command.version))
            case c.OpenTrajectory() | c.Generate() | c.Act() | c.InstallWeights():
                self.asked[seq] = command
            case c.CutTurn():
                turn = self.asked.get(command.turn)
                assert isinstance(turn, c.Generate), "only running turns are cut"
                assert (turn.traj, turn.engine) == (command.traj, command.engine)
                assert self.cutting not in self.asked, "one cut is on its way at a time"
                self.cutting = command.turn
                self.cuts[command.traj] = self.cuts.get(command.traj, 0) + 1
                assert self.cuts[command.traj] <= MAX_CUTS
            case c.Discard():
                for seq in [s for s, x in self.asked.items() if getattr(x, "traj", -1) in command.trajs]:
                    del self.asked[seq]
            case _:
                pass

    @rule()
    def restart(self) -> None:
        """What was learnt is saved and comes back; the fresh core of `teardown` never sees that."""
        restart(self.core, foresight)

    # --- what the world may do

    @precondition(lambda self: self.asked)
    @rule(
        which=st.integers(0, 1 << 16),
        how=st.sampled_from(["plain", "plain", "plain", "other"]),
        tokens=st.integers(1, 12),
        signal=st.sampled_from([("a", 3, "ok"), ("a", 900, "ok"), ("b", 3, "error")]),
        dt=st.floats(0.0, 2.0),
    )
    def answer(self, which: int, how: str, tokens: int, signal: tuple[str, int, e.Status], dt: float) -> None:
        self.now += dt
        seq = sorted(self.asked)[which % len(self.asked)]
        command = self.asked.pop(seq)
        t, plain = self.now, how == "plain"
        match command:
            case c.InstallWeights():
                self.tell(e.WeightsInstalled(t, seq, command.ranks[0], command.version, 0.1))
            case c.OpenTrajectory():
                self.context[command.traj] = 8
                self.tell(e.TurnReady(t, seq, command.traj, 8, 12))
            case c.Generate():
                tokens = min(tokens, command.max_new_tokens)
                self.context[command.traj] += tokens
                v = self.core.fleet.engines[command.engine].load.version
                self.tell(
                    e.TurnGenerated(t, seq, command.traj, command.engine, tokens, v, v, "stop" if plain else "cut")
                )
            case c.Act():
                if not plain:
                    self.tell(e.TrajectoryFailed(t, seq, command.traj, "broken"))
                elif tokens % 4 == 0 or self.context[command.traj] > 90:
                    self.tell(e.EpisodeEnded(t, seq, command.traj, float(tokens > 6), 10, 20))
                else:
                    tool, size, status = signal
                    self.context[command.traj] += 3
                    context = self.context[command.traj]
                    self.tell(e.ToolReturned(t, seq, command.traj, tool, status, size, 0.2, context, 12))
            case _:
                raise AssertionError(command)

    @rule(engine=st.integers(0, 2), dt=st.floats(0.0, 3.0))
    def kill(self, engine: int, dt: float) -> None:
        unit = self.core.fleet.engines[engine]
        rank = self.core.fleet.ranks[unit.ranks[0]]
        if unit.restarts >= self.config.deadline.role_restarts:
            return
        self.now += dt  # the core sees time pass by events alone
        self.asked = {
            s: x
            for s, x in self.asked.items()
            if not (isinstance(x, c.Generate) and x.engine == engine)
            and not (isinstance(x, c.InstallWeights) and x.unit == engine)
        }
        self.tell(e.RoleExited(self.now, rank.rank, self.starts[rank.rank], -9, "killed"))

    # --- what must hold

    def turns(self) -> list[Trajectory]:
        return [t for t in self.core.rollout._trajectories.values() if t.stage == "waiting"]

    @invariant()
    def books_agree_and_room_is_kept(self) -> None:
        running = [x for x in self.asked.values() if isinstance(x, c.Generate)]
        assert len({x.traj for x in running}) == len(running), "a trajectory on two engines"
        placement = self.core.placement
        for engine in self.core.fleet.engines.values():
            load = engine.load
            here = [x for x in running if x.engine == load.id]
            needs = [self.context[x.traj] + x.max_new_tokens for x in here]
            assert load.running == len(here) <= load.max_batch
            assert load.reserved_tokens == sum(needs) <= load.kv_tokens
            assert len(here) <= load.outstanding_tokens <= sum(x.max_new_tokens for x in here)
        assert min(placement.seats.active.values(), default=0) >= 0
        live = [t for t in self.core.rollout._trajectories.values() if t.live]
        assert set(placement._routes) == {t.id for t in live} == set(placement.tree.walks)
        assert sum(placement.seats.active.values()) <= len(live) + len(running)
        assert set(placement.decisions) <= {t.id for t in live}

    @invariant()
    def nobody_waits_beyond_the_bound(self) -> None:
        placement = self.core.placement
        waits = {t.id: t for t in self.turns() if t.waits_for is not None}
        self.waiting_since = {id: self.waiting_since.get(id, self.now) for id in waits}
        assert all(self.now - since < MAX_WAIT_S for since in self.waiting_since.values())
        for t in self.turns():
            if t.waits_for is None:
                whole = t.context_tokens + t.max_new_tokens
                assert placement.index.offer(
                    whole, whole, self.core._floor(t.group), None
                ) is None or self.queued_behind(t)
        queued = sum(t.context_tokens + t.max_new_tokens for t in waits.values())
        assert sum(s.queued_tokens for s in placement.shapes) == queued

    @invariant()
    def the_index_offers_what_a_search_of_all_engines_finds(self) -> None:
        loads = [x.load for x in self.core.fleet.engines.values()]
        for need, floor in ((20, 0), (60, 0), (250, 0), (450, 0), (501, 0), (20, self.core.publication.newest)):
            may = [x for x in loads if x.up and x.version >= max(0, floor) and x.fits(need)]
            offer = self.core.placement.index.offer(need, need, floor, None)
            assert (offer is None) == (not may)
            if offer is not None:
                assert {x.id for x in offer.engines} <= {x.id for x in may}
                for bucket in (0, 1):
                    here = [x for x in may if x.bucket == bucket]
                    offered = [x for x in offer.engines if x.bucket == bucket]
                    assert bool(here) == bool(offered)
                    if here:
                        least = min(x.outstanding_tokens for x in here)
                        assert least in {x.outstanding_tokens for x in offered}
                assert all(x.running and not x.fits(need) for x in offer.full)

    def queued_behind(self, turn: Trajectory) -> bool:
        """Whether a turn before it in its slot cannot be taken, so that it must not pass."""
        place = (turn.arrival, turn.ticket)
        before = [t for t in self.turns() if t.group.slot == turn.group.slot and (t.arrival, t.ticket) < place]
        return any(
            self.core.placement.index.offer(need, need, self.core._floor(t.group), None) is None
            for t in before
            for need in [t.context_tokens + t.max_new_tokens]
            if t.waits_for is None
        )

    def teardown(self) -> None:
        if hasattr(self, "core"):
            again = Core(self.config, oracle=foresight)
            assert [x for event in self.events for x in again.handle(event)] == self.commands


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
