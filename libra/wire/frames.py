"""Frames: four bytes of length (big-endian), then one msgpack value of an agreed vocabulary.

A reader checks the length before it reads the body, so no peer can make it allocate more than `limit` bytes, and decodes
only into the Structs it was made for. Used by the controller and the supervisors (anyio) and by roles (blocking sockets).
"""

import socket
import struct
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from libra.errors import WireError

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Largest frame accepted from an authenticated peer."""
HELLO_FRAME_BYTES = 64 * 1024
"""Largest frame accepted before the hello has been checked."""
_HEAD = struct.Struct(">I")
HEAD_BYTES = _HEAD.size
_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def pack(message: msgspec.Struct) -> bytes:
    """One message as a frame."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"{type(message).__name__} has {len(body)} bytes, more than a frame's {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body)) + body


def frame_length(head: bytes | bytearray, limit: int = MAX_FRAME_BYTES) -> int:
    """The bytes of body that follow `head`; WireError beyond `limit`. For links that do their own reading."""
    (n,) = _HEAD.unpack(head)
    if n > limit:
        raise WireError(f"peer announces a frame of {n} bytes, the limit is {limit}; the link is closed")
    return n


class Codec(Generic[M]):
    """Decodes bodies into the Structs of one vocabulary (a union type)."""

    def __init__(self, vocabulary: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(vocabulary)  # type: ignore[arg-type]

    def decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError) as e:
            raise WireError(f"a frame of {len(body)} bytes is not of this link's vocabulary: {e}") from None


class AsyncReader(Generic[M]):
    """Messages from an anyio stream. `receive` raises WireError on a bad frame, `anyio.EndOfStream` at the end."""

    def __init__(self, stream: ByteStream, codec: Codec[M]) -> None:
        self._stream = BufferedByteReceiveStream(stream)
        self._codec = codec

    async def receive(self, limit: int = MAX_FRAME_BYTES) -> M:
        try:
            head = await self._stream.receive_exactly(_HEAD.size)
            body = await self._stream.receive_exactly(frame_length(head, limit))
        except anyio.IncompleteRead:
            raise anyio.EndOfStream from None
        return self._codec.decode(body)


class BlockingReader(Generic[M]):
    """Messages from a blocking socket. `receive` raises EOFError when the peer has closed."""

    def __init__(self, sock: socket.socket, codec: Codec[M]) -> None:
        self._file = sock.makefile("rb", buffering=1 << 16)
        self._codec = codec

    def receive(self, limit: int = MAX_FRAME_BYTES) -> M:
        head = self._exactly(_HEAD.size)
        return self._codec.decode(self._exactly(frame_length(head, limit)))

    def _exactly(self, n: int) -> bytes:
        data = self._file.read(n)
        if data is None or len(data) < n:
            raise EOFError("the peer closed the link")
        return data
