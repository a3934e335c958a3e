"""Which way trajectories went over the engines, and which of them held up a step.

A fold over events and commands, part of the tally: live run, replay and simulator tell the same.

**Stragglers.** The trainer stood idle for the last `wait_s` before it opened a batch. Of the trajectories that ended meanwhile
each held the step up from the end before it (or the beginning of the wait) until its own: these seconds sum up to the wait.
Kept are the `A_BATCH` latest of a batch, and the `OF_A_RUN` of a run that held their steps up longest. Memory is bounded by
the trajectories of the batches in flight.
"""

import heapq
from collections.abc import Sequence

from msgspec import Struct, field

from libra.core import commands as c
from libra.core import events as e

A_BATCH = 3
OF_A_RUN = 10


class Straggler(Struct, frozen=True, kw_only=True):
    """A training trajectory that ended while the trainer stood idle for its batch."""

    batch: int
    traj: int
    prompt: int
    sample: int
    held_s: float
    """Of the trainer's idle seconds: since the end before it."""
    seconds: float
    """From its opening to its end."""
    turns: int
    tokens: int
    """Sampled ones."""
    tool_s: float
    engines: tuple[int, ...]
    """Of its turns, in order; a turn that was cut has several."""


class _Path(Struct):
    """A trajectory that is not closed yet."""

    opened: c.OpenTrajectory
    at: float
    ended: float = 0.0
    turns: int = 0
    tokens: int = 0
    tool_s: float = 0.0
    engines: list[int] = field(default_factory=list)


class Paths:
    """`buckets` has the name of the bucket of each engine that there is at first, `names` those of the buckets by index;
    `groups_per_batch` tells the batch of a prompt."""

    def __init__(self, buckets: Sequence[str] = (), groups_per_batch: int = 1, names: Sequence[str] = ()) -> None:
        self.turns_by_bucket: dict[str, int] = dict.fromkeys(buckets, 0)
        """Turns that ended there, cut ones and held-out tasks included."""
        self.engine_moves = self.bucket_moves = 0
        """Turns that ended on another engine, or in another bucket, than the trajectory's turn before."""
        self.latest: list[Straggler] = []
        """Of the batch that was consumed last, the latest first."""
        self._buckets = dict(enumerate(buckets))
        self._names = names
        self._groups = groups_per_batch
        self._now = 0.0
        self._live: dict[int, _Path] = {}
        self._ended: dict[int, list[_Path]] = {}
        """By batch, in the order of their ends."""
        self._assembled: dict[int, float] = {}
        """When a batch that is being trained was opened."""
        self._longest: list[tuple[float, int, Straggler]] = []

    def event(self, event: e.Event) -> None:
        self._now = max(self._now, event.t)
        match event:
            case e.TurnGenerated(traj=traj, engine=engine) if path := self._live.get(traj):
                self._turn(path, event, engine)
            case e.ToolReturned(traj=traj, seconds=seconds) if path := self._live.get(traj):
                path.tool_s += seconds
            case e.EpisodeEnded(traj=traj) if path := self._live.pop(traj, None):
                path.ended = event.t
                if path.opened.kind == "train":
                    self._ended.setdefault(path.opened.prompt // self._groups, []).append(path)
            case _:
                pass

    def command(self, command: c.Command) -> None:
        match command:
            case c.OpenTrajectory(traj=traj):
                self._live[traj] = _Path(command, self._now)
            case c.Discard(trajs=trajs):
                for traj in trajs:
                    self._live.pop(traj, None)
            case c.StartRole(role="rollout", unit=unit, bucket=bucket) if bucket < len(self._names):
                self._buckets[unit] = self._names[bucket]
            case c.OpenStep(batch=batch):
                self._assembled[batch] = self._now
            case c.BatchConsumed():
                self._consumed(command)
            case _:
                pass

    @property
    def longest(self) -> tuple[Straggler, ...]:
        """Of the whole run, the longest hold first."""
        return tuple(s for _, _, s in sorted(self._longest, key=lambda x: (-x[0], -x[1])))

    def _turn(self, path: _Path, event: e.TurnGenerated, engine: int) -> None:
        bucket = self._bucket(engine)
        self.turns_by_bucket[bucket] = self.turns_by_bucket.get(bucket, 0) + 1
        if path.engines and path.engines[-1] != engine:
            self.engine_moves += 1
            self.bucket_moves += self._bucket(path.engines[-1]) != bucket
        path.engines.append(engine)
        path.tokens += event.tokens
        path.turns += event.finish != "cut"

    def longest_entries(self) -> list[tuple[float, int, Straggler]]:
        """What `resume` takes back."""
        return list(self._longest)

    def resume(self, turns_by_bucket: dict[str, int], longest: list[tuple[float, int, Straggler]]) -> None:
        """Go on from an earlier part of the same run."""
        self.turns_by_bucket |= turns_by_bucket
        self._longest = list(longest)
        heapq.heapify(self._longest)

    def _bucket(self, engine: int) -> str:
        return self._buckets.get(engine, f"engine {engine}")

    def _consumed(self, batch: c.BatchConsumed) -> None:
        ended = self._ended.pop(batch.batch, [])
        complete = self._assembled.pop(batch.batch, self._now)
        before = idle_from = complete - batch.wait_s
        found: list[Straggler] = []
        for path in ended:
            if path.ended > idle_from:
                found.append(self._straggler(batch.batch, path, path.ended - before))
                before = path.ended
        self.latest = found[: -A_BATCH - 1 : -1]
        for straggler in found:
            entry = (straggler.held_s, -straggler.traj, straggler)
            if len(self._longest) < OF_A_RUN:
                heapq.heappush(self._longest, entry)
            else:
                heapq.heappushpop(self._longest, entry)

    @staticmethod
    def _straggler(batch: int, path: _Path, held_s: float) -> Straggler:
        o = path.opened
        return Straggler(
            batch=batch,
            traj=o.traj,
            prompt=o.prompt,
            sample=o.sample,
            held_s=round(held_s, 4),
            seconds=round(path.ended - path.at, 4),
            turns=path.turns,
            tokens=path.tokens,
            tool_s=round(path.tool_s, 4),
            engines=tuple(path.engines),
        )
