"""A run's journal in segments: one for each time that it began or went on.

    runs/NAME/journal/     from the beginning
    runs/NAME/journal-2/   since the first resume: its own head (incarnation, configuration), its own command numbers, and
                           start.msgpack: what its core went on from
    runs/NAME/journal-3/   since the second

A segment replays by itself: the checkpoint that it went on from may be gone long since. Its clock goes on from that checkpoint.
"""

import re
from pathlib import Path

from libra.checkpoint import content
from libra.config.rundir import TREE_START_FILE
from libra.config.schema import Config
from libra.core.coordinator import Core
from libra.errors import CheckpointError, ConfigError, JournalError, PreflightError
from libra.telemetry import tree_file
from libra.telemetry.journal import DIRECTORY

START = "start.msgpack"
_LATER = re.compile(rf"{DIRECTORY}-(\d+)\Z")


def directories(run_dir: Path) -> list[Path]:
    """The segments that hold anything, in order; the first one in any case."""
    later = sorted((int(m[1]), p) for p in run_dir.iterdir() if (m := _LATER.match(p.name)))
    return [run_dir / DIRECTORY, *(p for _, p in later if any(p.glob("*.journal")))]


def begin_later(run_dir: Path, start: bytes) -> Path:
    """A directory for one segment more, which goes on from `start`. PreflightError where another process makes it as well."""
    taken = [int(m[1]) for p in run_dir.iterdir() if (m := _LATER.match(p.name))]
    made = run_dir / f"{DIRECTORY}-{max(taken, default=1) + 1}"
    try:
        made.mkdir()
    except FileExistsError:
        raise PreflightError([f"{made} has just been made: another process resumes this run"]) from None
    (made / START).write_bytes(start)
    return made


def core_of(directory: Path, config: Config) -> Core:
    """The core that a segment began with. Raises JournalError where what it started from is missing."""
    try:
        if directory.name != DIRECTORY:
            return Core(config, saved=content.decode(directory / START).core)
        if config.scheduler.tree_from:
            return Core(config, learned=tree_file.read(directory.parent / TREE_START_FILE).learned)
    except CheckpointError as x:
        raise JournalError(f"what the run went on from as {directory.name} began: {x}") from x
    except ConfigError as x:
        raise JournalError(f"the run started from {config.scheduler.tree_from!r}: {x}") from x
    return Core(config)
