"""Moves under random interleavings of orders, cancels, faults and late answers; what must hold holds after each event."""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libra.config.schema import (
    AllocationConfig,
    BucketConfig,
    Config,
    DeadlineConfig,
    ElasticConfig,
    EvalConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.fleet import CORE, NOBODY
from libra.core.orders import Allocate, Arrange, CancelMove, MoveRanks, Order, Undo

RANKS = range(1, 8)
ORDERS: tuple[Order, ...] = (
    *(Allocate(gradient=n) for n in range(4)),
    *(MoveRanks((a, a + 1), "gradient") for a in (3, 4, 6)),
    MoveRanks((3, 4), "rollout", "two"),
    MoveRanks((3, 4), "rollout", "one"),
    MoveRanks((6, 7), "rollout", "one"),
    MoveRanks((5,), "gradient"),
    MoveRanks((3,), "spare"),
    MoveRanks((6, 7), "spare"),
    Arrange((MoveRanks((3,), "gradient"), MoveRanks((4,), "spare"))),
    Arrange((MoveRanks((6, 7), "rollout", "one"), MoveRanks((3, 4), "rollout", "two"))),
    Undo(),
)
Asked = c.OpenTrajectory | c.Generate | c.Act
PerRank = c.InstallWeights | c.Round | c.Accumulate | c.OfferShare | c.FetchShare | c.FormGroup | c.CloseStep


def config_of(prepare_first: bool) -> Config:
    return Config(
        run=RunConfig(steps=1000),
        allocation=AllocationConfig(trainer=2, gradient=1),
        elastic=ElasticConfig(prepare_first=prepare_first),
        bucket=(BucketConfig(name="one", engines=2), BucketConfig(name="two", tp=2, engines=1)),
        rollout=RolloutConfig(groups_per_batch=2, samples_per_group=4),
        trainer=TrainerConfig(micro_batch_tokens=16),
        eval=EvalConfig(at_start=False, at_end=False),
        deadline=DeadlineConfig(role_restarts=1000),
    )


class HandoverMachine(RuleBasedStateMachine):
    """The world holds every answer back until Hypothesis lets one go: a role's start, a group, weights, turns, shares."""

    @initialize(prepare_first=st.booleans())
    def begin(self, prepare_first: bool) -> None:
        self.config = config_of(prepare_first)
        self.core = Core(self.config)
        self.now = 0.0
        self.events: list[e.AnyEvent] = []
        self.commands: list[c.Command] = []
        self.pending: dict[int, Asked] = {}
        self.answers: dict[tuple[int, int], PerRank | c.StartRole] = {}
        """(command, rank) -> what that rank has been asked and has not answered."""
        self.processes: dict[int, tuple[int, c.StartRole]] = {}
        """Role processes that run: start -> (rank, command)."""
        self.stopping: dict[int, int] = {}
        self.timers: dict[int, float] = {}
        self.context: dict[int, int] = {}
        self.sampled: Counter[int] = Counter()
        self.epoch = 0
        self.orders = 0
        self.work: dict[int, list[int]] = {}
        self.rounds: list[int] = []
        self.tell(e.RunStarted(0.0))
        for rank in RANKS:
            self.tell(e.RankJoined(0.0, rank, "h", "cpu"))
        while self.core.publication.newest < 0:  # up to the warm start in the plain order
            self.let_go(0)

    def tell(self, event: e.AnyEvent) -> None:
        self.events.append(event)
        commands = self.core.handle(event)
        self.commands += commands
        for command in commands:
            self.obey(command)

    def obey(self, command: c.Command) -> None:
        seq = command.seq
        match command:
            case c.StartRole():
                self.processes[seq] = (command.rank, command)
                self.answers[seq, command.rank] = command
            case c.StopRole():
                self.stopping[command.start] = command.rank
            case c.FormGroup():
                self.answers.update({(seq, rank): command for rank in command.members})
            case c.WarmStart():
                for rank in command.ranks:
                    self.tell(e.WarmStarted(self.now, seq, rank, True, 0.0, 0.0))
                    self.tell(e.WeightsHeld(self.now, rank, 0))
            case c.OpenStep():
                self.work, self.rounds = {}, []
            case c.Accumulate():
                self.work.setdefault(command.replica, []).extend(_rows(command.slots))
                self.answers.update({(seq, rank): command for rank in command.ranks})
            case c.Round():
                self.rounds += _rows(command.slots)
                self.answers.update({(seq, rank): command for rank in command.ranks})
            case c.CloseStep():
                trained = self.rounds + [row for id in command.shares for row in self.work[id]]
                step = self.core.learner.step
                assert step is not None
                assert sorted(trained) == sorted(row.traj for _, row in step.figures.rows), "each row exactly once"
                self.answers.update({(seq, rank): command for rank in command.ranks})
            case c.InstallWeights() | c.OfferShare() | c.FetchShare():
                self.answers.update({(seq, rank): command for rank in command.ranks})
            case c.OpenTrajectory() | c.Generate() | c.Act():
                self.pending[seq] = command
            case c.CutTurn():
                assert any(isinstance(x, c.Generate) and x.traj == command.traj for x in self.pending.values())
            case c.Discard():
                for seq in [s for s, x in self.pending.items() if x.traj in command.trajs]:
                    del self.pending[seq]
            case c.SetTimer():
                self.timers[seq] = command.at
            case _:
                pass

    # --- what the world may do

    def _alive(self, rank: int) -> bool:
        return self.core.fleet.ranks[rank].status == "here"

    @rule(picks=st.lists(st.integers(0, 1 << 16), min_size=5, max_size=60))
    def the_world_goes_on(self, picks: list[int]) -> None:
        """Answers of all kinds, in any order."""
        for pick in picks:
            kinds = (self.let_go, self.stopped_role_ends, self.episode_goes_on)
            kinds[pick % 3](pick // 3)

    def let_go(self, which: int) -> None:
        if not self.answers:
            return
        self.now += 0.01
        key = sorted(self.answers)[which % len(self.answers)]
        seq, rank = key
        command, t = self.answers.pop(key), self.now
        match command:
            case c.StartRole():
                self.tell(e.RoleReady(t, seq, rank))
            case c.FormGroup():
                self.tell(e.GroupFormed(t, seq, rank))
            case c.InstallWeights():
                self.tell(e.WeightsInstalled(t, seq, rank, command.version, 0.1))
            case c.Round() | c.Accumulate():
                self.tell(e.RoundDone(t, seq, rank, 0.01))
            case c.OfferShare():
                self.tell(e.ShareOffered(t, seq, rank))
            case c.FetchShare():
                self.tell(e.ShareHeld(t, seq, rank, 0.01))
            case c.CloseStep():
                self.tell(e.StepDone(t, seq, rank, True, 0.0, 1.0, 0.0))
                self.tell(e.WeightsHeld(t, rank, command.version))

    def share_breaks(self, which: int) -> None:
        if not any(isinstance(x, c.OfferShare | c.FetchShare | c.Accumulate) for x in self.answers.values()):
            return
        self.now += 0.01
        keys = sorted(k for k, x in self.answers.items() if isinstance(x, c.OfferShare | c.FetchShare | c.Accumulate))
        seq, rank = keys[which % len(keys)]
        kind = e.RoundRefused if isinstance(self.answers.pop((seq, rank)), c.Accumulate) else e.ShareLost
        self.tell(kind(self.now, seq, rank, "broken"))

    def episode_goes_on(self, which: int) -> None:
        if not self.pending:
            return
        self.now += 0.01
        tokens, cut, which = which % 7, which % 5 == 0, which // 7
        seq = sorted(self.pending)[which % len(self.pending)]
        command, t = self.pending.pop(seq), self.now
        match command:
            case c.OpenTrajectory():
                self.context[command.traj] = 8
                self.tell(e.TurnReady(t, seq, command.traj, 8, 6))
            case c.Generate():
                tokens = min(tokens if cut else max(1, tokens), command.max_new_tokens)
                engine = self.core.fleet.engines.get(command.engine)
                if engine is not None and engine.live:
                    self.context[command.traj] += tokens
                    self.sampled[command.traj] += tokens
                v = engine.load.version if engine is not None and tokens else -1
                finish: e.Finish = "cut" if cut else "stop"
                self.tell(e.TurnGenerated(t, seq, command.traj, command.engine, tokens, v, v, finish))
            case c.Act():
                if self.context[command.traj] > 12:
                    reward, sampled = float(command.traj % 2), self.sampled[command.traj]
                    self.tell(e.EpisodeEnded(t, seq, command.traj, reward, sampled, self.context[command.traj]))
                else:
                    self.context[command.traj] += 2
                    context = self.context[command.traj]
                    self.tell(e.ToolReturned(t, seq, command.traj, "t", "ok", 2, 0.1, context, 6))

    @rule(order=st.sampled_from(ORDERS), stale=st.sampled_from([False, False, False, False, True]))
    def order(self, order: Order, stale: bool) -> None:
        self.now += 0.01
        self.orders += 1
        epoch = self.core.fleet.epoch - stale
        self.tell(e.OrderGiven(self.now, f"o{self.orders}", "ann", epoch, order))
        if stale:
            last = [x for x in self.commands if isinstance(x, c.AnswerOrder)][-1]
            assert not last.accepted

    @precondition(lambda self: self.core.handover.moves)
    @rule(which=st.integers(0, 8))
    def cancel(self, which: int) -> None:
        self.now += 0.01
        self.orders += 1
        moves = list(self.core.handover.moves)
        self.tell(e.OrderGiven(self.now, f"o{self.orders}", "ann", None, CancelMove(moves[which % len(moves)])))

    def stopped_role_ends(self, which: int) -> None:
        if not self.stopping:
            return
        self.now += 0.01
        start = sorted(self.stopping)[which % len(self.stopping)]
        rank = self.stopping.pop(start)
        self._gone(start)
        self.tell(e.RoleExited(self.now, rank, start, 0, "stopped"))

    @rule(which=st.integers(0, 1 << 16), kind=st.sampled_from(["dies", "lost", "timer", "share", "none", "none"]))
    def something_breaks(self, which: int, kind: str) -> None:
        match kind:
            case "dies":
                self.role_dies(which)
            case "lost":
                self.rank_is_lost_or_comes_back(3 + which % 5)
            case "timer":
                self.time_passes()
            case "share":
                self.share_breaks(which)
            case _:
                pass

    def role_dies(self, which: int) -> None:
        starts = sorted(s for s, (_, x) in self.processes.items() if x.unit != CORE)
        if not starts:
            return
        self.now += 0.01
        start = starts[which % len(starts)]
        rank = self.processes[start][0]
        self._gone(start)
        self.tell(e.RoleExited(self.now, rank, start, -9, "killed"))

    def _gone(self, start: int) -> None:
        """What its process had been asked dies with it."""
        process = self.processes.pop(start, None)
        self.stopping.pop(start, None)
        if process is None:
            return
        rank, command = process
        self.answers.pop((start, rank), None)
        for key, x in list(self.answers.items()):
            mine = x.unit if isinstance(x, c.InstallWeights) else getattr(x, "replica", None)
            if key[1] == rank and mine == command.unit and not isinstance(x, c.FetchShare):
                del self.answers[key]
        if command.role == "rollout":
            for seq in [s for s, x in self.pending.items() if isinstance(x, c.Generate) and x.engine == command.unit]:
                del self.pending[seq]

    def rank_is_lost_or_comes_back(self, rank: int) -> None:
        others = [r for r in range(3, 8) if r != rank and self._alive(r)]
        if self._alive(rank) and len(others) < 4:
            return  # one at a time: the run ends with its last engine
        self.now += 0.01
        if not self._alive(rank):
            self.tell(e.RankJoined(self.now, rank, "h", "cpu"))
            return
        for start in [s for s, (r, _) in self.processes.items() if r == rank]:
            self._gone(start)
        self.tell(e.RankLost(self.now, rank, "no heartbeat"))

    def time_passes(self) -> None:
        """To the next timer: some deadline runs out."""
        if not self.timers:
            return
        seq = min(self.timers, key=lambda s: (self.timers[s], s))
        self.now = max(self.now, self.timers.pop(seq))
        self.tell(e.TimerFired(self.now, seq))

    # --- what must hold

    @invariant()
    def each_rank_has_one_role_and_core_ranks_keep_theirs(self) -> None:
        fleet = self.core.fleet
        assert all(fleet.role_of(rank) in ("trainer", "spare") for rank in (1, 2))
        assert self.core.phase != "ended", [x.reason for x in self.commands if isinstance(x, c.FinishRun)]
        settled = [unit for unit in fleet.units() if not unit.gated]
        seats = Counter(rank for unit in settled for rank in unit.ranks)
        spare = {rank.rank for rank in fleet.ranks.values() if rank.unit == NOBODY}
        assert sorted([*seats, *spare]) == [3, 4, 5, 6, 7]
        assert set(seats.values()) == {1}
        for unit in settled:
            assert all(fleet.ranks[rank].unit == unit.id for rank in unit.ranks)
        joining = Counter(rank for move in self.core.handover.moves.values() for u in move.joining for rank in u.ranks)
        assert all(n == 1 for n in joining.values())

    @invariant()
    def at_most_two_processes_a_rank_and_two_only_in_a_move_that_prepares_first(self) -> None:
        running = Counter(rank for rank, _ in self.processes.values())
        assert max(running.values(), default=0) <= (2 if self.config.elastic.prepare_first else 1)

    @invariant()
    def the_epoch_only_grows(self) -> None:
        assert self.core.fleet.epoch >= self.epoch
        self.epoch = self.core.fleet.epoch

    @invariant()
    def every_trajectory_is_awaited_somewhere_and_no_token_is_lost(self) -> None:
        waiting = 0
        for traj in self.core.rollout._trajectories.values():
            if not traj.live:
                continue
            if traj.stage == "waiting":
                waiting += 1
            else:
                assert traj.awaited in self.pending, f"nobody works on {traj.id}, which is {traj.stage}"
            if traj.id in self.context:
                assert traj.sampled_tokens == self.sampled[traj.id]
        assert waiting == len(self.core.rollout.waiting)
        for engine in self.core.fleet.engines.values():
            running = [x for x in self.pending.values() if isinstance(x, c.Generate) and x.engine == engine.id]
            assert engine.load.running == len(running) * engine.live, "what an ending engine runs is nobody's any more"

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        again = Core(self.config)
        assert [x for event in self.events for x in again.handle(event)] == self.commands


def _rows(slots: tuple[c.MicroBatch | None, ...]) -> list[int]:
    return [row.traj for batch in slots if batch is not None for row in batch.rows]


TestHandover = HandoverMachine.TestCase
TestHandover.settings = settings(
    max_examples=40, stateful_step_count=120, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
