"""What a simulation came to: everything that `summary.json` says of a live run, and what only virtual time can tell exactly.

The summary's part is the telemetry's own tally over the same events and commands. The rest is added by the shell as it goes:
seconds by stage of every training trajectory, and when each batch's trajectories ended.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from libra.core.cost.correction import Kind
from libra.sim.bound import Bound
from libra.sim.machine import Machine
from libra.telemetry.summary import Summary, Tally

if TYPE_CHECKING:
    from libra.sim.plan import Plan

STAGES = ("waiting", "engine_queue", "prefill", "decode", "tool", "ready", "training")
LAST_SHARE = 0.1
"""The slowest tenth of a batch is its tail."""


class Pace(Struct, frozen=True, kw_only=True):
    """Observed against predicted seconds of a bucket's turns: what the core's correction made of it."""

    factor: float
    """Observed over predicted seconds, as learnt."""
    truth: float
    """Mean of the hidden truth over the bucket's engines; the core does not know it. `factor` has in it as well what the
    prediction of a turn leaves out: the queue on the engine, prefills of others, batches that grow."""
    error_before: float
    """Mean absolute logarithm of observed over predicted seconds, uncorrected, over about the last 50 turns: 0.05 is 5 %."""
    error_after: float
    """The same, corrected."""
    turns: int


class SimReport(Summary, frozen=True, kw_only=True):
    """Seconds are virtual. Figures of a batch are means over the batches whose trajectories have all ended."""

    policy: str
    workload: str
    devices: int
    rollout_devices: int
    makespan_s: float
    """From the first turn's order to the last end of a training trajectory."""
    time_to_90_s: float | None
    """Of a batch: from its first trajectory's opening until nine tenths have ended."""
    last_finished_s: float | None
    """Of a batch: until all have ended."""
    tail_share: float | None
    """Of a batch's time: what its slowest tenth takes alone, 1 - time_to_90_s / last_finished_s."""
    stage_s: dict[str, float]
    """Mean seconds of an ended training trajectory by stage: waiting for a place, queue on the engine, prefill, decode (with
    the prefills of others in between), tool, ready (ended, its batch is not trained yet), training."""
    trainer_busy_s: float
    trainer_idle_s: float
    utilisation: dict[str, float]
    """Share of device time: `rollout` and each bucket of what its engines were there while turns were under way, `trainer`
    (the core) over the whole run."""
    turns: int
    """Turns placed, cut ones counted again."""
    turns_cut: int
    """Running turns that the policy ordered to be cut, to go on elsewhere."""
    kv_preemptions: int
    recomputed_tokens: int
    """Prefilled again after a pre-emption."""
    reused_tokens: int
    """Not prefilled again, thanks to the prefix cache."""
    work_bound_s: float
    """All work shared freely among all engines; see `libra.sim.bound`."""
    longest_alone_s: float
    bound_s: float
    makespan_over_bound: float
    pace: dict[str, Pace]
    """By bucket; those that had turns."""


class Recorder:
    """Collects what the tally cannot see."""

    def __init__(self, plan: "Plan") -> None:
        config = plan.config
        self.tally = Tally.of(config)
        self.bound = Bound(plan.cost, plan.engines, config.bucket)
        self.stage_s = dict.fromkeys(STAGES, 0.0)
        self.ended = 0
        self.turns = self.turns_cut = 0
        self.trainer_busy_s = 0.0
        self.first_turn_s = math.inf
        self.last_end_s = self.last_turn_s = 0.0
        self._plan = plan
        self._opened: dict[int, float] = {}
        self._ends: dict[int, list[float]] = {}

    def opened(self, batch: int, now: float) -> None:
        self._opened.setdefault(batch, now)

    def finished(self, batch: int, now: float, stages: Sequence[float]) -> None:
        """A training trajectory has ended; `stages` are its seconds of the first five stages."""
        self._ends.setdefault(batch, []).append(now)
        self.ended += 1
        self.last_end_s = now
        for name, seconds in zip(STAGES, stages, strict=False):
            self.stage_s[name] += seconds

    def report(self, lives: Sequence["EngineLife"], kinds: Mapping[str, Kind], now: float) -> SimReport:
        """`lives`: every engine that there ever was."""
        config = self._plan.config
        machines = [life.machine for life in lives]
        start = min(self.first_turn_s, self.last_end_s)
        makespan_s = self.last_end_s - start
        ninety, last = self._batch_times()
        work_s = self.bound.work_s()
        longest_s = self.bound.longest_s()
        bound_s = max(work_s, longest_s)
        return SimReport(
            **msgspec.structs.asdict(self.tally.summary()),
            policy=config.scheduler.policy,
            workload=self._plan.workload.trace or self._plan.workload.kind,
            devices=config.devices,
            rollout_devices=self._plan.rollout_devices,
            makespan_s=makespan_s,
            time_to_90_s=ninety,
            last_finished_s=last,
            tail_share=1.0 - ninety / last if ninety is not None and last else None,
            stage_s={name: seconds / max(1, self.ended) for name, seconds in self.stage_s.items()},
            trainer_busy_s=self.trainer_busy_s,
            trainer_idle_s=now - self.trainer_busy_s,
            utilisation=self._utilisation(lives, start, now),
            turns=self.turns,
            turns_cut=self.turns_cut,
            kv_preemptions=sum(m.preemptions for m in machines),
            recomputed_tokens=sum(m.recomputed_tokens for m in machines),
            reused_tokens=sum(m.reused_tokens for m in machines),
            work_bound_s=work_s,
            longest_alone_s=longest_s,
            bound_s=bound_s,
            makespan_over_bound=makespan_s / bound_s if bound_s else 0.0,
            pace={b.name: self._pace(b.name, kinds[b.name], lives) for b in config.bucket if b.name in kinds},
        )

    def _pace(self, bucket: str, kind: Kind, lives: Sequence["EngineLife"]) -> Pace:
        truth = self._plan.truth
        real = [truth.engine(life.machine.id) for life in lives if life.bucket == bucket]
        return Pace(
            factor=kind.factor,
            truth=sum(real) / len(real),
            error_before=kind.log_error_before,
            error_after=kind.log_error,
            turns=kind.evidence,
        )

    def _batch_times(self) -> tuple[float | None, float | None]:
        config = self._plan.config.rollout
        whole = config.groups_per_batch * config.samples_per_group
        ninety: list[float] = []
        last: list[float] = []
        for batch, ends in self._ends.items():
            if len(ends) == whole:
                ninety.append(ends[math.ceil((1 - LAST_SHARE) * whole) - 1] - self._opened[batch])
                last.append(ends[-1] - self._opened[batch])
        n = len(last)
        return (sum(ninety) / n, sum(last) / n) if n else (None, None)

    def _utilisation(self, lives: Sequence["EngineLife"], start: float, run_s: float) -> dict[str, float]:
        names = self._plan.config.bucket_names
        busy, there = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        for life in lives:
            tp = life.machine.cost.tp
            busy[life.bucket] += tp * (life.machine.decode_s + life.machine.prefill_s)
            there[life.bucket] += tp * max(0.0, min(life.ended, self.last_turn_s) - max(life.began, start))
        shares = {"rollout": _share(sum(busy.values()), sum(there.values()))}
        shares |= {name: _share(busy[name], there[name]) for name in names}
        shares["trainer"] = _share(self.trainer_busy_s, run_s)
        return shares


class EngineLife(NamedTuple):
    """An engine from its start to its end, in virtual seconds."""

    machine: Machine
    bucket: str
    began: float
    ended: float


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
