"""Moves in live jobs, read from their journals and from /proc: `blocking`, `time` and `moves` of `tests.bench.elastic`."""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from libra.control.client import Orders, View
from libra.core import commands as c
from libra.core import events as e
from libra.core.orders import Allocate, CancelMove, MoveRanks, Order, Undo
from libra.errors import LibraError
from libra.telemetry import replay
from libra.telemetry.metrics import read_metrics

Line = dict[str, Any]
EMULATED, QUICKSTART = "configs/emulated-8.toml", "configs/quickstart.toml"
SPEED = 20.0
DEADLINES = {"share_s": 3.0, "weights_s": 12.0, "stalled_s": 12.0}
"""Real seconds; short, so that each of them is met within a short run."""
FAULTS = [(s, k) for s in ("joining", "accumulating", "sharing") for k in ("delay", "hang", "die")]
SETTLE_MOVES = 100
"""After so many the job is warm: what grows from there on is a leak."""


class Job:
    def __init__(self, directory: str, config: str, *options: str) -> None:
        self.run_dir = Path(directory) / "job"
        command = [sys.executable, "-m", "libra.cli", "run", config, "--name", "job", f"--run.directory={directory}"]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def rows(self, kind: str) -> list[Line]:
        file = self.run_dir / "metrics.jsonl"
        return [row for row in read_metrics(file) if row["kind"] == kind] if file.exists() else []

    def until_batch(self, n: int, limit_s: float = 300.0) -> None:
        end = time.monotonic() + limit_s
        while len(self.rows("batch")) < n:
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"the job has not come to batch {n}: {(self.rows('report') or ['no report'])[-1]}")
            time.sleep(0.1)

    def give(self, order: Order) -> bool:
        with Orders(self.run_dir) as link:
            return link.give(order).accepted

    def moving(self) -> bool:
        with View(self.run_dir) as view:
            return bool(view.snapshot().allocation.moves)

    def until_settled(self, limit_s: float = 120.0) -> None:
        end = time.monotonic() + limit_s
        while self.moving() and time.monotonic() < end:
            time.sleep(0.1)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(90)

    def summary(self) -> Line:
        return json.loads((self.run_dir / "summary.json").read_text())


@contextmanager
def job(config: str, *options: str) -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="libra-bench-") as directory:
        running = Job(directory, config, *options)
        try:
            yield running
        finally:
            running.process.terminate()
            running.process.wait()


class Steps:
    """Optimiser steps as the journal tells them; run seconds. `waits` are the longest stretches in which a step was open and
    not closing, and the core had no round to compute: it waited for shares."""

    def __init__(self) -> None:
        self.opened: dict[int, float] = {}
        self.seconds: dict[int, float] = {}
        self.waits: dict[int, float] = {}
        self.losses: set[float] = set()
        self.stages: list[tuple[float, c.MoveChanged]] = []
        self.tokens: list[tuple[float, int]] = []
        self.lost_shares = 0
        self._rounds: dict[int, int] = {}
        self._step = -1
        self._idle_since: float | None = None

    def watch(self, event: e.AnyEvent, commands: Sequence[c.Command], *_: object) -> None:
        t = event.t
        match event:
            case e.RoundDone(cmd=cmd) if cmd in self._rounds:
                self._rounds[cmd] -= 1
                if not self._rounds[cmd]:
                    del self._rounds[cmd]
                if not self._rounds:
                    self._idle_since = t
            case e.StepDone(loss=loss):
                self.losses.add(round(loss, 9))
                self.seconds[self._step] = t - self.opened[self._step]
            case e.TurnGenerated(tokens=tokens):
                self.tokens.append((t, tokens))
            case _:
                pass
        for command in commands:
            match command:
                case c.OpenStep(step=step):
                    self._step, self._idle_since = step, t
                    self.opened[step], self.waits[step] = t, 0.0
                case c.Round(seq=seq, ranks=ranks):
                    self._rounds[seq] = len(ranks)
                    self._work(t)
                case c.CloseStep():
                    self._work(t)
                case c.MoveChanged():
                    self.stages.append((t, command))
                case c.Report(what=what):
                    self.lost_shares += "lost its share" in what
                case _:
                    pass

    def _work(self, t: float) -> None:
        if self._idle_since is not None:
            self.waits[self._step] = max(self.waits[self._step], t - self._idle_since)
            self._idle_since = None

    def within(self, start: float, end: float) -> list[int]:
        """Steps that overlap."""
        return [k for k, s in self.seconds.items() if self.opened[k] < end and self.opened[k] + s > start]


