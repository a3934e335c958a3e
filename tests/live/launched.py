"""Starts a whole run as a user does, watches its files, and looks for what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from libra.telemetry.metrics import read_metrics

REPOSITORY = Path(__file__).parents[2]
QUICK = [
    "--warm_start.steps=200",
    "--warm_start.demonstrations=4000",
    "--rollout.groups_per_batch=4",
    "--rollout.samples_per_group=4",
    "--eval.tasks=8",
    "--elastic.rule=off",
]
"""A run that is small in every way but has every part."""
QUICKSTART = REPOSITORY / "configs" / "quickstart.toml"
ONE_EACH = Path(__file__).parent / "one_each.toml"
"""Configurations: the main job's, and that with one trainer and one engine."""
POLL_S = 0.05


class Launched:
    """`libra run` in a process of its own. `deadline_s` bounds every wait."""

    def __init__(
        self,
        tmp_path: Path,
        cache: Path | None,
        *options: str,
        config: Path = QUICKSTART,
        name: str = "job",
        deadline_s: float = 100.0,
    ) -> None:
        """`cache` is that of warm starts; None for a job that has none, which then gets no `QUICK` either."""
        self.run_dir = tmp_path / "runs" / name
        self.deadline_s = deadline_s
        quick = [f"--warm_start.cache={cache}", *QUICK] if cache else []
        command = [
            *(sys.executable, "-m", "libra.cli", "run", str(config)),
            *("--name", name, f"--run.directory={tmp_path / 'runs'}", *quick, *options),
        ]
        self.output = tmp_path / "output.txt"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, cwd=REPOSITORY, start_new_session=True
            )
        self.seen: set[int] = {self.process.pid}
        """Every process that was ever found below it."""

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.family():
            kill(pid, signal.SIGKILL)
        self.process.wait()

    # --- watching

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait for a condition; the run's own words go into the failure."""
        end = time.monotonic() + self.deadline_s
        while time.monotonic() < end:
            self.family()
            if value := condition():
                return value
            if self.process.poll() is not None and not (value := condition()):
                raise AssertionError(f"the run ended before: {what}\n{self.words()}")
            time.sleep(POLL_S)
        raise AssertionError(f"not within {self.deadline_s:g} s: {what}\n{self.words()}")

    def until_batch(self, n: int) -> None:
        self.until(f"batch {n}", lambda: len(self.batches()) >= n)

    def wait(self) -> int:
        """The exit code."""
        self.until("the end of the run", lambda: self.process.poll() is not None)
        return self.process.returncode

    def words(self) -> str:
        log = self.run_dir / "logs" / "controller.log"
        return self.output.read_text(errors="replace")[-4000:] + (log.read_text()[-4000:] if log.exists() else "")

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in read_metrics(self.run_dir / "metrics.jsonl") if row["kind"] == kind]

    def batches(self) -> list[dict[str, Any]]:
        return self.metrics("batch")

    def reports(self) -> str:
        return "\n".join(row["what"] for row in self.metrics("report"))

    def summary(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "summary.json").read_text())

    # --- processes

    def family(self) -> list[int]:
        """Living processes below the run's first, and any that were below it earlier."""
        parents = dict(processes())
        grown = True
        while grown:
            new = {pid for pid, parent in parents.items() if parent in self.seen} - self.seen
            self.seen |= new
            grown = bool(new)
        return [pid for pid in self.seen if pid in parents]

    def find(self, module: str, role: str = "") -> list[int]:
        """Processes of the family that run `python -m module`, in order of their start."""
        found = []
        for pid in sorted(self.family()):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if module.encode() in words and role in self.role_of(pid):
                    found.append(pid)
            except OSError:
                continue
        return found

    def role_of(self, pid: int) -> str:
        """The log that a role process writes tells its rank and role: "rank-3.rollout-0.log"."""
        return Path(f"/proc/{pid}/fd/1").readlink().name

    def assert_nobody_left(self, within_s: float = 5.0) -> None:
        end = time.monotonic() + within_s
        while (left := self.family()) and time.monotonic() < end:
            time.sleep(POLL_S)
        named = [Path(f"/proc/{p}/cmdline").read_bytes().replace(b"\0", b" ").decode() for p in left if exists(p)]
        assert not named, f"left behind: {named}"


def processes() -> Iterator[tuple[int, int]]:
    """(pid, parent) of everything that lives; zombies do not."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                yield int(entry.name), int(fields[1])


def exists(pid: int) -> bool:
    return pid in dict(processes())


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
