"""What viewers want to know and the core does not remember: ages, last signals, counters, paces; and news as they happen.

    runtime ── event, commands ──> Follower ──> tail (who will be last), counters ──> view
                                       └── publish ──> hub ──> viewers

Follows every event and command of a run, live or replayed, at constant cost each; decides nothing. Trajectories in flight
stand in bins by the residual that is predicted for them, kept up as their turns begin and end: so the histogram of a bucket
and the largest residuals are there at any time without a look at all trajectories.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from libra.control.snapshot import RESIDUAL_BINS
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core

REWARDS = 60
"""Batches whose rewards are remembered."""
ALERTS = 8
SMOOTHING = 0.3
"""Weight of the newest batch in the paces, of the newest 20 trajectories in the mean age."""
ASK_PER_LOOK = 16
"""Trajectories whose residual the tree is asked for at each snapshot, where the policy does not predict."""
NOWHERE = -1
"""The place of a trajectory that runs on no engine now; else the place is a bucket."""

Publish = Callable[[str, str, str, dict[str, str | int | float | bool | None]], None]


@dataclass(slots=True)
class Flight:
    """A trajectory in flight. Times are the run's clock."""

    kind: c.Kind
    opened: float
    since: float
    signal: str = ""
    residual: float = 0.0
    bin: int = 0
    place: int = NOWHERE
    asked: bool = False
    """It stands in the queue of those to ask the tree about."""


