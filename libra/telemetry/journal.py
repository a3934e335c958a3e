"""The journal: every event that entered the core and a digest of every command that left it.

    runs/NAME/journal/000000.journal   head | event | commands | event | commands | ...
                      000001.journal   head | event | ...                           (same head, next number)

    record = length u32 | crc32(body) u32 | length ^ crc ^ MARK u32 | body (msgpack, `length` bytes)

Invariants: an event is in the kernel's hands before any of its commands runs; each record is one `os.write` on an
O_APPEND descriptor, so that a SIGKILL loses nothing (a power cut may lose what had not been flushed); an event and its
command record stand in the same file; a file never exceeds `max_file_bytes` (an event larger than that has a file to
itself). The third word of a record proves the length by itself, so a torn tail (the last record is short) is told from
damage (anything else).

The controller's core loop writes it; `replay` and, later, the planner's twin read it.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import msgspec
from msgspec import Struct

from libra.config.schema import Config
from libra.core.commands import Command
from libra.core.events import AnyEvent, Event
from libra.errors import JournalError
from libra.telemetry.version import code_version

FORMAT = 2
"""Version of this format. Another one is refused by name."""
DIRECTORY = "journal"
"""Name of the journal's directory inside a run's directory."""
MAX_FILE_BYTES = 16 * 1024 * 1024
"""A new file is begun before this size is passed (about 200,000 events)."""
_FRAME = struct.Struct(">III")
_MARK = 0x4C494252
_COMMANDS_BYTES = 64
"""Room kept for the command record that follows an event; its largest encoding has 46 bytes with its frame."""


class Head(Struct, frozen=True, tag="head", array_like=True):
    """First record of each file. `format` stays the first field for ever: it is read before anything else."""

    format: int
    run: str
    incarnation: str
    seed: int
    code: str
    config: bytes
    """The resolved configuration as JSON: what `Core(config)` was built from."""
    file: int = 0
    first_event: int = 0
    """Index (from 0, over the whole journal) of the first event in this file."""

    @staticmethod
    def of(config: Config, incarnation: str) -> "Head":
        """The head of a new run of this code."""
        return Head(FORMAT, config.run.name, incarnation, config.run.seed, code_version(), msgspec.json.encode(config))


class CommandRecord(Struct, frozen=True, tag="commands", array_like=True):
    """What one event led to: `count` commands numbered from `first` (0 where there are none)."""

    first: int
    count: int
    digest: bytes
    """blake2b-64 over the previous record's digest and the msgpack of these commands: a chain over the whole run."""


class CommandChain:
    """Makes the command records of one run, in order. Writer and replay use the same one."""

    def __init__(self) -> None:
        self._digest = bytes(8)
        self._encoder = msgspec.msgpack.Encoder()

    def record(self, commands: Sequence[Command]) -> CommandRecord:
        encoded = self._encoder.encode(commands)
        self._digest = blake2b(self._digest + encoded, digest_size=8).digest()
        return CommandRecord(commands[0].seq if commands else 0, len(commands), self._digest)


class Torn(Struct, frozen=True):
    """A tail that was cut: the last record of the last file is incomplete."""

    file: Path
    offset: int
    lost_bytes: int

    def __str__(self) -> str:
        return f"{self.file.name}: torn tail of {self.lost_bytes} bytes at offset {self.offset} cut"


