"""An emulated job against the same job in virtual time, and what it costs the machine it runs on. JSON lines.

    python -m tests.bench.emulated [CONFIG] [--section.key=value ...]

`makespan_s` is from the first turn to the last end of a training trajectory, `steps_s` when each optimiser step was over, both
in run seconds; the simulation is the control. Same trajectories: prompt, sample, tokens and reward of each.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from libra.config import load
from libra.core import events as e
from libra.sim.plan import plan
from libra.sim.shell import Simulation
from libra.telemetry import replay
from libra.telemetry.journal import JournalReader


def main(words: list[str]) -> None:
    config = words[0] if words and not words[0].startswith("--") else "configs/emulated-8.toml"
    options = [w for w in words if w.startswith("--")]
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            "-m",
            "libra.cli",
            "run",
            config,
            f"--run.directory={directory}",
            "--name",
            "job",
            *options,
        ]
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        resident = Resident(job.pid)
        code = job.wait()
        wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        run_dir = Path(directory) / "job"
        live = figures(event for event, _ in JournalReader(run_dir / "journal"))
        passed: list[e.AnyEvent] = []
        Simulation(plan(load(run_dir / "config.toml")), lambda event, _: passed.append(event)).run()
        control = figures(passed)
        say("live", config=config, exit_code=code, **shown(live))
        say("simulated", **shown(control))
        say(
            "compared",
            same_trajectories=live["ended"] == control["ended"],
            makespan_ratio=round(live["makespan_s"] / control["makespan_s"], 4),
            last_step_ratio=round(live["steps_s"][-1] / control["steps_s"][-1], 4),
            replay_ok=replay.check(run_dir).ok,
        )
        say(
            "machine",
            wall_s=round(wall_s, 1),
            cpu_s=round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
            processes=resident.processes,
            private_mb=round(resident.bytes / 1e6),
            private_mb_by_kind=resident.by_kind,
            load=os.getloadavg()[0],
            cores=os.cpu_count(),
        )


def figures(events: Iterable[e.AnyEvent]) -> dict[str, Any]:
    first: float | None = None
    last = 0.0
    ended: dict[int, tuple[float, int, int]] = {}
    steps: list[float] = []
    for event in events:
        match event:
            case e.TurnReady(t=t):
                first = t if first is None else first
            case e.EpisodeEnded(t=t, traj=traj):
                ended[traj], last = (event.reward, event.loss_tokens, event.total_tokens), t
            case e.StepDone(t=t, rank=1):
                steps.append(t)
            case _:
                pass
    start = first or 0.0
    return {"makespan_s": last - start, "steps_s": [t - start for t in steps], "ended": ended}


def shown(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "makespan_s": round(found["makespan_s"], 1),
        "steps_s": [round(s, 1) for s in found["steps_s"]],
        "trajectories": len(found["ended"]),
    }


class Resident:
    """Watches the family of a process: how many there are at most, and what memory is theirs alone."""

    def __init__(self, pid: int) -> None:
        self.processes = self.bytes = 0
        self.by_kind: dict[str, float] = {}
        """MB of one process of each kind, the largest seen."""
        threading.Thread(target=self._watch, args=(pid,), daemon=True).start()

    def _watch(self, first: int) -> None:
        while True:
            family, grown = {first}, True
            parents = dict(_parents())
            while grown:
                new = {pid for pid, parent in parents.items() if parent in family} - family
                family |= new
                grown = bool(new)
            sizes = [(pid, _private_bytes(pid)) for pid in family]
            if len(sizes) >= self.processes:
                self.processes, self.bytes = len(sizes), sum(size for _, size in sizes)
                for pid, size in sizes:
                    kind = _kind(pid)
                    self.by_kind[kind] = max(self.by_kind.get(kind, 0.0), round(size / 1e6, 1))
            time.sleep(2.0)


def _parents() -> Iterable[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue


def _private_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return next((w.decode() for w in words if w.startswith(b"libra.")), "other")


def say(what: str, **values: Any) -> None:
    print(json.dumps({"bench": f"emulated.{what}", **values}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
