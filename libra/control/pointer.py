"""runs/NAME/control.json: on which host, by which process, and where the control sockets of a run are.

Written by rank 0 once it listens, by write-then-rename; removed when the run ends. A killed controller leaves it behind: the
process that it names tells the two apart, by pid *and* start time.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from libra.config.rundir import Pid

FILE = "control.json"


class Pointer(Struct, frozen=True):
    protocol: int
    host: str
    pid: int
    start_ticks: int
    incarnation: str
    view: str
    """Path of the socket on `host`."""
    control: str

    @property
    def process(self) -> Pid:
        return Pid(self.pid, self.start_ticks, self.host)


def write_pointer(run_dir: Path, pointer: Pointer) -> None:
    fresh = run_dir / f".{FILE}.{os.getpid()}"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(pointer), indent=2) + b"\n")
    fresh.replace(run_dir / FILE)


def remove_pointer(run_dir: Path) -> None:
    (run_dir / FILE).unlink(missing_ok=True)


def read_pointer(run_dir: Path) -> Pointer | None:
    """None where there is no readable pointer."""
    try:
        return msgspec.json.decode((run_dir / FILE).read_bytes(), type=Pointer)
    except (OSError, msgspec.DecodeError):
        return None