def read(run_dir: Path) -> tuple[Steps, bool]:
    steps = Steps()
    report = replay.check(run_dir, watch=steps.watch)
    return steps, report.ok


# --- blocking


def blocking(args: argparse.Namespace) -> Iterator[Line]:
    """Rank 6 joins after the second step; the control trains the same batches, and nobody joins. A step counts as one while it
    joins where all of it lies between the order and the end of the move: in its last one the replica may help already."""
    control, _ = _faulty(None)
    yield {"case": "control: nobody joins", "step_s": _median(control.seconds.values()), "steps": len(control.seconds)}
    for stage, kind in [("none", "none"), *FAULTS]:
        steps, ok = _faulty((stage, kind))
        began = steps.stages[0][0] if steps.stages else 0.0
        over = next((t for t, x in steps.stages if x.stage in ("ready", "failed")), began)
        joining = steps.within(began, over)
        whole = [k for k in joining if steps.opened[k] >= began and steps.opened[k] + steps.seconds[k] <= over]
        ratios = [steps.seconds[k] / control.seconds[k] for k in whole if k in control.seconds]
        after = [k for k in steps.seconds if steps.opened[k] >= over]
        yield {
            "case": f"{kind} when {stage}" if kind != "none" else "no fault", "move": [x.stage for _, x in steps.stages],
            "joining_s": round((over - began) / SPEED, 2), "whole_steps_while_joining": len(ratios),
            "median_step_over_control": round(statistics.median(ratios), 4) if ratios else None,
            "waited_while_joining_s": _real(max((steps.waits[k] for k in joining), default=0.0)),
            "waited_afterwards_s": _real(max((steps.waits[k] for k in after), default=0.0)),
            "share_deadline_s": DEADLINES["share_s"], "discarded_shares": steps.lost_shares,
            "losses": sorted(steps.losses), "replay_ok": ok,
        }  # fmt: skip


def _faulty(fault: tuple[str, str] | None) -> tuple[Steps, bool]:
    options = [f"--deadline.{name}={value}" for name, value in DEADLINES.items()]
    options += [f"--emulation.speed={SPEED}", "--run.steps=9", "--env.drift=1", "--deadline.role_restarts=0"]
    options += ["--rollout.groups_per_batch=4", "--rollout.samples_per_group=4", "--trainer.micro_batch_tokens=8192"]
    options += (
        [f"--emulation.fault.stage={fault[0]}", f"--emulation.fault.kind={fault[1]}"]
        if fault and fault[0] != "none"
        else []
    )
    with job(EMULATED, *options, "--emulation.fault.rank=6") as running:
        running.until_batch(2)
        if fault:
            running.give(MoveRanks((6,), "gradient"))
        running.process.wait(300)
        return read(running.run_dir)


def _median(values: Any) -> float:
    return round(statistics.median(values), 2)


def _real(run_s: float) -> float:
    return round(run_s / SPEED, 3)


# --- how long one takes


def time_of_a_move(args: argparse.Namespace) -> Iterator[Line]:
    """Real ranks with the tiny model: an engine becomes a replica, and an engine again."""
    options = ["--run.steps=500", "--eval.tasks=0", "--bucket.0.engines=2", "--warm_start.steps=200"]
    with job(QUICKSTART, *options) as running:
        running.until_batch(6)
        for gradient in (1, 0):
            running.give(Allocate(gradient=gradient))
            running.until_settled()
            running.until_batch(len(running.rows("batch")) + 6)
        code = running.stop()
        steps, ok = read(running.run_dir)
    for move in sorted({x.move for _, x in steps.stages}):
        times = [(t, x) for t, x in steps.stages if x.move == move]
        began, over = times[0][0], times[-1][0]
        stages = {x.stage: round(times[i + 1][0] - t, 2) for i, (t, x) in enumerate(times[:-1])}
        before = [
            k for k in steps.seconds if began - 20.0 < steps.opened[k] and steps.opened[k] + steps.seconds[k] < began
        ]
        during = steps.within(began, over)
        yield {
            "what": times[0][1].what, "over": times[-1][1].stage, "whole_s": round(over - began, 2), "stages_s": stages,
            "tokens_per_s": _rate(steps, began, over), "tokens_per_s_before": _rate(steps, began - 20.0, began),
            "step_s": _median(steps.seconds[k] for k in during) if during else None,
            "step_s_before": _median(steps.seconds[k] for k in before) if before else None,
            "waited_s": round(max((steps.waits[k] for k in during), default=0.0), 3),
            "exit_code": code, "replay_ok": ok,
        }  # fmt: skip


