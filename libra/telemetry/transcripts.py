"""runs/NAME/transcripts/: trajectories as they were, for `libra show`; token ids and what is known of them, never text.

    000007.transcripts   head | record | record | ...        one of `FILES`; the oldest goes when the next one is begun

    record = length u32 | msgpack of a `Transcript`

A record is one `os.write`, so a reader sees whole ones only, but for a last one that a kill cut. All files together never
exceed `max_bytes`; a record that is larger than a file is left out. The controller writes it, behind the end of an episode.
"""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from libra.config.schema import TranscriptsConfig
from libra.core.commands import Kind
from libra.core.events import Finish
from libra.errors import LibraError

FORMAT = 1
"""Version of this format. Another one is refused by name."""
DIRECTORY = "transcripts"
FILES = 8
_LENGTH = struct.Struct(">I")


class Turn(Struct, frozen=True, array_like=True):
    """What one engine sampled in one go; a turn that was cut has several."""

    start: int
    """Index of its first token."""
    tokens: int
    engine: int
    bucket: str
    oldest: int
    newest: int
    """Versions that sampled it; -1 where it has no token."""
    finish: Finish
    logprob: float
    """Mean log-probability of its tokens."""


class Return(Struct, frozen=True, array_like=True):
    """What a tool gave back."""

    start: int
    tokens: int
    tool: str
    status: str
    seconds: float


class Transcript(Struct, frozen=True, array_like=True):
    traj: int
    group: int
    kind: Kind
    prompt: int
    sample: int
    attempt: int
    end: Literal["ended", "failed", "dropped"]
    """dropped: given up before its end."""
    reward: float
    """0 unless it ended."""
    why: str
    """What the environment, or what broke, says about its end."""
    seconds: float
    """From its opening."""
    at: float
    """Of the run's clock, at its end."""
    tokens: list[int]
    turns: list[Turn]
    returns: list[Return]


class _Head(Struct, frozen=True, array_like=True):
    format: int
    kind: str = "libra-transcripts"


class _Name(Struct, frozen=True, array_like=True):
    """The first fields of a record: what it is looked for by."""

    traj: int
    group: int


class TranscriptWriter:
    """Begins a file of its own: those of an earlier part of the run are left as they are, and go in their turn.

    A disk that refuses costs the transcripts, never the run: `complain` is told once.
    """

    def __init__(self, directory: Path, config: TranscriptsConfig, complain: Callable[[str], None]) -> None:
        self._directory = directory
        self._config = config
        self._file_bytes = config.max_bytes // FILES
        self._encoder = msgspec.msgpack.Encoder()
        self._fd = -1
        self._size = 0
        self._complain = complain
        self._failed = False
        files = _files(directory)
        self._number = int(files[-1].stem) + 1 if files else 0

    def wants(self, kind: Kind, prompt: int) -> bool:
        """Whether trajectories of this prompt are kept."""
        keep = self._config.keep
        return not self._failed and (keep == "all" or (keep == "sample" and prompt % self._config.sample_every == 0))

    def write(self, transcript: Transcript) -> None:
        """Append it."""
        body = self._encoder.encode(transcript)
        record = _LENGTH.pack(len(body)) + body
        if self._failed or len(record) > self._file_bytes:
            return
        try:
            if self._fd < 0 or self._size + len(record) > self._file_bytes:
                self._next_file()
            self._append(record)
        except OSError as e:
            self.close()
            self._failed = True
            self._complain(f"no more transcripts are kept: {self._directory} cannot be written ({e.strerror})")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, record: bytes) -> None:
        if os.write(self._fd, record) < len(record):
            raise OSError(0, "not all bytes were taken; is the disk full?")
        self._size += len(record)

    def _next_file(self) -> None:
        self.close()
        self._directory.mkdir(exist_ok=True)
        for old in _files(self._directory)[: 1 - FILES]:
            old.unlink()
        path = self._directory / f"{self._number:06d}.transcripts"
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._number += 1
        self._size = 0
        body = self._encoder.encode(_Head(FORMAT))
        self._append(_LENGTH.pack(len(body)) + body)


def find(run_dir: Path, *, traj: int | None = None, group: int | None = None) -> list[Transcript]:
    """What is kept of a trajectory, or of a group, oldest first; of a run that went on there may be several of one number.

    Raises LibraError for another format.
    """
    found: list[Transcript] = []
    for path in _files(run_dir / DIRECTORY):
        for body in _records(path):
            name = msgspec.msgpack.decode(body, type=_Name)
            if traj in (None, name.traj) and group in (None, name.group):
                found.append(msgspec.msgpack.decode(body, type=Transcript))
    return found


def names(run_dir: Path) -> list[tuple[int, int]]:
    """(trajectory, group) of all that is kept, oldest first."""
    bodies = (body for path in _files(run_dir / DIRECTORY) for body in _records(path))
    return [(n.traj, n.group) for n in (msgspec.msgpack.decode(body, type=_Name) for body in bodies)]


def _records(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    at = 0
    while at + _LENGTH.size <= len(data):
        (n,) = _LENGTH.unpack_from(data, at)
        body = data[at + _LENGTH.size : at + _LENGTH.size + n]
        if len(body) < n:
            return  # a kill cut it
        if at:
            yield body
        else:
            _check(path, body)
        at += _LENGTH.size + n


def _check(path: Path, body: bytes) -> None:
    try:
        head = msgspec.msgpack.decode(body, type=_Head)
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise LibraError(f"{path} holds no transcripts of Libra's: {e}") from e
    if head.format != FORMAT:
        raise LibraError(f"{path} has transcript format {head.format}, this code reads format {FORMAT}")


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.transcripts"))
