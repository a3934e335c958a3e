"""core.msgpack: the state of the core and of the tally at the step boundary.

One msgpack array; its format comes first for ever, and another one is refused by name.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from libra.core import saved
from libra.core.saved import SavedCore
from libra.errors import CheckpointError


class CoreFile(Struct, frozen=True, tag="libra-core", array_like=True):
    format: int
    code: str
    core: SavedCore
    tally: msgspec.Raw
    """The telemetry's own affair: a map."""


def encode(code: str, core: SavedCore, tally: Struct) -> bytes:
    return msgspec.msgpack.encode(CoreFile(saved.FORMAT, code, core, msgspec.Raw(msgspec.msgpack.encode(tally))))


def decode(path: Path) -> CoreFile:
    """Raises CheckpointError naming the file, and its format where that is not ours."""
    try:
        data = path.read_bytes()
        raw = msgspec.msgpack.decode(data)
    except (OSError, msgspec.DecodeError) as e:
        raise CheckpointError(f"{path} cannot be read: {e}") from e
    if not isinstance(raw, list) or len(raw) < 3 or raw[0] != "libra-core":
        raise CheckpointError(f"{path} is no saved core")
    if raw[1] != saved.FORMAT:
        raise CheckpointError(
            f"{path} has core format {raw[1]}, this code reads format {saved.FORMAT}; use the code that wrote it ({raw[2]})"
        )
    try:
        return msgspec.msgpack.decode(data, type=CoreFile)
    except (msgspec.ValidationError, msgspec.DecodeError) as e:
        raise CheckpointError(f"{path} does not fit this code: {e}") from e
