"""safetensors files that several ranks write, and read, together: each its own ranges, at offsets that all of them know.

    n u64 | header (JSON, padded) | data of the first tensor | data of the second | ...

Names, shapes and type fix every offset, so ranks need no word from each other: each writes its ranges in place, one of them
the header, and any number of ranks cut in any other way reads what it needs. Whoever knows safetensors can read the whole.
Called by `libra.train.saving`; everything here is bytes, nothing is torch.
"""

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from libra.errors import CheckpointError
from libra.wire.messages import FilePart

TYPES = {"float32": ("F32", 4), "float64": ("F64", 8), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}
"""The types of parameters: safetensors' name, bytes of an element."""
_NAMES = {theirs: ours for ours, (theirs, _) in TYPES.items()}
_LENGTH = struct.Struct("<Q")
HEADER_BYTES = 100 << 20
"""A longer header is none."""


class Piece(NamedTuple):
    """Elements of the flattened tensor `name` from `start` on, as their bytes."""

    name: str
    start: int
    data: memoryview


class TensorFile:
    """The layout of one file: tensors of one type, in order. `notes` are texts beside them."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: str, notes: Mapping[str, str] | None = None) -> None:
        name, self.itemsize = TYPES[dtype]
        self.dtype = dtype
        self.shapes = {n: tuple(s) for n, s in shapes.items()}
        self.notes = dict(notes or {})
        header: dict[str, object] = {"__metadata__": self.notes} if self.notes else {}
        self._starts: dict[str, int] = {}
        at = 0
        for tensor, shape in self.shapes.items():
            size = math.prod(shape) * self.itemsize
            header[tensor] = {"dtype": name, "shape": list(shape), "data_offsets": [at, at + size]}
            self._starts[tensor] = at
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = _LENGTH.pack(len(text)) + text
        self.n_bytes = len(self._header) + at
        """Of the whole file."""

    @property
    def names(self) -> list[str]:
        return list(self.shapes)

    def at(self, name: str, element: int) -> int:
        """Offset of an element in the file."""
        return len(self._header) + self._starts[name] + element * self.itemsize

    @staticmethod
    def read(path: Path) -> "TensorFile":
        """The layout of a file that `write` has written. CheckpointError where it is none, or not whole."""
        try:
            with path.open("rb") as f:
                (n,) = _LENGTH.unpack(f.read(_LENGTH.size))
                header: dict[str, Any] = json.loads(f.read(min(n, HEADER_BYTES)))
                size = os.fstat(f.fileno()).st_size
            notes = header.pop("__metadata__", {})
            types = {entry["dtype"] for entry in header.values()}
            if len(types) != 1:
                raise ValueError(f"tensors of the types {sorted(types)}, expected one")
            file = TensorFile({n: e["shape"] for n, e in header.items()}, _NAMES[types.pop()], notes)
        except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as e:
            raise CheckpointError(f"{path} cannot be read as safetensors: {type(e).__name__}: {e}") from e
        if size != file.n_bytes:
            raise CheckpointError(f"{path} has {size} bytes, expected {file.n_bytes}: it is not whole")
        return file

    def write(self, path: Path, root: Path, pieces: Iterable[Piece], with_header: bool) -> FilePart:
        """Write `pieces` in place, and the header where told so, through to the disk. OSError where it refuses.

        `root` is what the part's name is relative to.
        """
        spans: list[tuple[int, int]] = []
        crc = 0
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            placed = [(self.at(p.name, p.start), p.data) for p in pieces]
            if with_header:
                os.posix_fallocate(fd, 0, self.n_bytes)
                placed.insert(0, (0, memoryview(self._header)))
            for at, data in placed:
                _write_all(fd, at, data)
                crc = crc32(data, crc)
                first = spans.pop()[0] if spans and spans[-1][1] == at else at
                spans.append((first, at + len(data)))
            os.fsync(fd)
        finally:
            os.close(fd)
        return FilePart(path.relative_to(root).as_posix(), spans, crc)

    def pull(self, path: Path, ranges: Iterable[tuple[str, int, int]]) -> list[bytearray]:
        """The bytes of elements [start, stop) of each (name, start, stop)."""
        found: list[bytearray] = []
        with path.open("rb", buffering=0) as f:
            for name, start, stop in ranges:
                f.seek(self.at(name, start))
                found.append(data := bytearray((stop - start) * self.itemsize))
                _read_all(f.fileno(), memoryview(data), path)
        return found


def checked(root: Path, part: FilePart) -> bool:
    """Whether the bytes of the part are those that were written."""
    crc = 0
    with (root / part.file).open("rb") as f:
        for first, last in part.spans:
            f.seek(first)
            while first < last:
                chunk = f.read(min(last - first, 1 << 22))
                if not chunk:
                    return False
                crc = crc32(chunk, crc)
                first += len(chunk)
    return crc == part.crc32


def _write_all(fd: int, at: int, data: memoryview) -> None:
    while data:
        n = os.pwrite(fd, data, at)
        at, data = at + n, data[n:]


def _read_all(fd: int, into: memoryview, path: Path) -> None:
    while into:
        n = os.readv(fd, [into])
        if not n:
            raise CheckpointError(f"{path} ends early: it is not whole")
        into = into[n:]
