"""Trajectories turn by turn, for who looks at one, and how the last ones went, for who simulates what comes next.

    runtime ── event, commands ──> Turns ──┬─ detail(trajectory) ──> hub ──> a viewer
                                           └─ state() ─────────────> hub ──> a viewer's simulation

The core counts turns and forgets them; here each leaves a record until its trajectory is over, and a bounded number of
trajectories stay beyond their end. Called by the control room behind the follower, live and when a journal is replayed.
"""

from collections import OrderedDict, deque

import msgspec

from libra.control.snapshot import NodeRow, TrajectoryDetail, TurnRow
from libra.control.state import MOST_ENDED, MOST_UNDER_WAY, Ended, LiveState, Spent, UnderWay, UnitState
from libra.core import commands as c
from libra.core import events as e
from libra.core.causality.forecast import Source
from libra.core.coordinator import Core
from libra.core.fleet import NOBODY
from libra.core.trajectory import Trajectory

KEPT = 256
"""Trajectories that are over and can still be looked at."""
SHOWN_TURNS = 128
"""Turns of a trajectory that are shown, the last ones."""


class Turn:
    """One turn; a cut one has several segments, on engines that may differ. Times are the run's clock."""

    __slots__ = (
        "before", "began", "context", "engine", "observed", "over", "reason", "sampled", "segments", "status", "tool", "tool_s",
        "version",
    )  # fmt: skip

    def __init__(self, began: float, context: int, before: int) -> None:
        self.began = began
        self.context = context
        self.before = before
        """Tokens that the trajectory had sampled."""
        self.engine = -1
        self.segments = 0
        self.sampled = 0
        self.version = -1
        self.over: float | None = None
        self.reason = ""
        self.tool = ""
        self.tool_s: float | None = None
        self.status = ""
        self.observed = 0


class Record:
    """One trajectory."""

    __slots__ = ("attempt", "batch", "group", "kind", "prompt", "prompt_tokens", "reward", "sample", "stage", "turns")

    def __init__(self, command: c.OpenTrajectory, group: int, batch: int) -> None:
        self.kind = command.kind
        self.prompt = command.prompt
        self.sample = command.sample
        self.attempt = command.attempt
        self.group = group
        self.batch = batch
        self.prompt_tokens = 0
        self.turns: list[Turn] = []
        self.stage = ""
        """How it ended; "" while it is in flight."""
        self.reward: float | None = None


