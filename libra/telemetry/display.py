"""What a person sees of a run: a live frame on a terminal (`screen`), plain lines everywhere else.

    controller task, 2-4 Hz --update(view)--> Display --> terminal or pipe
    core's Report           --report(level, text)--^      ^--finish(summary)-- the end

Invariants: one small interface, no thread; a viewer who is slow (a stopped terminal, a full pipe) loses detail and never
holds up the controller; one who is gone (OSError) ends the display, kept in `broken`, and not the run; leaving the context
restores the terminal, after exceptions too.
"""

import math
import os
import select
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Literal, TextIO

from msgspec import Struct, field

from libra.core.commands import Level
from libra.telemetry.paths import Straggler
from libra.telemetry.summary import WINDOW, Summary

Phase = Literal["starting", "warm start", "training", "evaluating", "stopping"]
REPORTS_KEPT = 50
"""Reports that a display remembers; a frame shows as many of the last as fit."""
FINISH_WAIT_S = 2.0
"""How long the last words wait for a viewer that does not take them."""


class EngineRow(Struct):
    """One rollout engine now. `kv` is the filled share of its KV room, 0 to 1; version -1: none yet."""

    id: int
    bucket: str
    version: int = -1
    running: int = 0
    waiting: int = 0
    kv: float = 0.0


