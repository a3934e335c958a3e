"""From the state of a run to a `Snapshot`: pure functions that only look. The one place that reads the core for viewers.

    core, follower, linked ranks, gauges ──> Looker.snapshot(n) ──> hub
                                               └─ rows: ranks, engines

What depends on how ranks get their roles stands in the functions at the end. At 1,024 ranks and 10,000 trajectories a
snapshot takes milliseconds (`tests/bench/control.py`): nothing here walks through all trajectories, and what grows with the
ranks is in `libra.controller.rows`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Protocol

from libra.control.snapshot import (
    Alert,
    AllocationPart,
    BucketRow,
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
from libra.controller.rows import Liveness, engine_rows, rank_rows
from libra.core.coordinator import Core
from libra.core.handover import Move
from libra.telemetry.display import RunView
from libra.telemetry.summary import Tally
from libra.wire.messages import EngineStats

TAIL = 24
"""Trajectories in a snapshot."""
RECENT_MOVES = 8
SLOW_FACTOR = 2.0
"""Times the mean age at which trajectories end."""


class Gauges(Protocol):
    """What the shell counts and hears of its engines: the screen, in a live run."""

    @property
    def view(self) -> RunView: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def stats(self) -> Mapping[int, EngineStats]:
        """What engines themselves last said, of those that did."""
        ...


class Looker:
    """`linked`: what heartbeats tell of the ranks that are; its times are read off `wall`, all others off the run's clock."""

    def __init__(
        self,
        core: Core,
        follower: Follower,
        gauges: Gauges,
        linked: Mapping[int, Liveness],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._wall = wall
        self._core = core
        self._follower = follower
        self._gauges = gauges
        self._linked = linked
        self._clock = clock
        self._stalled_s = core.config.deadline.stalled_s

    def snapshot(self, n: int) -> Snapshot:
        self._follower.ask()
        core, now = self._core, self._clock()
        ranks = rank_rows(core, self._follower, self._linked, self._wall())
        engines = engine_rows(core, self._follower.engine_tokens, self._gauges.stats)
        return Snapshot(
            n=n,
            t=round(now, 4),
            run=self._run(),
            pace=self._pace(),
            allocation=allocation(core, ranks),
            trainer=trainer(core, self._follower, now),
            ranks=ranks,
            engines=engines,
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

    def _buckets(self, now: float) -> tuple[BucketRow, ...]:
        shapes = self._core.placement.shapes
        up = [0] * len(shapes)
        built = [0] * len(shapes)
        in_flight = [0] * len(shapes)
        for engine in self._core.fleet.engines.values():
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


def replicas(core: Core, taken: Mapping[int, int]) -> tuple[ReplicaRow, ...]:
    """`taken`: micro-batches by replica."""
    return tuple(
        ReplicaRow(r.id, r.ranks, r.state, r.version, taken.get(r.id, 0)) for r in core.fleet.replicas.values()
    )


def epoch(core: Core) -> int:
    """Of the allocation: what orders are compared with."""
    return core.fleet.epoch


def allocation(core: Core, ranks: Sequence[RankRow]) -> AllocationPart:
    elastic = core.elastic
    count = Counter([row.role for row in ranks])
    return AllocationPart(
        epoch=core.fleet.epoch,
        **{role: count[role] for role in ("trainer", "rollout", "gradient", "moving", "spare", "lost")},
        hold_until=elastic.hold_until if elastic.hold_until > core.out.now else None,
        moves=tuple(_move(move) for move in core.handover.moves.values()),
        recent=tuple(_move(move) for move in elastic.history[-RECENT_MOVES:]),
        proposal=elastic.proposal.reason if elastic.proposal else "",
        paused=elastic.paused,
        gain=elastic.proposal.gain if elastic.proposal else None,
        home={
            row.rank: bucket
            for row in ranks
            if row.role in ("gradient", "spare") and (bucket := core.allocation.home(row.rank))
        },
    )


def _move(move: Move) -> MoveRow:
    return MoveRow(
        move.id, move.ranks, move.what, move.stage, round(move.began, 3), round(move.since, 3), move.author, move.reason
    )