class JournalWriter:
    """Appends to a fresh journal: `event` before the event's commands run, then `commands`, in turn.

    Raises JournalError where the directory holds a journal already, a file cannot be written, or the turn is broken.
    """

    def __init__(self, directory: Path, head: Head, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        if found := _files(directory):
            raise JournalError(
                f"{directory} holds a journal already ({len(found)} files); a journal belongs to one run: "
                "choose another --name or remove that run's directory"
            )
        self._directory = directory
        self._head = head
        self._max_file_bytes = max_file_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._chain = CommandChain()
        self._fd = -1
        self._size = 0
        self._open = False
        self.events = 0
        self.files = 0
        self._next_file()

    def event(self, event: Event) -> None:
        """Append an event. Returns once the kernel has it (a few microseconds)."""
        if self._open:
            raise JournalError(f"event {self.events - 1} has no commands yet; call commands() (maybe with []) first")
        record = _frame(self._encoder.encode(event))
        if self._size + len(record) + _COMMANDS_BYTES > self._max_file_bytes and self.events > self._head.first_event:
            self._next_file()
        self._append(record)
        self.events += 1
        self._open = True

    def commands(self, commands: Sequence[Command]) -> None:
        """Append the digest of the commands that the last event led to."""
        if not self._open:
            raise JournalError("commands() without an event before it")
        self._append(_frame(self._encoder.encode(self._chain.record(commands))))
        self._open = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_file(self) -> None:
        self.close()
        self._path = self._directory / f"{self.files:06d}.journal"
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise JournalError(f"{self._path} cannot be made: {e.strerror}") from e
        self._head = msgspec.structs.replace(self._head, file=self.files, first_event=self.events)
        self._size = 0
        self.files += 1
        self._append(_frame(self._encoder.encode(self._head)))

    def _append(self, record: bytes) -> None:
        if self._fd < 0:
            raise JournalError(f"{self._path} is closed")
        try:
            written = os.write(self._fd, record)
            if written < len(record):
                raise OSError(0, f"only {written} of {len(record)} bytes were taken; is the disk full?")
        except OSError as e:
            # No record may follow half of one: that would be damage in the middle instead of a torn tail.
            self.close()
            raise JournalError(f"{self._path} cannot be written at offset {self._size}: {e.strerror}") from e
        self._size += written


class JournalReader:
    """Reads a journal from its beginning: iterate for (event, its command record, or None where the tail lacks it).

    `head` is the first file's head; `torn` says, after the iteration, what was cut from the end. Raises JournalError
    for damage anywhere else (names file and offset), for a missing file and for another format version.
    """

    def __init__(self, directory: Path) -> None:
        self._paths = _files(directory)
        if not self._paths:
            raise JournalError(
                f"{directory} holds no journal: expected files named 000000.journal, 000001.journal, ..."
            )
        self._decoder = msgspec.msgpack.Decoder(Head | CommandRecord | AnyEvent)
        self.torn: Torn | None = None
        first = next(self._records(self._paths[0]), None)
        if first is None:
            raise JournalError(f"{self._paths[0]} has no complete head record: the run ended as it began")
        self.head = self._read_head(self._paths[0], first[1], file=0, first_event=0)

    def __iter__(self) -> Iterator[tuple[AnyEvent, CommandRecord | None]]:
        events = 0
        self.torn = None
        for number, path in enumerate(self._paths):
            if path.name != f"{number:06d}.journal":
                raise JournalError(f"{path.parent} has a gap: expected {number:06d}.journal, found {path.name}")
            event: AnyEvent | None = None
            records = self._records(path)
            if (first := next(records, None)) is None:
                continue  # only a last file that was torn inside its head: _records has said so
            self._read_head(path, first[1], number, events)
            for offset, body in records:
                match self._decode(path, offset, body):
                    case CommandRecord() as record if event is not None:
                        yield event, record
                        event = None
                    case Event() as fresh if event is None:
                        event = fresh
                        events += 1
                    case other:
                        after = "an event without its commands" if event is not None else "a complete pair"
                        raise JournalError(f"{path} offset {offset}: {type(other).__name__} after {after}")
            if event is not None:
                if path != self._paths[-1]:
                    raise JournalError(f"{path} ends with an event without its commands, but a file follows it")
                yield event, None

    def _records(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """(offset, body) of each sound record; stops at a torn tail of the last file."""
        data = path.read_bytes()
        last = path == self._paths[-1]
        offset = 0
        while offset < len(data) or not data:
            problem, body = _unframe(data, offset)
            if body is None:
                if not (last and problem.startswith("torn")):
                    raise JournalError(f"{path} is damaged at offset {offset} of {len(data)}: {problem}")
                self.torn = Torn(path, offset, len(data) - offset)
                return
            yield offset, body
            offset += _FRAME.size + len(body)

    def _read_head(self, path: Path, body: bytes, file: int, first_event: int) -> Head:
        raw = msgspec.msgpack.decode(body)
        if not isinstance(raw, list) or len(raw) < 2 or raw[0] != "head":
            raise JournalError(f"{path} does not begin with a head record; it is no journal of Libra's")
        if raw[1] != FORMAT:
            raise JournalError(
                f"{path} has journal format {raw[1]}, this code reads format {FORMAT}; use the code that wrote it"
                f"{f' ({raw[5]})' if len(raw) > 5 else ''}"
            )
        head = self._decode(path, 0, body)
        assert isinstance(head, Head)
        if (head.file, head.first_event) != (file, first_event):
            raise JournalError(
                f"{path} says that it is file {head.file} from event {head.first_event}; "
                f"expected file {file} from event {first_event}: a file is missing, or not of this run"
            )
        if file and head.incarnation != self.head.incarnation:
            raise JournalError(f"{path} is of incarnation {head.incarnation}, the journal of {self.head.incarnation}")
        return head

    def _decode(self, path: Path, offset: int, body: bytes) -> Head | CommandRecord | AnyEvent:
        try:
            return self._decoder.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError) as e:
            raise JournalError(f"{path} offset {offset}: a record that this code does not know: {e}") from e


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def _frame(body: bytes) -> bytes:
    crc = crc32(body)
    return _FRAME.pack(len(body), crc, len(body) ^ crc ^ _MARK) + body


def _unframe(data: bytes, offset: int) -> tuple[str, bytes | None]:
    """The body at `offset`, or what is wrong; "torn ..." where it looks like the end of a write that did not finish."""
    start = offset + _FRAME.size
    if start > len(data):
        return "torn inside a record's frame", None
    length, crc, mark = _FRAME.unpack_from(data, offset)
    if mark != length ^ crc ^ _MARK:
        # A file system that lost power can leave zeros where the size was already noted.
        return ("broken frame" if data[offset:].strip(b"\0") else "torn: zeros to the end"), None
    body = data[start : start + length]
    if len(body) < length:
        return "torn inside a record's body", None
    if crc32(body) != crc:
        return ("torn: bad checksum of the last record" if start + length == len(data) else "bad checksum"), None
    return "", body
