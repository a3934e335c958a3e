"""What the run shows and writes down for people: display, log and metrics, fed by the shell.

Nothing here decides anything, and nothing here may stop the run: a terminal that is gone is the display's own business.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import anyio

from libra.config.schema import Config
from libra.controller.looks import RunLooks
from libra.core import commands as c
from libra.core.coordinator import Core
from libra.telemetry.display import Display
from libra.telemetry.logs import RunLog
from libra.telemetry.metrics import Gauges, MetricsWriter
from libra.telemetry.summary import Tally
from libra.wire import messages as m

REFRESH_S = 0.35
GAUGES_S = 2.0


class Screen:
    def __init__(self, config: Config, display: Display, log: RunLog, metrics: MetricsWriter, tally: Tally) -> None:
        self._display = display
        self._log = log
        self._metrics = metrics
        self.tally = tally
        self._looks = RunLooks(config, tally)
        self.view = self._looks.view

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
                self._looks.consumed(now)
                for straggler in self.tally.paths.latest:
                    self._metrics.straggler(now, straggler)
            case c.Evaluated(kind=kind, tasks=tasks, failed=failed, reward=reward, version=version, batch=batch):
                when = {"eval_start": "before training", "eval_end": "after training"}.get(kind, f"after batch {batch}")
                if command.newest > version:
                    when += f" (sampled by versions up to {command.newest})"
                lost = f", {failed} failed" if failed else ""
                self.report(
                    "info",
                    f"held-out {when}: reward {reward:.3f} on {tasks} tasks{lost}, version {version}",
                )

    def saved(self, now: float, step: int, n_bytes: int, copy_s: float, seconds: float) -> None:
        """A checkpoint; the core itself reports it."""
        self._metrics.checkpoint(now, step, n_bytes, copy_s, seconds)

    def resumed(self, now: float, step: int, version: int, incarnation: str) -> None:
        self._metrics.resume(now, step, version, incarnation)
        self.view.resumed_at = step
        self.report("info", f"the run goes on from checkpoint {step}, version {version}")

    def engine_stats(self, engine: int, stats: m.EngineStats) -> bool:
        """Whether they say anything that they did not say before."""
        before, self._looks.stats[engine] = self._looks.stats.get(engine), stats
        return stats != before

    @property
    def stats(self) -> Mapping[int, m.EngineStats]:
        """What engines last said of themselves, of those that did."""
        return self._looks.stats

    def _prefix_hits(self, engine: int) -> float:
        said = self.stats.get(engine)
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
            self._looks.look(core, now)
            self._display.update(self.view)
            if now >= gauges_due:
                gauges_due = now + GAUGES_S
                self._metrics.gauges(now, self._gauges(core))
            await anyio.sleep(REFRESH_S)

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
            engine_preemptions=tuple(s.preemptions if (s := self.stats.get(id)) else 0 for id in core.fleet.engines),
            turns_by_bucket=dict(self.tally.paths.turns_by_bucket),
            epoch=view.epoch,
            ranks_by_role=dict(Counter(view.roles)),
            bucket_moves=self.tally.paths.bucket_moves,
            prefix_kept={shape.name: round(shape.reuse.share, 4) for shape in core.placement.shapes},
            cost_factor={name: round(kind.factor, 4) for name, kind in core.placement.correction.kinds().items()},
        )
