"""Serves this core rank's shards to whoever pulls them, outside the trainer's collective thread.

    trainer's thread --publish--> VersionedBuffers <--copy a chunk, look at the generation-- one thread a reader --> socket

| who waits | for what | at most | what if not |
|---|---|---|---|
| `publish` | nobody | - | - |
| a reader's thread | the hello | HELLO_S | link closed |
| | the next request | IDLE_S | link closed; the puller connects again |
| | the reader to take one chunk | CHUNK_S | link closed |
| | a version or a pin to come | the request's `wait_s`, at most WAIT_S | refused with the reason |

A chunk is copied out of the buffer and checked *before* it is sent: a slow reader keeps no buffer busy and no torn chunk
ever reaches the wire. The number of readers is bounded; one more is refused by name.
"""

import hmac
import logging
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import torch

from libra.errors import WireError
from libra.weights.buffers import Held, VersionedBuffers
from libra.weights.layout import (
    CHUNK_BYTES,
    PROTOCOL,
    Chunk,
    Done,
    Gone,
    Hello,
    Offer,
    Pin,
    Pinned,
    Pull,
    Refused,
    Request,
    Shard,
)  # fmt: skip
from libra.wire.frames import HELLO_FRAME_BYTES, MAX_FRAME_BYTES, BlockingReader, Codec, M, pack

MAX_READERS = 64
HELLO_S = 5.0
IDLE_S = 900.0
CHUNK_S = 10.0
WAIT_S = 60.0
PIN_S = 60.0
"""Longest time for which a reader may pin a version."""
CLOSE_S = 5.0
_hello = Codec[Hello](Hello)
_request = Codec[Request](Request)
log = logging.getLogger(__name__)


