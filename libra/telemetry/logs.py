"""Logs: the controller's own lines, and the tails of the roles' logs for errors and reports.

    2026-01-31T12:00:00.123Z    12.345 warning engine 1 is down: exit code -9

One record a line (a multi-line text is continued behind "    | "), flushed with the line. The file is turned over once it
is large, with one older generation kept, so that a log is never what fills the disk.
"""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from libra.core.commands import Level

CONTROLLER = "logs/controller.log"
"""Path inside a run's directory."""
MAX_LOG_BYTES = 32 * 1024 * 1024


class RunLog:
    """Appends lines to `path`. `clock` gives seconds since the run began; `wall` the time of day, seconds since 1970."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        max_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._clock = clock
        self._wall = wall
        self._max_bytes = max_bytes
        self._open()

    def write(self, level: Level, what: str) -> None:
        """One record. OSError where the disk refuses."""
        stamp = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = what.rstrip("\n").replace("\n", "\n    | ")
        line = f"{stamp} {self._clock():9.3f} {level:7} {text}\n".encode(errors="backslashreplace")
        if self._size and self._size + len(line) > self._max_bytes:
            self.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._open()
        os.write(self._fd, line)
        self._size += len(line)

    def info(self, what: str) -> None:
        self.write("info", what)

    def warning(self, what: str) -> None:
        self.write("warning", what)

    def error(self, what: str) -> None:
        self.write("error", what)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size


def tail(path: Path, lines: int = 20, max_bytes: int = 8192) -> str:
    """The last `lines` lines of a log, from at most its last `max_bytes` bytes; "" where there is no such file.

    Bytes that are not UTF-8 are replaced, so that any role's last words can go into a message.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - max_bytes)
            file.seek(start)
            data = file.read(max_bytes)
    except FileNotFoundError:
        return ""
    if start and b"\n" in data[:-1]:
        data = data[data.index(b"\n") + 1 :]  # the first line is a part of one
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])