class Turns:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.ended: deque[Ended] = deque(maxlen=MOST_ENDED)
        self._records: dict[int, Record] = {}
        """In flight, oldest first."""
        self._over: OrderedDict[int, Record] = OrderedDict()
        self._now = 0.0

    # --- as they pass

    def event(self, event: e.AnyEvent) -> None:
        self._now = event.t
        match event:
            case e.TurnGenerated(traj=traj) if (record := self._records.get(traj)) and record.turns:
                self._sampled(traj, record, event)
            case e.ToolReturned(traj=traj) if (record := self._records.get(traj)) and record.turns:
                turn = record.turns[-1]
                turn.tool, turn.status = event.tool, event.status
                turn.tool_s, turn.observed = event.seconds, event.observation_tokens
            case e.TurnReady(traj=traj) if record := self._records.get(traj):
                record.prompt_tokens = event.context_tokens
            case e.EpisodeEnded(traj=traj) if record := self._records.get(traj):
                self._ended(traj, record, event.reward)
            case _:
                pass

    def command(self, command: c.Command) -> None:
        match command:
            case c.Generate(traj=traj, engine=engine) if record := self._records.get(traj):
                self._sent(traj, record, engine)
            case c.OpenTrajectory(traj=traj):
                known = self.core.rollout.trajectory(traj)
                group, batch = (known.group.id, known.group.slot) if known else (-1, -1)
                self._records[traj] = Record(command, group, batch)
            case c.Discard(trajs=trajs):
                for traj in trajs:
                    if record := self._records.get(traj):
                        self._keep(traj, record, "given up")
            case _:
                pass

    def _sent(self, traj: int, record: Record, engine: int) -> None:
        if not record.turns or record.turns[-1].over is not None:
            known = self.core.rollout.trajectory(traj)
            context, before = (known.context_tokens, known.sampled_tokens) if known else (0, 0)
            record.turns.append(Turn(self._now, context, before))
        turn = record.turns[-1]
        turn.engine = engine
        turn.segments += 1
        decision = self.core.placement.decisions.get(traj)
        turn.reason = decision.reason if decision else ""

    def _sampled(self, traj: int, record: Record, event: e.TurnGenerated) -> None:
        """The core knows whether the answer still counted: that of an engine given up does not."""
        turn, known = record.turns[-1], self.core.rollout.trajectory(traj)
        if known is None or (known.sampled_tokens == turn.before + turn.sampled and known.turns < len(record.turns)):
            return
        turn.sampled = known.sampled_tokens - turn.before
        turn.version = max(turn.version, event.newest)
        if known.turns == len(record.turns):
            turn.over = event.t

    def _ended(self, traj: int, record: Record, reward: float) -> None:
        record.reward = reward
        if record.kind == "train" and record.prompt_tokens:
            spent = [
                Spent(t.sampled, t.tool, t.tool_s or 0.0, t.status or "ok", t.observed)
                for t in record.turns
                if t.sampled
            ]
            if spent:
                self.ended.append(Ended(record.prompt_tokens, tuple(spent)))
        self._keep(traj, record, "ended")

    def _keep(self, traj: int, record: Record, stage: str) -> None:
        del self._records[traj]
        record.stage = stage
        self._over[traj] = record
        if len(self._over) > KEPT:
            self._over.popitem(last=False)

    # --- looks

    def detail(self, id: int, now: float) -> TrajectoryDetail:
        record = self._records.get(id) or self._over.get(id)
        if record is None:
            return TrajectoryDetail(id, now, found=False)
        known = None if record.stage else self.core.rollout.trajectory(id)
        live = known if known is not None and known.live else None
        first = max(0, len(record.turns) - SHOWN_TURNS)
        return TrajectoryDetail(
            id=id,
            t=now,
            found=True,
            task="train" if record.kind == "train" else "held-out",
            prompt=record.prompt,
            sample=record.sample,
            group=record.group,
            batch=record.batch,
            attempt=record.attempt,
            stage=record.stage or (known.stage if known else ""),
            reward=record.reward,
            turns=tuple(self._turn(n, turn, now) for n, turn in enumerate(record.turns[first:], first)),
            earlier=first,
            path=self._path(live) if live else (),
        )

    def _turn(self, n: int, turn: Turn, now: float) -> TurnRow:
        fleet = self.core.fleet
        bucket = self.core.config.bucket[fleet.bucket_of(turn.engine)].name if turn.engine >= 0 else ""
        size = self.core.placement.size_of(turn.observed)
        signal = f"{turn.tool}/{size}/{turn.status}" if turn.tool_s is not None else ""
        seconds = None if turn.over is None else round(turn.over - turn.began, 3)
        tool_s = None if turn.tool_s is None else round(turn.tool_s, 3)
        return TurnRow(
            n, round(turn.began, 3), turn.sampled, turn.context, turn.engine, bucket, turn.version, seconds, tool_s, signal,
            turn.reason, turn.segments,
        )  # fmt: skip

    def _path(self, traj: Trajectory) -> tuple[NodeRow, ...]:
        """The nodes that speak for it, from the least to the most specific."""
        sources, signals = self.core.placement.sources(traj)
        return tuple(_node(traj, source, signals) for source in reversed(sources))

    def state(self, now: float) -> LiveState:
        """What a simulation starts from."""
        core = self.core
        spare = tuple(r.rank for r in core.fleet.ranks.values() if r.unit == NOBODY)
        under_way: list[UnderWay] = []
        for id, record in self._records.items():
            traj = core.rollout.trajectory(id)
            if traj is not None and traj.live and record.kind == "train":
                under_way.append(UnderWay(record.group, traj.context_tokens, traj.sampled_tokens, traj.turns))
                if len(under_way) == MOST_UNDER_WAY:
                    break
        return LiveState(
            t=now,
            epoch=core.fleet.epoch,
            step=core.admission.done,
            config=msgspec.json.encode(core.config),
            units=tuple(UnitState(u.bucket, u.ranks) for u in core.fleet.units() if not u.gated),
            spare=spare,
            factors={shape.name: shape.factor for shape in core.placement.shapes},
            train_s=core.elastic.balance.train_s,
            rollout_s=core.elastic.balance.rollout_s,
            ended=tuple(self.ended),
            under_way=tuple(under_way),
        )


def _node(traj: Trajectory, source: Source, signals: list[str]) -> NodeRow:
    root = {"prompt": f"prompt {traj.group.prompt}", "family": "family", "global": "all"}.get(
        source.scope, source.scope
    )
    label = f"{root}: {signals[source.depth - 1]}" if source.depth else root
    mean, p90 = source.tail.mean, source.tail.quantile(0.9)
    return NodeRow(
        label, round(source.evidence, 2), round(mean, 1), round(p90, 1), source.depth, round(source.share, 3)
    )
