"""What the run shows and writes down for people: display, log and metrics, fed by the shell.

Nothing here decides anything, and nothing here may stop the run: a terminal that is gone is the display's own business.
"""

from collections import Counter
from collections.abc import Callable

import anyio

from libra.config.schema import Config
from libra.core import commands as c
from libra.core.coordinator import Core
from libra.core.fleet import Unit
from libra.telemetry.display import Display, EngineRow, RunView
from libra.telemetry.logs import RunLog
from libra.telemetry.metrics import Gauges, MetricsWriter
from libra.telemetry.summary import Rate, Tally
from libra.wire import messages as m

REFRESH_S = 0.35
GAUGES_S = 2.0
ETA_BATCHES = 20
"""The time to the end is judged by so many last batches."""


class Screen:
    def __init__(self, config: Config, display: Display, log: RunLog, metrics: MetricsWriter, tally: Tally) -> None:
        self._config = config
        self._display = display
        self._log = log
        self._metrics = metrics
        self.tally = tally
        self._rate = Rate()
        self._consumed_at: list[float] = []
        self._stats: dict[int, m.EngineStats] = {}
        self.view = RunView(run=config.run.name, mode=config.run.mode, seed=config.run.seed, steps=config.run.steps)

    # --- from the shell

    def report(self, level: c.Level, what: str) -> None:
        self._log.write(level, what)
        self._display.report(level, what)

    def log(self, what: str) -> None:
        """For the log only."""
        self._log.write("info", what)

    def command(self, now: float, command: c.Report | c.BatchConsumed | c.Evaluated | c.MoveChanged) -> None:
        self._metrics.command(now, command)
        match command:
            case c.Report():
                self.report(command.level, command.what)
            case c.MoveChanged(move=move, stage=stage, what=what, author=author, reason=reason, seconds=seconds):
                by = f", ordered by {author}" if author and stage in ("draining", "preparing") else ""
                why = f": {reason}" if reason else ""
                took = f" after {seconds:.1f} s" if stage in ("ready", "failed") else ""
                self.report("warning" if stage == "failed" else "info", f"move {move}, {what}: {stage}{took}{by}{why}")
            case c.BatchConsumed():
                self._consumed_at.append(now)
                for straggler in self.tally.paths.latest:
                    self._metrics.straggler(now, straggler)
            case c.Evaluated(kind=kind, tasks=tasks, failed=failed, reward=reward, version=version):
                when = "before" if kind == "eval_start" else "after"
                lost = f", {failed} failed" if failed else ""
                self.report(
                    "info",
                    f"held-out {when} training: reward {reward:.3f} on {tasks} tasks{lost}, version {version}",
                )

    def engine_stats(self, engine: int, stats: m.EngineStats) -> None:
        self._stats[engine] = stats

    def stats(self, engine: int) -> m.EngineStats | None:
        """What the engine last said of itself."""
        return self._stats.get(engine)

    def _prefix_hits(self, engine: int) -> float:
        said = self.stats(engine)
        asked = said.reused_tokens + said.prefilled_tokens if said else 0
        return round(said.reused_tokens / asked, 4) if said and asked else 0.0

    def warm_progress(self, progress: m.WarmProgress) -> None:
        self.view.progress = progress.step / max(1, progress.steps)
        self.view.label = f"step {progress.step}/{progress.steps}, loss {progress.loss:.3f}"

    # --- to people

    async def refresh(self, core: Core, clock: Callable[[], float]) -> None:
        """The task that keeps display and gauges fresh."""
        gauges_due = 0.0
        while True:
            now = clock()
            self._look(core, now)
            self._display.update(self.view)
            if now >= gauges_due:
                gauges_due = now + GAUGES_S
                self._metrics.gauges(now, self._gauges(core))
            await anyio.sleep(REFRESH_S)

    def _look(self, core: Core, now: float) -> None:
        view, tally = self.view, self.tally
        phase = {"starting": "starting", "training": "training", "ended": "stopping"}.get(core.phase, "evaluating")
        if phase == "starting" and core.lifecycle.warming:
            phase = "warm start"
        view.phase = phase  # type: ignore[assignment]
        view.step = len(tally.rewards)
        view.version = core.learner.version
        view.rewards = tally.rewards
        view.tokens_per_s = self._rate.update(now, tally.tokens_sampled)
        view.in_flight = {stage: n for stage, n in tally.stages.items() if n > 0}
        view.queue = core.learner.groups_ready()
        view.lag = tally.lag
        view.elapsed_s = now
        view.eta_s = self._eta(now)
        if phase == "evaluating":
            done, total = core.evaluation_progress
            view.progress, view.label = done / max(1, total), f"{done}/{total} held-out tasks"
        elif phase in ("training", "stopping"):
            view.progress, view.label = 0.0, ""
        view.epoch, view.moves = core.fleet.epoch, tally.moves
        view.roles = [_role(core, rank) for rank in core.fleet.ranks]
        view.engines = [self._engine_row(core, id) for id in core.fleet.engines]

    def _engine_row(self, core: Core, id: int) -> EngineRow:
        load = core.fleet.engines[id].load
        stats = self._stats.get(id)
        bucket = self._config.bucket[load.bucket]
        return EngineRow(
            id=id,
            bucket=bucket.name,
            version=load.version,
            running=stats.running if stats else load.running,
            waiting=stats.waiting if stats else 0,
            kv=(stats.kv_tokens if stats else load.reserved_tokens) / load.kv_tokens,
        )

    def _eta(self, now: float) -> float | None:
        recent = self._consumed_at[-ETA_BATCHES:]
        if len(recent) < 2:
            return None
        per_batch = (recent[-1] - recent[0]) / (len(recent) - 1)
        return max(0.0, (self._config.run.steps - len(self._consumed_at)) * per_batch - (now - recent[-1]))

    def _gauges(self, core: Core) -> Gauges:
        view = self.view
        return Gauges(
            tokens_per_s=round(view.tokens_per_s, 1),
            queue_groups=view.queue,
            version=view.version,
            lag=view.lag,
            in_flight=dict(view.in_flight),
            engine_running=tuple(row.running for row in view.engines),
            engine_waiting=tuple(row.waiting for row in view.engines),
            engine_kv=tuple(round(row.kv, 4) for row in view.engines),
            engine_prefix_hits=tuple(self._prefix_hits(id) for id in core.fleet.engines),
            engine_preemptions=tuple(s.preemptions if (s := self.stats(id)) else 0 for id in core.fleet.engines),
            turns_by_bucket=dict(self.tally.paths.turns_by_bucket),
            epoch=view.epoch,
            ranks_by_role=dict(Counter(view.roles)),
            bucket_moves=self.tally.paths.bucket_moves,
            cost_factor={name: round(kind.factor, 4) for name, kind in core.placement.correction.kinds().items()},
        )


def _role(core: Core, rank: int) -> str:
    """What a rank does, for people; both of it where it moves."""
    fleet = core.fleet
    role = fleet.role_of(rank)
    if role != "moving":
        return _work(core, fleet.unit(fleet.ranks[rank].unit)) if role in ("trainer", "rollout", "gradient") else role
    move = core.handover.moves[fleet.ranks[rank].move]
    sides = [next((u for u in units if rank in u.ranks), None) for units in (move.leaving, move.joining)]
    return " > ".join(_work(core, unit) for unit in sides)


def _work(core: Core, unit: Unit | None) -> str:
    if unit is None:
        return "spare"
    if unit.role == "rollout":
        return core.config.bucket[unit.bucket].name
    return "core" if unit.role == "trainer" else "gradient"