class Follower:
    """`event` before the `command`s of that event, as they pass. `publish(topic, level, what, data)` spreads news."""

    def __init__(self, core: Core, publish: Publish, wants_decisions: Callable[[], bool]) -> None:
        self.core = core
        self.flights: dict[int, Flight] = {}
        """Oldest first."""
        self.rewards: deque[float] = deque(maxlen=REWARDS)
        self.alerts: deque[tuple[float, str, str]] = deque(maxlen=ALERTS)
        self.micro_batches: dict[int, int] = {}
        """Taken so far, by gradient replica."""
        self.hosts: dict[int, tuple[str, str]] = {}
        """Rank -> (host, device)."""
        self.busy_s: dict[int, float] = {}
        self.engine_tokens: dict[int, int] = {}
        self.train_s: float | None = None
        self.rollout_s: float | None = None
        self.wait_s: float | None = None
        self.ended_age_s: float | None = None
        """Mean age at which trajectories end."""
        self.step_began = 0.0
        self.idle_since = 0.0
        self._publish = publish
        self._wants_decisions = wants_decisions
        self._now = 0.0
        self._ended = 0
        self._consumed_at: float | None = None
        self._bins: list[list[dict[int, None]]] = [
            [{} for _ in range(RESIDUAL_BINS)] for _ in range(len(core.config.bucket) + 1)
        ]
        """[place + 1][bin] -> trajectories, in the order in which they came there."""
        self._unasked: deque[int] = deque()

    # --- as they pass

    def event(self, event: e.AnyEvent) -> None:
        self._now = event.t
        match event:
            case e.TurnGenerated(traj=traj, tokens=tokens, engine=engine):
                self.engine_tokens[engine] = self.engine_tokens.get(engine, 0) + tokens
                if flight := self.flights.get(traj):
                    flight.since = event.t
                    self._put(traj, flight, NOWHERE, flight.residual - tokens)
            case e.ToolReturned(traj=traj):
                if flight := self.flights.get(traj):
                    flight.since = event.t
                    flight.signal = (
                        f"{event.tool}/{self.core.placement.size_of(event.observation_tokens)}/{event.status}"
                    )
                    self._ask_later(traj, flight)
            case e.TurnReady(traj=traj):
                if flight := self.flights.get(traj):
                    flight.since = event.t
                    self._ask_later(traj, flight)
            case e.EpisodeEnded(traj=traj):
                self._landed(traj)
            case e.TrajectoryFailed(traj=traj, reason=reason):
                self._forget(traj)
                self._publish("report", "warning", f"trajectory {traj} failed: {reason}", {"traj": traj})
            case e.RoundDone(rank=rank, seconds=seconds) | e.StepDone(rank=rank, seconds=seconds):
                self.busy_s[rank] = self.busy_s.get(rank, 0.0) + seconds
            case e.RankJoined(rank=rank, host=host, device=device):
                self.hosts[rank] = (host, device)
                self._rank("info", rank, f"rank {rank} joined from {host} ({device})")
            case e.RankLost(rank=rank, reason=reason):
                self._rank("warning", rank, f"rank {rank} is lost: {reason}")
            case e.RoleReady(rank=rank):
                self._rank("info", rank, f"the role of rank {rank} is ready")
            case e.RoleExited(rank=rank, reason=reason):
                self._rank("warning", rank, f"the role of rank {rank} ended: {reason}")
            case _:
                pass

    def command(self, command: c.Command) -> None:
        match command:
            case c.Generate(traj=traj, engine=engine):
                if flight := self.flights.get(traj):
                    flight.since = self._now
                    predicted = self.core.placement.predicted_tokens(traj)
                    place = self.core.fleet.engines[engine].load.bucket
                    self._put(traj, flight, place, float(predicted or flight.residual))
                if self._wants_decisions():
                    self._decided(traj, engine)
            case c.Act(traj=traj):
                if flight := self.flights.get(traj):
                    flight.since = self._now
            case c.OpenTrajectory(traj=traj, kind=kind):
                flight = self.flights[traj] = Flight(kind, self._now, self._now)
                self._put(traj, flight, NOWHERE, 0.0)
            case c.Discard(trajs=trajs):
                for traj in trajs:
                    self._forget(traj)
            case c.Accumulate(replica=replica, slots=slots):
                taken = sum(slot is not None for slot in slots)
                self.micro_batches[replica] = self.micro_batches.get(replica, 0) + taken
            case c.MoveChanged(move=move, stage=stage, what=what, reason=reason):
                data = {name: getattr(command, name) for name in ("move", "stage", "epoch", "what", "author", "reason")}
                level = "warning" if stage == "failed" else "info"
                why = f": {reason}" if reason else ""
                self._publish("move", level, f"move {move}, {what}: {stage}{why}", data)
            case c.OpenStep():
                self.step_began = self._now
            case c.BatchConsumed():
                self._consumed(command)
            case c.Evaluated(kind=kind, version=version, tasks=tasks, failed=failed, reward=reward):
                batch = command.batch
                what = f"held-out reward {reward:.3f} on {tasks} tasks after batch {batch}, version {version}"
                data = {
                    "which": kind,
                    "version": version,
                    "tasks": tasks,
                    "failed": failed,
                    "reward": reward,
                    "batch": batch,
                }
                self._publish("eval", "info", what, data)
            case c.FinishRun(ok=ok, reason=reason):
                self._publish("report", "info" if ok else "error", f"the run ends: {reason}", {"ended": True, "ok": ok})
            case c.Report(level=level, what=what):
                if level != "info":
                    self.alerts.append((self._now, level, what))
                self._publish("report", level, what, {})
            case _:
                pass

    # --- trajectories

    def residuals(self, bucket: int) -> tuple[int, ...]:
        """Turns that run in the bucket, by residual bin."""
        return tuple(len(bin) for bin in self._bins[bucket + 1])

    def oldest_turn(self, bucket: int) -> float | None:
        """When the oldest running turn of the bucket began."""
        firsts = [next(iter(bin)) for bin in self._bins[bucket + 1] if bin]
        return min((self.flights[traj].since for traj in firsts), default=None)

    def tail(self, most: int) -> list[int]:
        """Up to `most` trajectories that will be last: one half the largest residuals, the rest the oldest."""
        large: list[int] = []
        for index in range(RESIDUAL_BINS - 1, 0, -1):
            for place in self._bins:
                large += islice(place[index], most)
            if len(large) >= most // 2:
                break
        largest = sorted(large, key=lambda traj: (-self.flights[traj].residual, traj))[: most // 2]
        oldest = islice(self.flights, most)
        return list(dict.fromkeys([*largest, *oldest]))[:most]

    def ask(self) -> None:
        """Bring some predictions up to date; called once a snapshot. Longest unasked first."""
        for _ in range(min(ASK_PER_LOOK, len(self._unasked))):
            traj = self._unasked.popleft()
            if (flight := self.flights.get(traj)) is not None:
                flight.asked = False
                trajectory = self.core.rollout.trajectory(traj)
                if trajectory is not None and not self.core.placement.predicted_tokens(traj):
                    self._put(traj, flight, flight.place, self.core.placement.residual(trajectory).mean)

    def _ask_later(self, traj: int, flight: Flight) -> None:
        if not flight.asked:
            flight.asked = True
            self._unasked.append(traj)

    def _put(self, traj: int, flight: Flight, place: int, residual: float) -> None:
        """Into its bin; also when it stays there, so that each bin is in order of the last change."""
        self._bins[flight.place + 1][flight.bin].pop(traj, None)
        flight.residual = max(0.0, residual)
        flight.bin = min(int(flight.residual).bit_length(), RESIDUAL_BINS - 1)
        flight.place = place
        self._bins[place + 1][flight.bin][traj] = None

    def _landed(self, traj: int) -> None:
        if (flight := self.flights.get(traj)) is None:
            return
        self._ended += flight.kind == "train"
        self.ended_age_s = _smooth(self.ended_age_s, self._now - flight.opened, SMOOTHING / 20)
        self._forget(traj)

    def _forget(self, traj: int) -> None:
        if (flight := self.flights.pop(traj, None)) is not None:
            del self._bins[flight.place + 1][flight.bin][traj]

    # --- the rest

    def _consumed(self, batch: c.BatchConsumed) -> None:
        self.rewards.append(batch.reward)
        if batch.trained:
            self.train_s = _smooth(self.train_s, self._now - self.step_began, SMOOTHING)
        self.wait_s = _smooth(self.wait_s, batch.wait_s, SMOOTHING)
        if self._consumed_at is not None and self._ended:
            rollout = self.core.config.rollout
            whole = rollout.groups_per_batch * rollout.samples_per_group
            seconds = (self._now - self._consumed_at) * whole / self._ended
            self.rollout_s = _smooth(self.rollout_s, seconds, SMOOTHING)
        self._consumed_at, self._ended = self._now, 0
        self.idle_since = self._now
        what = f"batch {batch.batch}: reward {batch.reward:.3f}, lag {batch.lag}, version {batch.version}"
        parts = "seq", "gap", "reward_stages"
        data = {name: getattr(batch, name) for name in batch.__struct_fields__ if name not in parts}
        data |= batch.gap.figures() | {f"reward_{name}": value for name, value in batch.reward_stages.items()}
        self._publish("batch", "info", what if batch.trained else f"{what}, skipped", data)

    def _rank(self, level: str, rank: int, what: str) -> None:
        self._publish("rank", level, what, {"rank": rank})

    def _decided(self, traj: int, engine: int) -> None:
        decision = self.core.placement.decisions.get(traj)
        why = decision.explain() if decision is not None else ""
        self._publish("decision", "info", f"trajectory {traj}: {why}", {"traj": traj, "engine": engine})


def _smooth(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)