class RunView(Struct, kw_only=True):
    """The state of a run as people see it; the controller changes it in place and shows it now and then."""

    run: str
    mode: str
    seed: int
    steps: int
    """Batches to consume."""
    resumed_at: int = 0
    """Steps that were done before this run went on."""
    phase: Phase = "starting"
    progress: float = 0.0
    """Of the phase, 0 to 1. Training shows its steps instead."""
    label: str = ""
    """What the progress counts: "step 320/1000, loss 0.41"."""
    step: int = 0
    """Batches consumed: `rewards` has one entry for each."""
    version: int = 0
    rewards: list[float] = field(default_factory=list)
    tokens_per_s: float = 0.0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Trajectories by stage."""
    queue: int = 0
    """Complete groups that wait to be trained."""
    lag: int = 0
    elapsed_s: float = 0.0
    eta_s: float | None = None
    engines: list[EngineRow] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    """What device rank 1, 2, ... does: "core", the name of a bucket, "gradient", "narrow > gradient" for one that moves."""
    epoch: int = 0
    """Grows with every change of who does what."""
    moves: int = 0
    """Moves of ranks that ended well."""


class Display(ABC):
    """`with open_display() as display:` then `update` at 2-4 Hz, `report` at any time, `finish` once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.reports: deque[tuple[float, Level, str]] = deque(maxlen=REPORTS_KEPT)
        self.broken = ""
        """Why nothing is shown any more; "" while the viewer is there."""
        self._now_s = 0.0
        self._rewards: list[float] = []

    def update(self, view: RunView) -> None:
        """Show the state of now; a viewer that is not ready misses it."""
        self._now_s = view.elapsed_s
        self._rewards = view.rewards
        self._guarded(self._update, view)

    def report(self, level: Level, text: str) -> None:
        """Show one line for people."""
        self.reports.append((self._now_s, level, text))
        self._guarded(self._report, level, text)

    def finish(self, summary: Summary) -> None:
        """End the live part and print the summary."""
        if not self._ready(FINISH_WAIT_S):
            self.broken = self.broken or f"the viewer took nothing for {FINISH_WAIT_S} s"
        self._guarded(self._finish, summary)

    def __enter__(self) -> "Display":
        self._guarded(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._try(self._stop)  # also when broken: standard output may have to be given back

    def _guarded(self, act: Callable[..., None], *args: object) -> None:
        if not self.broken:
            self._try(act, *args)

    def _try(self, act: Callable[..., None], *args: object) -> None:
        """A terminal that went away (SSH dropped, pipe closed) ends what is shown, never the run."""
        try:
            act(*args)
        except (OSError, ValueError) as e:  # ValueError: the stream was closed by its owner
            self.broken = self.broken or f"{type(e).__name__}: {e}"

    def _ready(self, wait_s: float = 0.0) -> bool:
        """Can the viewer take a few kilobytes without blocking us? A file or a string always can."""
        try:
            fd = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            return True
        if hasattr(select, "poll"):
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            return bool(poller.poll(wait_s * 1000))
        return True

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _update(self, view: RunView) -> None: ...

    @abstractmethod
    def _report(self, level: Level, text: str) -> None: ...

    @abstractmethod
    def _finish(self, summary: Summary) -> None: ...

    @abstractmethod
    def _stop(self) -> None: ...


class PlainDisplay(Display):
    """Lines for pipes, files and CI: one a step, phase (and quarter of a long phase) and report; flushed each."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._phase = ""
        self._quarter = 0
        self._step = 0
        self._roles: list[str] = []
        self._missed = 0

    def _start(self) -> None:
        pass

    def _stop(self) -> None:
        pass

    def _update(self, view: RunView) -> None:
        quarter = int(view.progress * 4)
        if view.phase != self._phase:
            self._phase, self._quarter = view.phase, quarter
            self._line(f"{view.phase}{f': {view.label}' if view.label else ''}")
        elif view.phase != "training" and quarter > self._quarter:
            self._quarter = quarter
            self._line(f"{view.phase} {view.progress:.0%}{f': {view.label}' if view.label else ''}")
        if view.roles != self._roles and view.phase != "starting":
            self._roles = list(view.roles)
            self._line(f"ranks {', '.join(roles_line(view.roles))}  epoch {view.epoch}")
        for step in range(max(self._step, view.resumed_at) + 1, view.step + 1):
            rewards = view.rewards[:step]
            self._line(
                f"step {step}/{view.steps}  reward {number(rewards[-1:])}  mean of {WINDOW} {number(rewards[-WINDOW:])}"
                f"  version {view.version}  lag {view.lag}  queue {view.queue}  {view.tokens_per_s:,.0f} tokens/s"
                f"  eta {duration(view.eta_s)}"
            )
        self._step = max(self._step, view.step)

    def _report(self, level: Level, text: str) -> None:
        self._line(f"{level}: {text}")

    def _finish(self, summary: Summary) -> None:
        self._line("summary")
        for name, value in summary_rows(summary):
            self._write(f"  {name:<24}{value}\n")

    def _line(self, text: str) -> None:
        if not self._ready():
            self._missed += 1
            return
        if self._missed:
            text, self._missed = f"({self._missed} lines not shown: the reader was slow)  {text}", 0
        self._write(f"[{self._now_s:8.1f}s] {text}\n")

    def _write(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(line.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


def open_display(stream: TextIO | None = None) -> Display:
    """The live frame where `stream` (default: standard output) is a terminal that can draw it, else plain lines."""
    out: TextIO = sys.stdout if stream is None else stream
    unicode = (getattr(out, "encoding", None) or "").lower().startswith("utf")
    if out.isatty() and unicode and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        from libra.telemetry.screen import RichDisplay  # rich costs 70 ms to import: only where it is used

        return RichDisplay(out)
    return PlainDisplay(out)


HELD_OUT_SHOWN = 6
"""The last evaluations of a run that its summary shows to people."""


def summary_rows(s: Summary) -> list[tuple[str, str]]:
    """The summary as people read it: (name, value)."""
    lengths = ", ".join(f"{turns} turns: {n}" for turns, n in s.dropped_by_length.items())
    rows = [
        ("run", f"{s.run} ({s.mode}, seed {s.seed})"),
        ("result", f"{'ok' if s.ok else 'FAILED'}: {s.reason}"),
        ("time", duration(s.seconds)),
        ("steps", f"{s.steps} attempted, {s.completed_steps} completed, {s.skipped_steps} skipped"),
        ("version", f"{s.version}"),
        ("reward, first ten", number(s.reward_first)),
        ("reward, last ten", number(s.reward_last)),
        ("reward, held-out", f"{number(s.reward_heldout_start)} -> {number(s.reward_heldout)}"),
        ("trajectories", f"{s.trajectories:,} ({s.failed} failed, {s.lost} lost, {s.unfinished} unfinished)"),
        ("dropped groups", f"{s.dropped_groups}" + (f" ({lengths})" if lengths else "")),
        ("tokens sampled", f"{s.tokens_sampled:,} ({s.tokens_per_s:,.0f}/s)"),
        ("turns", f"median {_whole(s.turns_p50)}, p90 {_whole(s.turns_p90)}, max {_whole(s.turns_max)}"),
        ("lag", f"max {_whole(s.lag_max)}, mean {number(s.lag_mean)}"),
        ("log-prob gap", "-" if s.logprob_gap_max is None else f"max {s.logprob_gap_max:.1e}, trainer to engine"),
        ("tail wait", f"{s.tail_wait_s:.1f} s"),
    ]
    if len(s.reward_stages_last) > 1:
        stages = (f"{n} {number(s.reward_stages_first[n])} -> {number(v)}" for n, v in s.reward_stages_last.items())
        rows.insert(8, ("reward by stage", ", ".join(stages)))
    if s.evaluations:
        points = ", ".join(f"{p.batch}: {p.reward:.3f}" for p in s.evaluations[-HELD_OUT_SHOWN:])
        rows.append(("held-out, by batch", points if len(s.evaluations) <= HELD_OUT_SHOWN else f"... {points}"))
    if s.checkpoints or s.checkpoints_failed:
        failed = f", {s.checkpoints_failed} failed" if s.checkpoints_failed else ""
        stood = f"{s.checkpoints} saved{failed}, the trainer stood for {s.checkpoint_copy_s:.2f} s"
        best = f"; best is {s.best_checkpoint}, held-out {number(s.best_reward)}" if s.best_checkpoint else ""
        rows.append(("checkpoints", stood + best))
    if s.resumed:
        rows.append(("resumed", f"{s.resumed} x, {s.cut_off} trajectories in flight began anew"))
    if s.turns_by_bucket:
        shares = ", ".join(f"{name} {n:,}" for name, n in s.turns_by_bucket.items())
        rows.append(("turns by bucket", f"{shares}; {s.bucket_moves:,} changed it, {s.engine_moves:,} the engine"))
    if s.moves or s.moves_failed:
        to = ", ".join(f"{n} to {role}" for role, n in s.moves.items()) or "none"
        by = ", ".join(f"{n} by {author}" for author, n in s.moves_by.items())
        seconds = ", ".join(f"{stage} {mean:.2f} s" for stage, mean in s.move_s.items())
        failed = f"{s.moves_failed} went back" if s.moves_failed else ""
        rows.append(("moves of ranks", "; ".join(filter(None, (to, by, seconds, failed)))))
    if s.stragglers:
        rows.append(("worst straggler", straggler_line(s.stragglers[0])))
    if s.weights_late:
        rows.append(("weights late or failed", f"{s.weights_late}"))
    return rows


def roles_line(roles: Sequence[str]) -> list[str]:
    """Who does what, neighbours that do the same together: ["1-2 core", "3 wide", "4 narrow > gradient"]."""
    parts: list[str] = []
    first = 1
    for role, same in groupby(roles):
        last = first + len(list(same)) - 1
        parts.append(f"{first} {role}" if first == last else f"{first}-{last} {role}")
        first = last + 1
    return parts


def straggler_line(s: Straggler) -> str:
    """What a trajectory did that held up its step, in one line."""
    runs = [(engine, len(list(same))) for engine, same in groupby(s.engines)]
    path = " > ".join(f"{engine}" if n == 1 else f"{engine} x{n}" for engine, n in runs)
    return (
        f"batch {s.batch} waited {s.held_s:.2f} s for trajectory {s.traj} (prompt {s.prompt}, sample {s.sample}): "
        f"{s.seconds:.1f} s, {s.turns} turns, {s.tokens:,} tokens, {s.tool_s:.2f} s in tools, engines {path}"
    )


def number(value: float | list[float] | None) -> str:
    """Three decimals; the mean of a list, without its NaNs; "-" for nothing."""
    if isinstance(value, list):
        finite = [v for v in value if math.isfinite(v)]
        value = sum(finite) / len(finite) if finite else None
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """75 -> "1:15", 3661 -> "1:01:01"; "-" for nothing."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)
