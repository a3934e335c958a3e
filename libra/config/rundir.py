"""Where a run lands: `runs/NAME/`, who claims it, and whether its controller still lives.

    runs/NAME/  config.toml  pid  journal  metrics.jsonl  logs/  causality.tree  summary.json  reward.png

Invariant: a directory belongs to one run for good; it is made by one `mkdir` that fails where it exists. The pid file also
holds the process's start time and host, so a pid that the system gave to somebody else is never signalled.
Rank 0 claims and writes; the command line reads.
"""

import itertools
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from libra.config.load import dump, load
from libra.config.schema import Config
from libra.errors import PreflightError

RUN_DIR_ENV = "LIBRA_RUN_DIR"
"""Set by `libra run` for rank 0: the absolute run directory, not made yet."""
CONFIG_FILE = "config.toml"
PID_FILE = "pid"
LOG_DIRECTORY = "logs"
TREE_FILE = "causality.tree"
"""What the run's scheduling has learnt."""
TREE_START_FILE = "causality-start.tree"
"""What it had to start from, where `scheduler.tree_from` names something."""


class Resolved(Struct, frozen=True):
    """A configuration and the directory that its run will land in. `config.run.name` is the directory's name."""

    config: Config
    run_dir: Path


class Pid(Struct, frozen=True):
    """A process that cannot be mistaken for a later one: `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    host: str


def resolve(path: str | Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Resolved:
    """Load `path` and choose the run directory.

    `LIBRA_RUN_DIR` wins; else a `--run.name` among the overrides must be free; else the file's name gets -2, -3, ... until it
    is. Nothing is written. Raises ConfigError, or PreflightError where the name is taken.
    """
    config = load(path, overrides)
    given = (os.environ if environ is None else environ).get(RUN_DIR_ENV)
    if given:
        run_dir = Path(given)
    else:
        parent = Path(config.run.directory).absolute()
        is_named = any(word.partition("=")[0] == "--run.name" for word in overrides)
        run_dir = parent / (config.run.name if is_named else _free_name(parent, config.run.name))
        if run_dir.exists():
            raise PreflightError([_taken(run_dir)])
    run = msgspec.structs.replace(config.run, name=run_dir.name)
    return Resolved(msgspec.structs.replace(config, run=run), run_dir)


def find_tree(config: Config) -> Path | None:
    """The saved tree that `scheduler.tree_from` names: a file, a run's directory, or a run's name. None where there is none."""
    given = Path(config.scheduler.tree_from)
    places = (given, given / TREE_FILE, Path(config.run.directory) / given / TREE_FILE)
    return next((p for p in places if p.is_file()), None)


def claim(resolved: Resolved) -> None:
    """Make the run directory and write its `config.toml` and `pid`. PreflightError where it exists or cannot be made."""
    run_dir = resolved.run_dir
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir()
    except FileExistsError:
        raise PreflightError([_taken(run_dir)]) from None
    except OSError as e:
        raise PreflightError([f"run directory: {run_dir} cannot be made ({e.strerror}); set run.directory"]) from None
    (run_dir / LOG_DIRECTORY).mkdir()
    (run_dir / CONFIG_FILE).write_text(dump(resolved.config), encoding="utf-8", newline="")
    write_pid(run_dir)


def write_pid(run_dir: Path) -> None:
    """Note this process as the run's controller, by write-then-rename."""
    fresh = run_dir / f".{PID_FILE}.{os.getpid()}"
    fresh.write_bytes(msgspec.json.encode(own_pid()))
    fresh.replace(run_dir / PID_FILE)


def own_pid() -> Pid:
    """This process."""
    ticks = _start_ticks(os.getpid())
    assert ticks is not None, "this process has no /proc entry"
    return Pid(os.getpid(), ticks, socket.gethostname())


def read_pid(run_dir: Path) -> Pid | None:
    """The controller that claimed the run, alive or not; None where there is no readable pid file."""
    try:
        return msgspec.json.decode((run_dir / PID_FILE).read_bytes(), type=Pid)
    except (OSError, msgspec.DecodeError):
        return None


def is_alive(pid: Pid) -> bool:
    """Whether that very process lives on this host. A zombie does not, nor does a later process with the same number."""
    return pid.host == socket.gethostname() and _start_ticks(pid.pid) == pid.start_ticks


def _start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the process's start; None where it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the command's name may hold spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def _free_name(parent: Path, name: str) -> str:
    candidates = itertools.chain([name], (f"{name[:56]}-{n}" for n in itertools.count(2)))
    return next(c for c in candidates if not (parent / c).exists())


def _taken(run_dir: Path) -> str:
    return (
        f"run directory: {run_dir} exists, expected a new one; choose another --name "
        f"({_free_name(run_dir.parent, run_dir.name)} is free), or leave --name out"
    )