def _rate(steps: Steps, start: float, end: float) -> float:
    return round(sum(n for t, n in steps.tokens if start <= t < end) / max(1e-9, end - start), 1)


# --- many


def moves(args: argparse.Namespace) -> Iterator[Line]:
    """Random legal and illegal orders, one after the other; sometimes one is cancelled or taken back under way."""
    draw = random.Random(0)
    options = ["--run.steps=1000000", "--rollout.groups_per_batch=3", "--rollout.samples_per_group=4"]
    options += ["--emulation.speed=400", "--env.drift=1", "--deadline.weights_s=60", "--deadline.drain_s=20"]
    with job(EMULATED, *options) as running:
        running.until_batch(2)
        began, refused, sampled, samples = time.monotonic(), 0, 0, [_family(running.process.pid)]
        while (done := _over(running)) < args.moves and time.monotonic() - began < args.limit_s:
            try:
                refused += not running.give(_random_order(draw, done))
                if draw.random() < 0.1:
                    running.give(draw.choice([Undo(), CancelMove(done + 1)]))
                running.until_settled()
            except LibraError as x:  # a run that ended meanwhile shows below
                yield {"problem": str(x)}
                break
            if done >= sampled + 20:
                sampled = done
                samples.append({"moves": done, **_family(running.process.pid)})
                if sampled % 100 < 20:
                    yield {"so_far": done, "s": round(time.monotonic() - began, 1), **samples[-1]}
        seconds = time.monotonic() - began
        rows = running.rows("move")
        code = running.stop()
        steps, ok = read(running.run_dir)
        summary = running.summary()
    warm = [s for s in samples if s.get("moves", 0) >= min(SETTLE_MOVES, sampled / 4)]
    thirds = warm[: max(1, len(warm) // 3)], warm[-max(1, len(warm) // 3) :]
    yield {
        "moves": sum(row["stage"] in ("ready", "failed") for row in rows),
        "ready": sum(row["stage"] == "ready" for row in rows), "refused": refused, "seconds": round(seconds, 1),
        "median_move_s": _median(row["seconds"] / 400 for row in rows if row["stage"] == "ready"),
        "lost": summary["lost"], "failed": summary["failed"], "batches": summary["steps"], "losses": sorted(steps.losses),
        "exit_code": code, "replay_ok": ok, "zombies": max(s["zombies"] for s in samples),
        "first_third": _means(thirds[0]), "last_third": _means(thirds[1]),
    }  # fmt: skip


def _over(running: Job) -> int:
    return sum(row["stage"] in ("ready", "failed") for row in running.rows("move"))


def _random_order(draw: random.Random, done: int) -> Order:
    kind = draw.randrange(4)
    if kind < 2:
        return Allocate(gradient=draw.randrange(5))
    pair = draw.choice([(3, 4), (5, 6), (7, 8)])
    if kind == 2:
        return MoveRanks(pair, "rollout", draw.choice(["tp1", "tp2"]))
    return MoveRanks(draw.choice([pair, pair[:1]]), draw.choice(["gradient", "rollout"]))


def _family(root: int) -> Line:
    """Descriptors, threads and resident MB of the controller and the supervisors together, and of
    the largest of them, which is the controller; zombies anywhere below."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1]), fields[0]
    family = {root}
    while new := {pid for pid, (parent, _) in parents.items() if parent in family} - family:
        family |= new
    found: Line = {"descriptors": 0, "threads": 0, "resident_mb": 0.0, "largest_mb": 0.0, "processes": len(family)}
    found["zombies"] = sum(parents[pid][1] == "Z" for pid in family if pid in parents)
    for pid in family:
        try:
            if b"libra.launch" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                continue
            found["descriptors"] += _count(Path(f"/proc/{pid}/fd"))
            found["threads"] += _count(Path(f"/proc/{pid}/task"))
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            resident_mb = pages * os.sysconf("SC_PAGESIZE") / 1e6
            found["resident_mb"] += resident_mb
            found["largest_mb"] = max(found["largest_mb"], resident_mb)
        except OSError:
            continue
    return {name: round(value, 1) for name, value in found.items()}


def _count(directory: Path) -> int:
    return sum(1 for _ in directory.iterdir())


def _means(samples: Sequence[Line]) -> Line:
    names = ("descriptors", "threads", "resident_mb", "largest_mb", "processes")
    return {name: round(statistics.fmean(s[name] for s in samples), 1) for name in names}
