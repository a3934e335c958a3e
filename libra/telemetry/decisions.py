"""Why each turn went where it went: what the scheduler decided, for people and programs.

The journal holds events, and digests of commands; a core that is fed the events decides the same again and says why. So a
decision costs a live run nothing, and is there for ever: `libra replay RUN --decisions`, which calls this after each event.
"""

from collections.abc import Sequence

from msgspec import Struct

from libra.core import commands as c
from libra.core.scheduler.policy import Decision


class Candidate(Struct, frozen=True):
    engine: int
    bucket: str
    cost: float
    """In the policy's own unit; `causal`: seconds."""


class DecisionRecord(Struct, frozen=True, kw_only=True):
    """`engine` took the turn; or it is -1, and the turn began to wait for `waits_for`."""

    t: float
    traj: int
    group: c.Kind
    prompt: int
    sample: int
    turn: int
    """Counts from 1; of a turn that was cut, the same again."""
    engine: int
    bucket: str
    waits_for: str
    reason: str
    candidates: tuple[Candidate, ...]

    def line(self) -> str:
        """For people."""
        what = f"engine {self.engine} ({self.bucket})" if self.engine >= 0 else f"waits for {self.waits_for}"
        costs = ", ".join(f"{x.engine} {x.bucket} {x.cost:.4g}" for x in self.candidates)
        who = f"trajectory {self.traj} ({self.group} {self.prompt}.{self.sample}) turn {self.turn}"
        return f"{self.t:10.3f}  {who:<38}  {what}: {self.reason}" + (f"  [{costs}]" if costs else "")


class Decisions:
    """Tells the decisions of each event. `buckets` has the name of the bucket of each engine that there is at first; `names`
    those of the buckets by index."""

    def __init__(self, buckets: Sequence[str], names: Sequence[str]) -> None:
        self._buckets = dict(enumerate(buckets))
        self._names = names
        self._opened: dict[int, c.OpenTrajectory] = {}
        self._turns: dict[int, int] = {}

    def of(
        self, t: float, commands: Sequence[c.Command], decided: Sequence[tuple[int, Decision]]
    ) -> list[DecisionRecord]:
        """`commands` and `decided` are what one event at `t` led to."""
        for command in commands:
            match command:
                case c.OpenTrajectory(traj=traj):
                    self._opened[traj], self._turns[traj] = command, 1
                case c.StartRole(role="rollout", unit=unit, bucket=bucket):
                    self._buckets[unit] = self._names[bucket]
                case c.Act(traj=traj):
                    self._turns[traj] += 1
                case _:
                    pass
        records = [self._record(t, traj, decision) for traj, decision in decided]
        for command in commands:
            if isinstance(command, c.Discard):
                for traj in command.trajs:
                    del self._opened[traj], self._turns[traj]
        return records

    def _record(self, t: float, traj: int, d: Decision) -> DecisionRecord:
        opened = self._opened[traj]
        return DecisionRecord(
            t=t,
            traj=traj,
            group=opened.kind,
            prompt=opened.prompt,
            sample=opened.sample,
            turn=self._turns[traj],
            engine=d.engine if d.wait_for is None else -1,
            bucket=self._buckets[d.engine] if d.wait_for is None else "",
            waits_for=self._target(d.wait_for),
            reason=d.reason,
            candidates=tuple(Candidate(engine, self._buckets[engine], cost) for engine, cost in d.candidates),
        )

    def _target(self, target: int | None) -> str:
        if target is None:
            return ""
        return f"engine {target} ({self._buckets[target]})" if target >= 0 else f"bucket {self._names[~target]}"
