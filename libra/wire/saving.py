"""Messages about checkpoints, between the controller and the core ranks; part of `libra.wire.messages`."""

from msgspec import Struct

from libra.wire.base import Message


class FilePart(Struct, frozen=True, array_like=True):
    """What one rank wrote of a file: byte ranges, and the CRC-32 of their bytes in this order."""

    file: str
    spans: list[tuple[int, int]]
    crc32: int


class Save(Message, frozen=True, tag=True):
    """Write your pieces of weights and optimiser into `directory`, which is there; nobody reads it before all have answered."""

    cmd: int
    directory: str
    min_free_bytes: int


class Load(Message, frozen=True, tag=True):
    """Take weights and optimiser from the checkpoint in `directory`, and serve them as `version`."""

    cmd: int
    directory: str
    version: int


class Saved(Message, frozen=True, tag=True):
    """This rank's part of a checkpoint is on the disk. It stood still for `copy_s` of the `seconds`."""

    cmd: int
    copy_s: float
    seconds: float
    parts: list[FilePart]


class SaveFailed(Message, frozen=True, tag=True):
    cmd: int
    reason: str


class Loaded(Message, frozen=True, tag=True):
    cmd: int
    seconds: float
