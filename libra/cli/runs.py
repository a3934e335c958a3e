"""What a run directory tells about its run. Read by `libra list`, `stop`, `replay`, `top` and, at the end, `run`.

Finding a run imports no telemetry: that alone is a third of what `libra top` has until its first picture.
"""

import difflib
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from libra.config.rundir import CONFIG_FILE, PID_FILE, is_alive, read_pid
from libra.errors import RunGone

State = Literal["running", "finished", "failed", "died"]


class RunInfo(Struct, frozen=True):
    """One line of `libra list`. `reward` is the mean of the last ten batches; `started` is local time, ISO 8601."""

    name: str
    state: State
    steps: int
    reward: float | None
    started: str
    path: str


def find(run: str, parent: Path = Path("runs")) -> Path:
    """The directory of a run given by name (below `parent`) or by path. RunGone names the nearest where there is none."""
    for candidate in (parent / run, Path(run)):
        if _is_run(candidate):
            return candidate
    names = [p.name for p in all_runs(parent)]
    near = difflib.get_close_matches(run, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"{parent} has {', '.join(sorted(names)) or 'no runs'}"
    raise RunGone(f"there is no run {run!r}, neither in {parent} nor as a path; {hint}")


def find_or_newest(run: str | None, parent: Path = Path("runs"), *, ended: bool = False) -> Path:
    """The named run; without a name the newest below `parent` whose controller lives; with `ended`, where none does, the
    newest. RunGone where there is none."""
    if run is not None:
        return find(run, parent)
    runs = all_runs(parent)
    for path in reversed(runs):
        pid = read_pid(path)
        if pid is not None and is_alive(pid):
            return path
    if ended and runs:
        return runs[-1]
    raise RunGone(f"no run in {parent} is running on this host; name one (`libra list` shows them)")


def all_runs(parent: Path) -> list[Path]:
    """Run directories below `parent`, oldest first."""
    found = [p for p in parent.iterdir() if _is_run(p)] if parent.is_dir() else []
    return sorted(found, key=lambda p: (_started(p), p.name))


def info(run_dir: Path) -> RunInfo:
    """State by pid file and summary: the pid decides what runs, the summary what ended, and neither means it died."""
    end = _summary(run_dir)
    pid = read_pid(run_dir)
    if pid is not None and is_alive(pid):
        state: State = "running"
    elif end is None:
        state = "died"
    else:
        state = "finished" if end.ok else "failed"
    steps, reward = (end.steps, end.reward_last) if end is not None else _progress(run_dir)
    started = datetime.fromtimestamp(_started(run_dir)).isoformat(sep=" ", timespec="seconds")
    return RunInfo(run_dir.name, state, steps, reward, started, str(run_dir))


def why_it_ended(run_dir: Path) -> str:
    """The summary's reason; "" where there is no summary."""
    end = _summary(run_dir)
    return end.reason if end is not None else ""


class _End(Struct, frozen=True):
    """The few fields of a summary that are needed here, so that a summary of another version still lists."""

    ok: bool
    steps: int
    reward_last: float | None = None
    reason: str = ""


def _summary(run_dir: Path) -> _End | None:
    from libra.telemetry import summary

    try:
        return msgspec.json.decode((run_dir / summary.FILE).read_bytes(), type=_End)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _progress(run_dir: Path) -> tuple[int, float | None]:
    from libra.telemetry import metrics, summary

    try:
        batches = [row for row in metrics.read_metrics(run_dir / metrics.FILE) if row.get("kind") == "batch"]
    except ValueError:
        return 0, None
    rewards = [r for row in batches[-summary.WINDOW :] if (r := row.get("reward")) is not None]
    return len(batches), sum(rewards) / len(rewards) if rewards else None


def _is_run(path: Path) -> bool:
    return (path / CONFIG_FILE).is_file() or (path / PID_FILE).is_file()


def _started(run_dir: Path) -> float:
    """The resolved configuration is written once, when the run begins."""
    file = run_dir / CONFIG_FILE
    return (file if file.exists() else run_dir).stat().st_mtime
