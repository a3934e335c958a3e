"""summary.json: what a run came to, and the tally that counts it from the events and commands as they pass.

    event   --> tally.event(e)   --.
    commands --> tally.command(c) --+--> tally.summary() --> write_summary(run_dir / "summary.json")

Invariant: the tally is a fold over the journalled stream, with no clock and no other input; live run, replay and simulator
get the same numbers from the same stream. Its memory is bounded by the trajectories in flight (and one float a batch).
"""

import math
import os
import platform
from collections import Counter, deque
from pathlib import Path

import msgspec
from msgspec import Struct

from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e
from libra.telemetry.paths import Paths, Straggler
from libra.telemetry.saved_tally import COUNTED, HeldOutPoint, SavedTally
from libra.telemetry.version import code_version, package_version

FILE = "summary.json"
"""Name inside a run's directory."""
WINDOW = 10
"""Batches that `reward_first` and `reward_last` average over."""
_SOFTWARE = ("torch", "transformers", "tokenizers", "numpy", "anyio", "msgspec")


class Summary(Struct, frozen=True, kw_only=True):
    """The numbers of a run. A field is None where nothing was there to measure."""

    run: str
    mode: str
    seed: int
    ok: bool
    reason: str
    """Why the run ended; what broke where `ok` is false."""
    steps: int
    """Batches consumed: trained and skipped."""
    skipped_steps: int
    """Batches without a loss token, or whose gradient was not finite: no optimiser step was taken."""
    completed_steps: int = 0
    """Batches with which an optimiser step was taken. What is consumed is attempted: steps = completed + skipped."""
    logprob_gap_max: float | None = None
    """Over all steps, the worst difference of a token's log-probability between trainer and engine with the same weights."""
    version: int
    """Newest policy version."""
    seconds: float
    """From the run's start to its last event."""
    reward_first: float | None
    """Mean of the rewards of the first ten batches."""
    reward_last: float | None
    """Mean of the rewards of the last ten batches."""
    reward_heldout: float | None
    """Mean reward on the held-out tasks after training."""
    reward_heldout_start: float | None
    """Mean reward on the held-out tasks before training."""
    trajectories: int
    """Training trajectories that ended with a reward."""
    heldout_trajectories: int
    failed: int
    """Attempts, of either kind, whose infrastructure failed."""
    lost: int
    """Attempts that were replaced, yet neither ended, failed nor were discarded: 0, or a fault of ours."""
    unfinished: int
    """Training attempts in flight or ready, but not trained, when the run ended."""
    discarded: int
    """Attempts that were given up before they ended (their group was dropped)."""
    dropped_groups: int
    """Groups in consumed batches that carried no loss: all rewards equal, or a member failed for good."""
    dropped_by_length: dict[str, int]
    """Training trajectories that were closed without having been trained, by number of turns ("1", "2", "3-4", ...)."""
    resumed: int = 0
    """How often the run went on from a checkpoint."""
    cut_off: int = 0
    """Training attempts that were in flight or ready, but not trained, at those checkpoints: their prompts were opened anew."""
    checkpoints: int = 0
    checkpoints_failed: int = 0
    checkpoint_copy_s: float = 0.0
    """Seconds that the trainer stood still for them."""
    evaluations: tuple[HeldOutPoint, ...] = ()
    """Held-out rewards during the run."""
    best_checkpoint: int | None = None
    """The step of the checkpoint with the best held-out reward, which is `best_reward`."""
    best_reward: float | None = None
    tokens_sampled: int
    tokens_per_s: float
    """Sampled tokens by the seconds from the first turn's order to the last turn's return."""
    turns_p50: int | None
    turns_p90: int | None
    turns_max: int | None
    """Turns of training trajectories that ended with a reward; nearest-rank percentiles."""
    lag_max: int | None
    lag_mean: float | None
    """Over trained batches."""
    tail_wait_s: float
    """Seconds, over all batches, that the trainer stood idle for a batch's last trajectories."""
    weights_late: int
    """Installations of weights on an engine that failed or missed their deadline."""
    reward_stages_first: dict[str, float] = {}
    """Mean of each stage of the reward, before its weight, over the first ten batches that tell them."""
    reward_stages_last: dict[str, float] = {}
    """Over the last ten."""
    reward_stages_heldout: dict[str, float] = {}
    """On the held-out tasks after training."""
    turns_by_bucket: dict[str, int] = {}
    """Turns that engines ended, held-out tasks included; a cut one counts again."""
    engine_moves: int = 0
    """Turns on another engine than the trajectory's turn before."""
    bucket_moves: int = 0
    """Those of them that changed the bucket."""
    moves: dict[str, int] = {}
    """Moves of ranks that ended well, by what the ranks became: "gradient" or "rollout"."""
    moves_by: dict[str, int] = {}
    """The same, by whom: a person, or "rule" where they moved by themselves."""
    moves_failed: int = 0
    """Moves that went back."""
    move_s: dict[str, float] = {}
    """Mean seconds of those that ended well, by stage."""
    stragglers: tuple[Straggler, ...] = ()
    """The training trajectories that held their steps up longest."""
    code: str = ""
    python: str = ""
    software: dict[str, str] = {}
    """Versions of the packages that matter to results, read without importing them."""


