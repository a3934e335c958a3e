"""What happened when, as pictures need it: turns on engines, rounds on trainers, roles of ranks, ends of trajectories.

A fold over events and commands (`watch`), of a simulation or of a live run's journal. Roles come from what was said and
done alone: a rank is `starting` from its StartRole to its RoleReady, then a trainer or in its bucket until its role ends; so
whatever moves ranks shows without being known here.
"""

from collections.abc import Sequence

from msgspec import Struct

from libra.core import commands as c
from libra.core import events as e

STARTING, DOWN, LOST, TRAINER, GRADIENT = "starting", "down", "lost", "trainer", "gradient"


class Interval(Struct, frozen=True):
    """`who` (a rank or an engine) was or did something from `start` to `stop`, in seconds since the run began."""

    who: int
    what: str
    start: float
    stop: float


class History:
    """`names` are those of the buckets, by index."""

    def __init__(self, names: Sequence[str]) -> None:
        self.end = 0.0
        self.turns: list[Interval] = []
        """By engine."""
        self.rounds: list[Interval] = []
        """By trainer rank: rounds, and the step that closes them."""
        self.ends: list[float] = []
        """When training trajectories ended."""
        self.sampled: list[list[int]] = []
        """Of each training trajectory that ended: tokens sampled before each of its tool returns, and at its end."""
        self.engines: dict[int, str] = {}
        """Engine -> bucket, of all that there ever were."""
        self.ranks_of: dict[int, dict[int, None]] = {}
        """Engine -> its ranks."""
        self._names = names
        self._state: dict[int, tuple[str, float]] = {}
        self._starting: dict[int, str] = {}
        """StartRole -> what the rank will be."""
        self._latest: dict[int, int] = {}
        """Rank -> its newest StartRole: an older process that ends meanwhile makes no difference."""
        self._roles: list[Interval] = []
        self._began: dict[int, float] = {}
        """Running Generate, Round and CloseStep, by command."""
        self._live: dict[int, tuple[bool, list[int]]] = {}
        """Trajectory -> (trains, tokens sampled before each of its tool returns and so far)."""

    def watch(self, event: e.AnyEvent, commands: Sequence[c.Command]) -> None:
        self.end = t = event.t
        match event:
            case e.TurnGenerated(cmd=cmd, traj=traj, engine=engine, tokens=tokens):
                self.turns.append(Interval(engine, "turn", self._began.pop(cmd, t), t))
                if traj in self._live:
                    self._live[traj][1][-1] += tokens
            case e.ToolReturned(traj=traj) if traj in self._live:
                so_far = self._live[traj][1]
                so_far.append(so_far[-1])
            case e.EpisodeEnded(traj=traj) if traj in self._live:
                trains, so_far = self._live.pop(traj)
                if trains:
                    self.sampled.append(so_far)
                    self.ends.append(t)
            case e.RoundDone(cmd=cmd, rank=rank) | e.StepDone(cmd=cmd, rank=rank):
                self.rounds.append(Interval(rank, "round", self._began[cmd], t))
            case e.RoleReady(cmd=cmd, rank=rank):
                self._to(rank, self._starting.pop(cmd, DOWN), t)
            case e.RoleExited(rank=rank, start=start) if self._latest.get(rank) == start:
                self._to(rank, DOWN, t)
            case e.RankLost(rank=rank):
                self._to(rank, LOST, t)
            case _:
                pass
        for command in commands:
            match command:
                case c.Generate() | c.Round() | c.Accumulate() | c.CloseStep():
                    self._began[command.seq] = t
                case c.StartRole(seq=seq, rank=rank, role=role, unit=unit, bucket=bucket):
                    what = self._names[bucket] if role == "rollout" else role
                    self._starting[seq] = what
                    self._latest[rank] = seq
                    self._to(rank, STARTING, t)
                    if role == "rollout":
                        self.engines.setdefault(unit, what)
                        self.ranks_of.setdefault(unit, {})[rank] = None
                case c.OpenTrajectory(traj=traj, kind=kind):
                    self._live[traj] = (kind == "train", [0])
                case c.Discard(trajs=trajs):
                    for traj in trajs:
                        self._live.pop(traj, None)
                case _:
                    pass

    def roles(self) -> list[Interval]:
        """What each rank was, up to now, in the order in which it ceased to be so."""
        return [*self._roles, *(Interval(rank, what, t, self.end) for rank, (what, t) in self._state.items())]

    def _to(self, rank: int, what: str, t: float) -> None:
        before = self._state.get(rank)
        if before is not None and before[0] != what and t > before[1]:
            self._roles.append(Interval(rank, *before, t))
        if before is None or before[0] != what:
            self._state[rank] = (what, t)
