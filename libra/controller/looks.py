"""The state of a run for people, in the words of the display: looked up in the core, never kept.

    core, tally ──> RunLooks.look(core, now) ──> view: RunView ──> display, gauges, snapshots

Live it is the screen's; when a journal is replayed, `rewind`'s.
"""

from libra.config.schema import Config
from libra.core.coordinator import Core
from libra.core.fleet import Unit
from libra.telemetry.display import EngineRow, RunView
from libra.telemetry.rate import Rate
from libra.telemetry.summary import Tally
from libra.wire import messages as m

ETA_BATCHES = 20
"""The time to the end is judged by so many last batches."""


class RunLooks:
    def __init__(self, config: Config, tally: Tally) -> None:
        self._config = config
        self.tally = tally
        self._rate = Rate()
        self._consumed_at: list[float] = []
        self.stats: dict[int, m.EngineStats] = {}
        """What each engine last said of itself."""
        self.view = RunView(run=config.run.name, mode=config.run.mode, seed=config.run.seed, steps=config.run.steps)

    def consumed(self, now: float) -> None:
        """A batch was."""
        self._consumed_at.append(now)

    def look(self, core: Core, now: float) -> None:
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
            done, total = core.evaluation.progress
            view.progress, view.label = done / max(1, total), f"{done}/{total} held-out tasks"
        elif phase in ("training", "stopping"):
            done, total = core.evaluation.progress
            view.progress, view.label = 0.0, f"{done}/{total} held-out tasks" if total else ""
        view.epoch, view.moves = core.fleet.epoch, tally.moves
        view.roles = [_role(core, rank) for rank in core.fleet.ranks]
        view.engines = [self._engine_row(core, id) for id in core.fleet.engines]

    def _engine_row(self, core: Core, id: int) -> EngineRow:
        load = core.fleet.engines[id].load
        stats = self.stats.get(id)
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
        return max(0.0, (self._config.run.steps - self.view.step) * per_batch - (now - recent[-1]))


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
