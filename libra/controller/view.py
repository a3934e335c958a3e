"""From the state of a run to a `Snapshot`: pure functions that only look. The one place that reads the core for viewers.

    core, follower, liveness, gauges ──> Looker.snapshot(n) ──> hub

What depends on how ranks get their roles stands in the functions at the end. At 1,024 ranks and 10,000 trajectories a
snapshot takes milliseconds (`tests/bench/control.py`): nothing here walks through all trajectories.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Protocol

from libra.control.snapshot import (
    Alert,
    AllocationPart,
    BucketRow,
    EngineRow,
    MoveRow,
    PacePart,
    RankRow,
    ReplicaRow,
    RunPart,
    Snapshot,
    TailRow,
    TrainerPart,
)
from libra.controller.follow import Follower
from libra.core.coordinator import Core
from libra.core.fleet import DeviceRank, Engine
from libra.core.handover import Move
from libra.telemetry.display import RunView
from libra.telemetry.summary import Tally
from libra.wire.messages import EngineStats

TAIL = 24
"""Trajectories in a snapshot."""
RECENT_MOVES = 8
SLOW_FACTOR = 2.0
"""Times the mean age at which trajectories end."""


class Progress(Protocol):
    """What heartbeats tell of a role."""

    doing: str
    beats: int


class Liveness(Protocol):
    """What heartbeats tell of a rank: when, and of its roles by their start."""

    @property
    def seen(self) -> float: ...
    @property
    def roles(self) -> Mapping[int, Progress]: ...


class Gauges(Protocol):
    """What the shell counts and hears of its engines: the screen, in a live run."""

    @property
    def view(self) -> RunView: ...
    @property
    def tally(self) -> Tally: ...
    def stats(self, engine: int) -> EngineStats | None:
        """What the engine itself last said."""
        ...


class Looker:
    """`liveness(rank)` is None for a rank that is not linked; its times are read off `wall`, all others off the run's clock."""

    def __init__(
        self,
        core: Core,
        follower: Follower,
        gauges: Gauges,
        liveness: Callable[[int], Liveness | None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._wall = wall
        self._core = core
        self._follower = follower
        self._gauges = gauges
        self._liveness = liveness
        self._clock = clock
        self._stalled_s = core.config.deadline.stalled_s

    def snapshot(self, n: int) -> Snapshot:
        self._follower.ask()
        core, now = self._core, self._clock()
        names = [bucket.name for bucket in core.config.bucket]
        ranks = tuple([self._rank(rank, names, now) for rank in core.fleet.ranks.values()])
        return Snapshot(
            n=n,
            t=round(now, 4),
            run=self._run(),
            pace=self._pace(),
            allocation=allocation(core, Counter(row.role for row in ranks)),
            trainer=trainer(core, self._follower, now),
            ranks=ranks,
            engines=tuple([self._engine(engine, names) for engine in engines(core)]),
            replicas=replicas(core, self._follower.micro_batches),
            buckets=self._buckets(now),
            tail=tuple([row for id in self._follower.tail(TAIL) if (row := self._tail(id, now)) is not None]),
            tail_of=len(self._follower.flights),
        )

    def _pace(self) -> PacePart:
        """The core's own figures, those that ranks move by, where it has some."""
        follower, balance = self._follower, self._core.elastic.balance
        return PacePart(balance.train_s or follower.train_s, balance.rollout_s or follower.rollout_s, follower.wait_s)

    def _run(self) -> RunPart:
        core, view, tally = self._core, self._gauges.view, self._gauges.tally
        config = core.config
        return RunPart(
            name=config.run.name,
            mode=config.run.mode,
            seed=config.run.seed,
            policy=config.scheduler.policy,
            phase="warm start" if core.phase == "starting" and core.lifecycle.warming else core.phase,
            step=core.admission.done,
            steps=config.run.steps,
            version=core.learner.version,
            eta_s=view.eta_s,
            tokens_per_s=round(view.tokens_per_s, 1),
            tokens_sampled=tally.tokens_sampled,
            rewards=tuple(round(r, 4) if isfinite(r) else None for r in self._follower.rewards),
            heldout={str(kind): round(reward, 4) for kind, reward in tally.heldout.items()},
            lag=tally.lag,
            max_lag=config.max_lag,
            groups_ready=core.learner.groups_ready(),
            in_flight={stage: count for stage, count in tally.stages.items() if count > 0},
            failed=core.rollout.failed,
            progress=view.progress,
            label=view.label,
            rule=config.elastic.rule,
            alerts=tuple(Alert(round(t, 3), level, what) for t, level, what in self._follower.alerts),
        )

    def _rank(self, rank: DeviceRank, names: list[str], now: float) -> RankRow:
        alive = self._liveness(rank.rank)
        host, device = self._follower.hosts.get(rank.rank, ("", ""))
        unit = self._core.fleet.unit(rank.unit)
        role = alive.roles.get(unit.starts.get(rank.rank, 0)) if alive and unit else None
        return RankRow(
            rank.rank,
            host,
            device,
            self._core.fleet.role(rank, unit),
            rank.unit,
            names[unit.bucket] if unit and unit.bucket >= 0 else "",
            unit.state if unit and rank.status == "here" else rank.status,
            max(0.0, self._wall() - alive.seen) if alive else None,
            role.doing if role else "",
            role.beats if role else -1,
            self._follower.busy_s.get(rank.rank, 0.0),
            unit.restarts if unit else 0,
            rank.move,
        )

    def _engine(self, engine: Engine, names: list[str]) -> EngineRow:
        load = engine.load
        said = self._gauges.stats(load.id)
        held = said.kv_tokens if said else load.reserved_tokens
        return EngineRow(
            load.id,
            names[load.bucket],
            engine.ranks,
            load.up,
            load.version,
            engine.asked if engine.command and engine.asked > engine.version else -1,
            said.running if said else load.running,
            said.waiting if said else 0,
            held / load.kv_tokens,
            load.kv_tokens,
            load.outstanding_tokens,
            load.residual_tokens,
            self._follower.engine_tokens.get(load.id, 0),
            said.prefilled_tokens if said else 0,
            said.reused_tokens if said else 0,
            said.preemptions if said else 0,
        )

    def _buckets(self, now: float) -> tuple[BucketRow, ...]:
        shapes = self._core.placement.shapes
        up = [0] * len(shapes)
        built = [0] * len(shapes)
        in_flight = [0] * len(shapes)
        for engine in engines(self._core):
            load = engine.load
            built[load.bucket] += 1
            up[load.bucket] += load.up
            in_flight[load.bucket] += load.running
        rows: list[BucketRow] = []
        for index, shape in enumerate(shapes):
            began = self._follower.oldest_turn(index)
            rows.append(
                BucketRow(
                    shape.name,
                    shape.tp,
                    built[index],
                    up[index],
                    in_flight[index],
                    shape.queued_tokens,
                    round(now - began, 2) if began is not None else None,
                    self._follower.residuals(index),
                    round(shape.factor, 4),
                )
            )
        return tuple(rows)

    def _tail(self, id: int, now: float) -> TailRow | None:
        traj, flight = self._core.rollout.trajectory(id), self._follower.flights[id]
        if traj is None or not traj.live:
            return None
        residual = self._core.placement.residual(traj)
        age, usual = now - flight.opened, self._follower.ended_age_s
        return TailRow(
            id=id,
            kind=traj.group.kind,
            prompt=traj.group.prompt,
            sample=traj.sample,
            group=traj.group.id,
            batch=traj.group.slot,
            stage=traj.stage,
            since_s=round(now - flight.since, 2),
            turns=traj.turns,
            sampled_tokens=traj.sampled_tokens,
            context_tokens=traj.context_tokens,
            residual_mean=round(residual.mean, 1),
            residual_p90=round(residual.p90, 1),
            evidence=round(residual.evidence, 2),
            signal=flight.signal,
            engine=traj.engine,
            age_s=round(age, 2),
            slow=usual is not None and age > SLOW_FACTOR * usual,
            stalled=now - flight.since > self._stalled_s,
            retrying=traj.attempt > 0,
            raised=traj.raised,
        )


def trainer(core: Core, follower: Follower, now: float) -> TrainerPart:
    step = core.learner.step
    if step is None:
        return TrainerPart(None, None, 0, 0, 0, False, (), round(max(0.0, now - follower.idle_since), 2))
    oldest = next(iter(step.unanswered.values()), [])
    closing = step.close_seq > 0
    return TrainerPart(
        step=step.version,
        batch=step.figures.batch,
        rounds_out=len(step.unanswered),
        rounds=step.next_round,
        micro_batches_left=len(step.queue),
        closing=closing,
        waits_for=tuple(oldest or (step.unclosed if closing else ())),
        since_s=round(max(0.0, now - follower.step_began), 2),
    )


# --- who does what


def engines(core: Core) -> Iterable[Engine]:
    return core.fleet.engines.values()


def replicas(core: Core, taken: Mapping[int, int]) -> tuple[ReplicaRow, ...]:
    """`taken`: micro-batches by replica."""
    return tuple(
        ReplicaRow(r.id, r.ranks, r.state, r.version, taken.get(r.id, 0)) for r in core.fleet.replicas.values()
    )


def epoch(core: Core) -> int:
    """Of the allocation: what orders are compared with."""
    return core.fleet.epoch


def allocation(core: Core, ranks: Mapping[str, int]) -> AllocationPart:
    """`ranks`: how many have each role."""
    elastic = core.elastic
    return AllocationPart(
        epoch=core.fleet.epoch,
        **{role: ranks.get(role, 0) for role in ("trainer", "rollout", "gradient", "moving", "spare", "lost")},
        hold_until=elastic.hold_until if elastic.hold_until > core.out.now else None,
        moves=tuple(_move(move) for move in core.handover.moves.values()),
        recent=tuple(_move(move) for move in elastic.history[-RECENT_MOVES:]),
        proposal=elastic.proposal.reason if elastic.proposal else "",
        paused=elastic.paused,
        gain=elastic.proposal.gain if elastic.proposal else None,
    )


def _move(move: Move) -> MoveRow:
    return MoveRow(
        move.id, move.ranks, move.what, move.stage, round(move.began, 3), round(move.since, 3), move.author, move.reason
    )
