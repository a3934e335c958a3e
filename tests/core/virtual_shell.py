"""A shell with virtual time and seeded delays that carries out the core's commands: what tests drive the core with.

It checks, on the way, what must hold in any run: no trajectory in two places, KV room and batch never exceeded, answers to
stale commands harmless, every turn sampled by a version that the lag allows, every row of a step trained exactly once.
"""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.learned import Learned
from libra.core.saved import SavedCore

SIGNALS: tuple[tuple[str, int, e.Status], ...] = (
    ("t", 3, "ok"),
    ("t", 600, "ok"),
    ("t", 3, "error"),
    ("u", 9, "timeout"),
)
"""What tools return, by turn: counted as observations, though the context grows by three tokens whatever they say."""


@dataclass
class Episode:
    kind: str
    turns_left: int
    fails: bool
    context: int = 8
    sampled: int = 0
    engine: int | None = None
    versions: list[int] = field(default_factory=list)


class VirtualShell:
    """`fail_rate`: share of episodes that end as failed; `kill_rate`: chance that an engine's role dies at a turn;
    `share_fault_rate`: chance that an order to a replica is lost, refused, or kills it; `kept`: share of the context that
    engines find in their cache when a turn comes back to them, and report; None: they report nothing."""

    def __init__(
        self,
        config: Config,
        seed: int = 0,
        fail_rate: float = 0.0,
        kill_rate: float = 0.0,
        share_fault_rate: float = 0.0,
        learned: Learned | None = None,
        saved: SavedCore | None = None,
        save_fault_rate: float = 0.0,
        kept: float | None = None,
    ) -> None:
        self.config = config
        self.core = Core(config, oracle=self.residual_tokens, learned=learned, saved=saved)
        self.save_fault_rate = save_fault_rate
        self.kept = kept
        self.last_engine: dict[int, int] = {}
        """By trajectory: where its last turn ran."""
        self.returned = 0
        """Turns that went back to the engine of the turn before."""
        self.reused_tokens: dict[int, int] = {}
        self.checkpoints: dict[int, SavedCore] = {}
        """What each checkpoint holds of the core, by step."""
        self.random = random.Random(seed)
        self.fail_rate, self.kill_rate, self.share_fault_rate = fail_rate, kill_rate, share_fault_rate
        self.now = saved.seconds if saved else 0.0
        self.heap: list[tuple[float, int, e.AnyEvent]] = []
        self.n = 0
        self.events: list[e.AnyEvent] = []
        self.commands: list[c.Command] = []
        self.episodes: dict[int, Episode] = {}
        self.starts: dict[int, tuple[int, int]] = {}
        """Role processes that have not ended: start -> (rank, unit)."""
        self.round_rows: list[int] = []
        self.share_rows: dict[int, list[int]] = {}
        """Of the open step: trajectories in rounds, and in the work of each replica."""
        self.engine_version: dict[int, int] = {}
        self.reserved: dict[int, dict[int, tuple[int, int]]] = {}
        """engine -> {command: (trajectory, tokens of KV room)}"""
        self.end: c.FinishRun | None = None
        self.count: Counter[str] = Counter()

    def residual_tokens(self, traj: int) -> float:
        """About what the episode still needs: the shell alone knows how many turns are left."""
        return 6.5 * self.episodes[traj].turns_left

    def at(self, delay: float, make, **fields) -> None:  # type: ignore[no-untyped-def]
        self.n += 1
        t = self.now + delay
        heapq.heappush(self.heap, (t, self.n, make(t=t, **fields)))

    def soon(self) -> float:
        return self.random.expovariate(1.0) * 0.1

    def run(self, limit: int = 500_000) -> "VirtualShell":
        self.at(0.0, e.RunStarted)
        for rank in range(1, self.config.devices + 1):
            self.at(self.soon(), e.RankJoined, rank=rank, host="h", device="cpu")
        while self.heap and self.end is None:
            limit -= 1
            assert limit > 0, "the run does not end"
            self.now, _, event = heapq.heappop(self.heap)
            self.feed(event)
        return self

    def feed(self, event: e.AnyEvent) -> None:
        self.events.append(event)
        if isinstance(event, e.TurnGenerated) and self.free(event.cmd):
            self.episodes[event.traj].context += event.tokens
            self.episodes[event.traj].sampled += event.tokens
        if isinstance(event, e.RoleExited):
            _, unit = self.starts.pop(event.start, (0, -1))
            self.reserved.get(unit, {}).clear()
        if isinstance(event, e.RankLost):
            for start, (rank, unit) in list(self.starts.items()):
                if rank == event.rank:
                    del self.starts[start]
                    self.reserved.get(unit, {}).clear()
        for command in self.core.handle(event):
            self.commands.append(command)
            assert command.seq == len(self.commands), "commands are numbered without gaps"
            self.count[type(command).__name__] += 1
            self.carry_out(command)

    def free(self, cmd: int) -> bool:
        """Whether the turn was still running: not on an engine that died, nor given up."""
        return any(held.pop(cmd, None) is not None for held in self.reserved.values())

    def carry_out(self, command: c.Command) -> None:
        r = self.random
        match command:
            case c.StartRole():
                self.starts[command.seq] = (command.rank, command.unit)
                assert [rank for rank, _ in self.starts.values()].count(command.rank) <= 2
                if command.role == "rollout":
                    self.engine_version[command.unit] = -1
                    self.reused_tokens[command.unit] = 0
                    self.reserved[command.unit] = {}
                self.at(self.soon(), e.RoleReady, cmd=command.seq, rank=command.rank)
            case c.StopRole():
                self.at(self.soon(), e.RoleExited, rank=command.rank, start=command.start, code=-9, reason="stopped")
            case c.FormGroup():
                for rank in command.members:
                    self.at(self.soon(), e.GroupFormed, cmd=command.seq, rank=rank)
            case c.WarmStart():
                for rank in command.ranks:
                    self.at(1.0, e.WarmStarted, cmd=command.seq, rank=rank, cached=False, loss=0.1, seconds=1.0)
                    self.at(1.0 + self.soon(), e.WeightsHeld, rank=rank, version=0)
            case c.InstallWeights():
                self.engine_version[command.unit] = max(self.engine_version.get(command.unit, -1), command.version)
                for rank in command.ranks:
                    self.at(
                        self.soon(), e.WeightsInstalled,
                        cmd=command.seq, rank=rank, version=command.version, seconds=0.01,
                    )  # fmt: skip
            case c.OpenTrajectory():
                turns = 1 + int(r.paretovariate(1.2))
                self.episodes[command.traj] = Episode(command.kind, min(turns, 12), r.random() < self.fail_rate)
                self.at(
                    self.soon(), e.TurnReady, cmd=command.seq, traj=command.traj, context_tokens=8, max_new_tokens=12
                )
            case c.Generate():
                self.generate(command)
            case c.CutTurn():
                self.cut(command)
            case c.Act():
                self.act(command)
            case c.Discard():
                for traj in command.trajs:
                    del self.episodes[traj]
                for held in self.reserved.values():
                    for seq in [s for s, (traj, _) in held.items() if traj in command.trajs]:
                        del held[seq]
            case c.OpenStep():
                self.round_rows, self.share_rows = [], {}
            case c.Accumulate() | c.OfferShare() | c.FetchShare():
                self.share(command)
            case c.Round():
                self.round_rows += rows_of(command.slots)
                for rank in command.ranks:
                    self.at(self.soon(), e.RoundDone, cmd=command.seq, rank=rank, seconds=0.1)
            case c.CloseStep():
                trained = self.round_rows + [row for id in command.shares for row in self.share_rows[id]]
                step = self.core.learner.step
                assert step is not None
                assert sorted(trained) == sorted(row.traj for _, row in step.figures.rows), "each row exactly once"
                for rank in command.ranks:
                    self.at(
                        0.2, e.StepDone,
                        cmd=command.seq, rank=rank, finite=True, loss=0.0, grad_norm=1.0, seconds=0.2,
                    )  # fmt: skip
                    self.at(0.2 + self.soon(), e.WeightsHeld, rank=rank, version=command.version)
            case c.SaveCheckpoint():
                step = self.core.learner.step
                assert step is None or step.next_round <= 2, "it lies before the next step's rounds"
                self.checkpoints[command.step] = self.core.saved(command.step)
                if r.random() < self.save_fault_rate:
                    self.at(self.soon(), e.CheckpointFailed, cmd=command.seq, reason="made to fail")
                else:
                    self.at(self.soon(), e.CheckpointSaved, cmd=command.seq, copy_s=0.1, seconds=0.5, bytes=10)
            case c.LoadCheckpoint():
                for rank in command.ranks:
                    self.at(1.0, e.CheckpointLoaded, cmd=command.seq, rank=rank, seconds=1.0)
                    self.at(1.0 + self.soon(), e.WeightsHeld, rank=rank, version=command.version)
            case c.SetTimer():
                self.at(command.at - self.now, e.TimerFired, cmd=command.seq)
            case c.FinishRun():
                self.end = command
            case _:
                pass

    def generate(self, command: c.Generate) -> None:
        episode = self.episodes[command.traj]
        bucket = self.config.bucket[self.core.fleet.engines[command.engine].load.bucket]
        version = self.engine_version[command.engine]
        assert version >= 0, "a turn went to an engine without weights"
        held = self.reserved[command.engine]
        held[command.seq] = (command.traj, episode.context + command.max_new_tokens)
        assert len(held) <= bucket.max_batch
        assert sum(room for _, room in held.values()) <= bucket.kv_tokens
        if self.random.random() < self.kill_rate:
            self.kill(command.engine)
        self.reuse(command, episode.context)
        tokens = self.random.randint(1, command.max_new_tokens)
        finish = "length" if tokens == command.max_new_tokens else "stop"
        self.at(
            self.soon() * tokens, e.TurnGenerated,
            cmd=command.seq, traj=command.traj, engine=command.engine, tokens=tokens,
            oldest=version, newest=version, finish=finish,
        )  # fmt: skip

    def reuse(self, command: c.Generate, context: int) -> None:
        """What the engine finds of the turn's context, and what it says of that every now and then."""
        returned = self.last_engine.get(command.traj) == command.engine
        self.last_engine[command.traj] = command.engine
        self.returned += returned
        if self.kept is None:
            return
        self.reused_tokens[command.engine] += int(returned * self.kept * context)
        if self.count["Generate"] % 5 == 0:
            reused = self.reused_tokens[command.engine]
            self.at(0.001, e.EngineReported, engine=command.engine, running=0, waiting=0, kv_tokens=0, prefilled_tokens=0,
                    reused_tokens=reused, preemptions=0)  # fmt: skip

    def kill(self, unit: int) -> None:
        """The role of the unit's first rank dies."""
        start, rank = next((start, rank) for start, (rank, id) in self.starts.items() if id == unit)
        self.at(0.01, e.RoleExited, rank=rank, start=start, code=-11, reason="crashed")

    def cut(self, command: c.CutTurn) -> None:
        """Soon, with what the turn has by then; it may have ended before, and then the cut finds nothing."""
        held = self.reserved[command.engine]
        assert command.turn in held, "only running turns are cut, on their engine"
        most = held[command.turn][1] - self.episodes[command.traj].context
        tokens = self.random.randrange(max(1, most))
        version = self.engine_version[command.engine] if tokens else -1
        self.at(
            self.soon(), e.TurnGenerated,
            cmd=command.turn, traj=command.traj, engine=command.engine, tokens=tokens,
            oldest=version, newest=version, finish="cut",
        )  # fmt: skip

    def share(self, command: c.Accumulate | c.OfferShare | c.FetchShare) -> None:
        if self.random.random() < self.share_fault_rate:
            match self.random.choice(("lost", "silent", "dies")):
                case "lost":
                    rank = command.ranks[-1]
                    kind = e.RoundRefused if isinstance(command, c.Accumulate) else e.ShareLost
                    self.at(self.soon(), kind, cmd=command.seq, rank=rank, reason="made to fail")
                case "dies":
                    self.kill(command.replica)
                case _:
                    pass
            return
        for rank in command.ranks:
            match command:
                case c.Accumulate():
                    self.at(self.soon(), e.RoundDone, cmd=command.seq, rank=rank, seconds=0.1)
                case c.OfferShare():
                    self.at(self.soon(), e.ShareOffered, cmd=command.seq, rank=rank)
                case c.FetchShare():
                    self.at(self.soon(), e.ShareHeld, cmd=command.seq, rank=rank, seconds=0.1)
        if isinstance(command, c.Accumulate):
            self.share_rows.setdefault(command.replica, []).extend(rows_of(command.slots))

    def act(self, command: c.Act) -> None:
        episode = self.episodes[command.traj]
        if episode.fails and episode.turns_left == 1:
            self.at(self.soon(), e.TrajectoryFailed, cmd=command.seq, traj=command.traj, reason="tool died")
            return
        episode.turns_left -= 1
        if episode.turns_left <= 0:
            self.at(
                self.soon(), e.EpisodeEnded,
                cmd=command.seq, traj=command.traj, reward=float(self.random.random() < 0.5),
                loss_tokens=episode.sampled, total_tokens=episode.context,
            )  # fmt: skip
            return
        episode.context += 3
        tool, size, status = SIGNALS[(command.traj + episode.turns_left) % len(SIGNALS)]
        self.at(
            self.soon(), e.ToolReturned,
            cmd=command.seq, traj=command.traj, tool=tool, status=status, observation_tokens=size, seconds=0.01,
            context_tokens=episode.context, max_new_tokens=12,
        )  # fmt: skip


def rows_of(slots: Sequence[c.MicroBatch | None]) -> list[int]:
    return [row.traj for batch in slots if batch is not None for row in batch.rows]