class Publisher:
    """Listens on `host`, port chosen by the system. Floating-point shards are published in `dtype` (None: as they are)."""

    def __init__(
        self, host: str = "127.0.0.1", *, token: str, incarnation: str, dtype: torch.dtype | None = None
    ) -> None:
        self._secret = _secret(token, incarnation)
        self._buffers = VersionedBuffers(dtype)
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(place[:2], family=family, backlog=MAX_READERS)
        self._listener.settimeout(1.0)  # closing wakes accept at once on Linux, within this time elsewhere
        name = self._listener.getsockname()
        self.address = f"{name[0]}:{name[1]}"
        """ "host:port", numeric, so that no puller waits for a name server."""
        self._lock = threading.Lock()
        self._readers: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="weights-accept", daemon=True)
        self._acceptor.start()

    @property
    def newest(self) -> int:
        """The newest version that can be pulled here, -1 before the first."""
        return self._buffers.newest

    @property
    def readers(self) -> int:
        """Links that are open now."""
        with self._lock:
            return len(self._readers)

    def publish(self, version: int, shards: Sequence[Shard]) -> None:
        """Copies `shards` into the older buffer, converted, and returns; waits for no reader.

        Versions grow; names, shapes and cuts stay those of the first call. WeightsError otherwise.
        """
        self._buffers.write(version, shards)

    def close(self) -> None:
        """Closes every link and ends all threads."""
        with self._lock:
            self._closed = True
            readers = dict(self._readers)
        self._buffers.close()
        for sock in (self._listener, *readers):
            _shut(sock)
        deadline = time.monotonic() + CLOSE_S
        for thread in (self._acceptor, *readers.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as e:
                if not self._closed:
                    log.warning("weights: accepting a reader failed: %s", e)
                    time.sleep(0.1)  # out of descriptors: do not spin until somebody leaves
                continue
            sock.settimeout(CHUNK_S)
            thread = threading.Thread(target=self._serve, args=(sock,), name="weights-reader", daemon=True)
            with self._lock:
                full = self._closed or len(self._readers) >= MAX_READERS
                if not full:
                    self._readers[sock] = thread
                    thread.start()
            if full:
                _refuse(sock, f"{MAX_READERS} readers are connected already")
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            hello = _Reader(sock, _hello, HELLO_S).receive(HELLO_FRAME_BYTES)
            if hello.protocol != PROTOCOL or not hmac.compare_digest(
                _secret(hello.token, hello.incarnation), self._secret
            ):
                _refuse(sock, f"wrong token, incarnation or protocol (expected protocol {PROTOCOL})")
                return
            requests = _Reader(sock, _request, IDLE_S)
            staging = bytearray(CHUNK_BYTES)
            while True:
                match requests.receive():
                    case Pull() as pull:
                        self._serve_pull(sock, pull, staging)
                    case Pin() as pin:
                        self._serve_pin(sock, pin)
        except (EOFError, OSError) as e:
            log.debug("weights: a reader left: %r", e)
        except WireError as e:
            log.warning("weights: a reader was cut off: %s", e)
        finally:
            self._buffers.unpin(sock)
            with self._lock:
                del self._readers[sock]
            sock.close()

    def _serve_pull(self, sock: socket.socket, pull: Pull, staging: bytearray) -> None:
        held = self._buffers.find(pull.version, time.monotonic() + min(pull.wait_s, WAIT_S))
        if held is None:
            self._send(sock, self._not_held(pull.version))
            return
        plan = self._buffers.plan(pull.ranges)
        known = self._buffers.digest(held, pull.ranges)
        self._send(sock, Offer(held.version, plan.params, plan.segments))
        digest = 0
        for pieces in _chunks(plan.spans):
            n = self._copy(held, pieces, staging)
            if n == 0:
                self._send(sock, Gone(self._buffers.newest))
                return
            chunk = memoryview(staging)[:n]
            if known is None:
                digest = zlib.crc32(chunk, digest)
            sock.settimeout(CHUNK_S)
            sock.sendall(pack(Chunk(n)))
            sock.sendall(chunk)
        if known is None:
            known = self._buffers.remember_digest(held, pull.ranges, digest)
        self._buffers.unpin(sock)
        self._send(sock, Done(known))

    def _copy(self, held: Held, pieces: list[tuple[int, int]], staging: bytearray) -> int:
        """Copies `pieces` into `staging`; the bytes copied, or 0 if the version was overwritten meanwhile."""
        if not self._buffers.intact(held):
            return 0
        n = 0
        to = np.frombuffer(staging, dtype=np.uint8)
        for first, last in pieces:
            np.copyto(to[n : n + last - first], held.buffer.bytes[first:last])
            n += last - first
        return n if self._buffers.intact(held) else 0

    def _serve_pin(self, sock: socket.socket, pin: Pin) -> None:
        now = time.monotonic()
        version = self._buffers.pin(sock, pin.version, now + min(pin.wait_s, WAIT_S), now + min(pin.hold_s, PIN_S))
        self._send(sock, self._not_held(pin.version) if version is None else Pinned(version))

    def _not_held(self, version: int) -> Gone | Refused:
        newest = self._buffers.newest
        if newest > version:
            return Gone(newest)
        return Refused(
            f"version {version} is not served in time: the newest here is {newest}, or another reader's pin lasts"
        )

    def _send(self, sock: socket.socket, message: msgspec.Struct) -> None:
        sock.settimeout(CHUNK_S)
        sock.sendall(pack(message))


class _Reader(BlockingReader[M]):
    """A `BlockingReader` with a deadline for each message as a whole, so that a dribbling peer gains nothing."""

    def __init__(self, sock: socket.socket, codec: Codec[M], message_s: float) -> None:
        self._sock = sock
        self._codec = codec
        self._message_s = message_s

    def receive(self, limit: int = MAX_FRAME_BYTES) -> M:
        self._deadline = time.monotonic() + self._message_s
        return super().receive(limit)

    def _exactly(self, n: int) -> bytes:
        data = bytearray(n)
        view = memoryview(data)
        while view:
            self._sock.settimeout(max(1e-3, self._deadline - time.monotonic()))
            got = self._sock.recv_into(view)
            if got == 0:
                raise EOFError("the reader closed the link")
            view = view[got:]
            if view and time.monotonic() > self._deadline:
                raise TimeoutError(f"no whole message within {self._message_s} s")
        return bytes(data)


def _chunks(spans: tuple[tuple[int, int], ...]) -> Iterator[list[tuple[int, int]]]:
    """Cuts `spans` (byte ranges) into chunks: lists of byte ranges, CHUNK_BYTES at most together, never empty."""
    pieces: list[tuple[int, int]] = []
    room = CHUNK_BYTES
    for first, last in spans:
        while first < last:
            n = min(room, last - first)
            pieces.append((first, first + n))
            first += n
            room -= n
            if room == 0:
                yield pieces
                pieces, room = [], CHUNK_BYTES
    if pieces:
        yield pieces


def _secret(token: str, incarnation: str) -> bytes:
    return f"{len(token)}:{token}{incarnation}".encode()


def _refuse(sock: socket.socket, reason: str) -> None:
    try:
        sock.sendall(pack(Refused(reason)))
        sock.shutdown(socket.SHUT_WR)
    except OSError as e:
        log.debug("weights: a refused reader had left: %s", e)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as e:
        log.debug("weights: closing: %s", e)