class _Trajectory(Struct):
    """What the tally knows of an attempt that has not been closed."""

    kind: c.Kind
    slot: tuple[str, int, int]
    stage: str
    turns: int = 0
    trained: bool = False
    replaced: bool = False
    """Another attempt was opened over it; the core owes its Discard."""


class Tally:
    """Counts a run. `event` before `command`s of that event, as they pass; `summary` at any time.

    `stages`, `rewards`, `version`, `tokens_sampled`, `lag` and `paths` are there for the display as well; do not write to them.
    """

    def __init__(self, run: str, mode: str, seed: int, paths: Paths | None = None) -> None:
        self.run, self.mode, self.seed = run, mode, seed
        self.paths = paths or Paths()
        self.stages: Counter[str] = Counter()
        """Trajectories in flight by stage: opening, waiting, generating, acting, ready (to be trained), training."""
        self.rewards: list[float] = []
        """Mean reward of each consumed batch, in order; NaN where no trajectory ended with one."""
        self.heldout: dict[c.Kind, float] = {}
        self._stages_heldout: dict[str, float] = {}
        self._stages_first: list[dict[str, float]] = []
        self._stages_last: deque[dict[str, float]] = deque(maxlen=WINDOW)
        self.version = 0
        self.tokens_sampled = 0
        self.lag = 0
        self.seconds = 0.0
        self._gap: float | None = None
        self._live: dict[int, _Trajectory] = {}
        self._slots: dict[tuple[str, int, int], int] = {}
        self._turns: Counter[int] = Counter()
        self._dropped: Counter[int] = Counter()
        self._ended: Counter[c.Kind] = Counter()
        self._failed = self._discarded = self._dropped_groups = self._skipped = self._late = 0
        self._lag_sum = self._lag_max = self._trained = 0
        self._tail_wait_s = 0.0
        self._moving: dict[int, tuple[str, float, dict[str, float]]] = {}
        """Move -> (stage, when it entered it, seconds in the stages before); of moves under way."""
        self._moves: Counter[str] = Counter()
        self._moves_by: Counter[str] = Counter()
        self._moves_failed = 0
        self._stage_s: dict[str, float] = {}
        self._first_generate: float | None = None
        self._last_turn = 0.0
        self._points: list[HeldOutPoint] = []
        self._best: tuple[int, float] | None = None
        self._resumed = self._cut_off = self._saves = self._saves_failed = 0
        self._copy_s = 0.0
        self._ok, self._reason = False, "the run did not finish"

    @staticmethod
    def of(config: Config) -> "Tally":
        """The tally of a run of this configuration."""
        run = config.run
        return Tally(
            run.name,
            run.mode,
            run.seed,
            Paths(config.engine_buckets, config.rollout.groups_per_batch, config.bucket_names),
        )

    @property
    def moves(self) -> int:
        """Moves of ranks that ended well."""
        return self._moves.total()

    def event(self, event: e.Event) -> None:
        self.seconds = max(self.seconds, event.t)
        self.paths.event(event)
        match event:
            case e.TurnGenerated(traj=traj, tokens=tokens, finish=finish):
                self.tokens_sampled += tokens
                self._last_turn = event.t
                if trajectory := self._live.get(traj):
                    self._to(trajectory, "waiting")
                    trajectory.turns += finish != "cut"
            case e.TurnReady(traj=traj) | e.ToolReturned(traj=traj):
                if trajectory := self._live.get(traj):
                    self._to(trajectory, "waiting")
            case e.EpisodeEnded(traj=traj):
                if trajectory := self._live.get(traj):
                    self._ended[trajectory.kind] += 1
                    if trajectory.kind == "train":
                        self._turns[trajectory.turns] += 1
                        self._to(trajectory, "ready")
                    else:
                        self._forget(traj)
            case e.TrajectoryFailed(traj=traj):
                self._failed += 1
                self._forget(traj)
            case e.WeightsFailed():
                self._late += 1
            case e.CheckpointSaved(copy_s=copy_s):
                self._saves += 1
                self._copy_s += copy_s
            case e.CheckpointFailed():
                self._saves_failed += 1
            case _:
                pass

    def command(self, command: c.Command) -> None:
        self.paths.command(command)
        match command:
            case c.Generate(traj=traj):
                if self._first_generate is None:
                    self._first_generate = self.seconds
                if trajectory := self._live.get(traj):
                    self._to(trajectory, "generating")
            case c.Act(traj=traj):
                if trajectory := self._live.get(traj):
                    self._to(trajectory, "acting")
            case c.OpenTrajectory():
                self._opened(command)
            case c.Discard(trajs=trajs):
                for traj in trajs:
                    self._closed(traj)
            case c.Round(slots=slots) | c.Accumulate(slots=slots):
                for row in (row for micro in slots if micro is not None for row in micro.rows):
                    if trajectory := self._live.get(row.traj):
                        trajectory.trained = True
                        self._to(trajectory, "training")
            case c.BatchConsumed():
                self._consumed(command)
            case c.Evaluated(kind=kind, reward=reward, reward_stages=stages):
                self.heldout[kind] = reward
                if kind == "eval_end":
                    self._stages_heldout = _rounded(stages)
                if kind == "eval":
                    x = command
                    self._points.append(HeldOutPoint(x.batch, x.version, x.newest, round(reward, 4), x.failed))
            case c.TidyCheckpoints(best=best, reward=reward) if best:
                self._best = best, reward
            case c.MoveChanged():
                self._moved(command)
            case c.FinishRun(ok=ok, reason=reason):
                self._ok, self._reason = ok, reason
            case _:
                pass

    def summary(self) -> Summary:
        finite = [r for r in self.rewards if r == r]
        window_s = self._last_turn - (self._first_generate or 0.0)
        return Summary(
            run=self.run,
            mode=self.mode,
            seed=self.seed,
            ok=self._ok,
            reason=self._reason,
            steps=len(self.rewards),
            skipped_steps=self._skipped,
            completed_steps=self._trained,
            logprob_gap_max=self._gap,
            version=self.version,
            seconds=round(self.seconds, 3),
            reward_first=_mean(finite[:WINDOW]),
            reward_last=_mean(finite[-WINDOW:]),
            reward_heldout=self.heldout.get("eval_end"),
            reward_heldout_start=self.heldout.get("eval_start"),
            trajectories=self._ended["train"],
            heldout_trajectories=self._ended.total() - self._ended["train"],
            failed=self._failed,
            lost=sum(1 for x in self._live.values() if x.replaced),
            unfinished=self._unfinished(),
            discarded=self._discarded,
            dropped_groups=self._dropped_groups,
            dropped_by_length=_by_length(self._dropped),
            resumed=self._resumed,
            cut_off=self._cut_off,
            checkpoints=self._saves,
            checkpoints_failed=self._saves_failed,
            checkpoint_copy_s=round(self._copy_s, 4),
            evaluations=tuple(self._points),
            best_checkpoint=self._best[0] if self._best else None,
            best_reward=round(self._best[1], 4) if self._best else None,
            tokens_sampled=self.tokens_sampled,
            tokens_per_s=round(self.tokens_sampled / window_s, 1) if window_s > 0 else 0.0,
            turns_p50=_percentile(self._turns, 0.5),
            turns_p90=_percentile(self._turns, 0.9),
            turns_max=_percentile(self._turns, 1.0),
            lag_max=self._lag_max if self._trained else None,
            lag_mean=round(self._lag_sum / self._trained, 3) if self._trained else None,
            tail_wait_s=round(self._tail_wait_s, 3),
            weights_late=self._late,
            reward_stages_first=_stage_means(self._stages_first),
            reward_stages_last=_stage_means(list(self._stages_last)),
            reward_stages_heldout=self._stages_heldout,
            turns_by_bucket=dict(self.paths.turns_by_bucket),
            engine_moves=self.paths.engine_moves,
            bucket_moves=self.paths.bucket_moves,
            moves=dict(self._moves),
            moves_by=dict(self._moves_by),
            moves_failed=self._moves_failed,
            move_s={stage: round(s / self._moves.total(), 3) for stage, s in self._stage_s.items()},
            stragglers=self.paths.longest,
            code=code_version(),
            python=platform.python_version(),
            software={name: found for name in _SOFTWARE if (found := package_version(name))},
        )

    # --- over a resume

    def saved(self) -> SavedTally:
        """What has been counted, but for the trajectories in flight."""
        return SavedTally(
            rewards=[r if r == r else None for r in self.rewards],
            heldout={str(kind): reward for kind, reward in self.heldout.items()},
            points=tuple(self._points),
            numbers={name: getattr(self, name) for name in COUNTED} | {"first_generate": self._first_generate or 0.0},
            turns=dict(self._turns),
            dropped=dict(self._dropped),
            ended={str(kind): n for kind, n in self._ended.items()},
            moves=dict(self._moves),
            moves_by=dict(self._moves_by),
            stage_s=dict(self._stage_s),
            turns_by_bucket=dict(self.paths.turns_by_bucket),
            longest=self.paths.longest_entries(),
            best=self._best,
            in_flight=self._unfinished(),
        )

    def resume(self, saved: SavedTally) -> None:
        """Go on from what a checkpoint holds; this tally is a new one."""
        self.rewards = [math.nan if r is None else r for r in saved.rewards]
        self.heldout = dict(saved.heldout)  # type: ignore[arg-type]
        self._points = list(saved.points)
        for name in COUNTED:
            kind = type(getattr(self, name))
            setattr(self, name, kind(saved.numbers[name]))
        self._first_generate = saved.numbers["first_generate"]
        self._turns, self._dropped = Counter(saved.turns), Counter(saved.dropped)
        self._ended = Counter(saved.ended)  # type: ignore[arg-type]
        self._moves, self._moves_by = Counter(saved.moves), Counter(saved.moves_by)
        self._stage_s = dict(saved.stage_s)
        self._best = saved.best
        self.paths.resume(saved.turns_by_bucket, saved.longest)
        self._resumed += 1
        self._cut_off += saved.in_flight

    def _unfinished(self) -> int:
        return sum(1 for x in self._live.values() if x.kind == "train" and not (x.trained or x.replaced))

    def _to(self, trajectory: _Trajectory, stage: str) -> None:
        self.stages[trajectory.stage] -= 1
        self.stages[stage] += 1
        trajectory.stage = stage

    def _opened(self, command: c.OpenTrajectory) -> None:
        slot = (command.kind, command.prompt, command.sample)
        if (before := self._slots.get(slot)) is not None:
            self._live[before].replaced = True
        self._slots[slot] = command.traj
        self._live[command.traj] = _Trajectory(command.kind, slot, "opening")
        self.stages["opening"] += 1

    def _closed(self, traj: int) -> None:
        """The core closes a trajectory: trained, dropped, or given up in the middle. Failed ones are gone already."""
        if (trajectory := self._live.get(traj)) is None:
            return
        self._forget(traj)
        if trajectory.replaced:
            self._failed += 1  # the core itself found that it could not go on: no TrajectoryFailed said so
            return
        if trajectory.kind == "train" and not trajectory.trained:
            self._dropped[trajectory.turns] += 1
        self._discarded += trajectory.stage not in ("ready", "training")

    def _forget(self, traj: int) -> None:
        if trajectory := self._live.pop(traj, None):
            self.stages[trajectory.stage] -= 1
            if self._slots.get(trajectory.slot) == traj:
                del self._slots[trajectory.slot]

    def _moved(self, move: c.MoveChanged) -> None:
        before, since, spent = self._moving.pop(move.move, ("", 0.0, {}))
        if before:
            spent[before] = spent.get(before, 0.0) + move.seconds - since
        if move.stage == "ready":
            self._moves[move.to] += 1
            self._moves_by[move.author or "rule"] += 1
            for stage, seconds in spent.items():
                self._stage_s[stage] = self._stage_s.get(stage, 0.0) + seconds
        elif move.stage == "failed":
            self._moves_failed += 1
        else:
            self._moving[move.move] = move.stage, move.seconds, spent

    def _consumed(self, batch: c.BatchConsumed) -> None:
        self.rewards.append(batch.reward)
        if batch.reward_stages:
            self._stages_last.append(batch.reward_stages)
            if len(self._stages_first) < WINDOW:
                self._stages_first.append(batch.reward_stages)
        self.version = max(self.version, batch.version)
        self.lag = batch.lag
        self._dropped_groups += batch.groups - batch.groups_trained
        self._tail_wait_s += batch.wait_s
        if batch.gap.worst is not None:
            self._gap = max(batch.gap.worst, self._gap or 0.0)
        if batch.trained:
            self._trained += 1
            self._lag_sum += batch.lag
            self._lag_max = max(self._lag_max, batch.lag)
        else:
            self._skipped += 1


def write_summary(path: Path, summary: Summary) -> None:
    """Write JSON for people, by write-then-rename: a reader sees the old file or the whole new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    fresh.replace(path)


def read_summary(path: Path) -> Summary:
    """Raises msgspec.ValidationError where the file is of another version's fields."""
    return msgspec.json.decode(path.read_bytes(), type=Summary)


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _stage_means(batches: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each stage over these batches."""
    names = batches[0] if batches else {}
    return _rounded({name: sum(b[name] for b in batches) / len(batches) for name in names})


def _rounded(stages: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in stages.items()}


def _percentile(counts: Counter[int], q: float) -> int | None:
    """Nearest rank: the smallest value with at least q of all at or below it."""
    total, seen = counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= q * total:
            return value
    return None


def _by_length(counts: Counter[int]) -> dict[str, int]:
    """Sums in bins that double: "0", "1", "2", "3-4", "5-8", ..."""
    bins: Counter[int] = Counter()
    for turns, n in counts.items():
        bins[1 << (turns - 1).bit_length() if turns > 1 else turns] += n
    return {str(top) if top <= 2 else f"{top // 2 + 1}-{top}": bins[top] for top in sorted(bins)}
