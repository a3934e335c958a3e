"""One source's link as a puller sees it, and how several of them talk side by side in one thread.

A conversation is a generator over a non-blocking socket: it yields (socket, poll mask) where it would block and returns
its result. `together` advances all of them, watching one deadline and one wake-up socket, so that a pull needs no
threads, cannot outlive its deadline, and can be cancelled. `Puller` is the only caller.
"""

import errno
import math
import select
import socket
import time
from collections.abc import Generator
from typing import TypeVar

import msgspec

from libra.errors import Superseded, WeightsError, WireError
from libra.weights.layout import PROTOCOL, Chunk, Done, Gone, Hello, Offer, Pinned, Refused, Reply
from libra.wire.frames import HEAD_BYTES, Codec, frame_length, pack

T = TypeVar("T")
Talk = Generator[tuple[socket.socket, int], None, T]
_reply = Codec[Reply](Reply)


class Newer(Superseded):
    """The version is gone at this source; `newest` can be had."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        super().__init__(f"overwritten while it was read; the newest is {newest}")


class Link:
    """A connection to one publisher, kept between pulls; made when first used, and made anew if it has gone stale."""

    def __init__(self, address: str, token: str, incarnation: str) -> None:
        self.address = address
        self.idle = True
        """No reply is on its way: the link can be kept."""
        self.progress = ""
        """What the source has done so far, for the message of an expired deadline."""
        self._hello = Hello(PROTOCOL, token, incarnation)
        self._sock: socket.socket | None = None
        self._heard = False

    def ask(self, request: msgspec.Struct) -> Talk[Offer | Chunk | Done | Pinned]:
        """Sends `request` and returns the first reply. A kept link that the source closed meanwhile is made again."""
        kept = self._sock is not None
        self._heard = False
        self.idle = False
        try:
            return (yield from self._ask(request))
        except (EOFError, OSError):
            if not kept or self._heard:
                raise
        self.drop()
        self.idle = False
        return (yield from self._ask(request))

    def _ask(self, request: msgspec.Struct) -> Talk[Offer | Chunk | Done | Pinned]:
        frames = pack(request)
        if self._sock is None:
            self.progress = "not connected"
            yield from self._connect()
            frames = pack(self._hello) + frames
        self.progress = "connected, no answer"
        yield from self._send(frames)
        return (yield from self.receive())

    def _connect(self) -> Talk[None]:
        host, _, port = self.address.rpartition(":")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            raise WeightsError(f'"{self.address}" is not an address; expected "host:port", numeric') from None
        family, kind, protocol, _, place = found[0]
        self._sock = sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(place)
        if code == errno.EINPROGRESS:
            yield sock, select.POLLOUT
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, f"cannot connect: {errno.errorcode.get(code, code)}")

    def _send(self, data: bytes) -> Talk[None]:
        sock, view = self._open(), memoryview(data)
        while view:
            try:
                view = view[sock.send(view) :]
            except BlockingIOError:
                yield sock, select.POLLOUT

    def receive(self) -> Talk[Offer | Chunk | Done | Pinned]:
        """The next message. Raises `Newer` for `Gone`, WeightsError for `Refused`."""
        head = bytearray(HEAD_BYTES)
        yield from self.read_into(memoryview(head))
        body = bytearray(frame_length(head))
        yield from self.read_into(memoryview(body))
        match _reply.decode(bytes(body)):
            case Gone(newest=newest):
                self.idle = True
                raise Newer(newest)
            case Refused(reason=reason):
                raise WeightsError(f"refused: {reason}")
            case Done() | Pinned() as last:
                self.idle = True
                return last
            case Offer() | Chunk() as first:
                return first

    def read_into(self, view: memoryview) -> Talk[None]:
        """Fills `view`."""
        sock = self._open()
        while view:
            try:
                n = sock.recv_into(view)
            except BlockingIOError:
                yield sock, select.POLLIN
                continue
            if n == 0:
                raise EOFError("the source closed the link")
            self._heard = True
            view = view[n:]

    def breathe(self) -> Talk[None]:
        """Lets the other conversations, the deadline and a cancellation have their turn."""
        yield self._open(), select.POLLIN

    def _open(self) -> socket.socket:
        if self._sock is None:
            raise EOFError("the link is closed")
        return self._sock

    def drop(self) -> None:
        """Closes the connection; the next `ask` makes a new one."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self.idle = True


def together(talks: dict[Link, Talk[T]], deadline: float, wake: socket.socket) -> list[T]:
    """Runs one conversation a link until all have ended; their results, in order.

    Raises `Newer` as soon as one source says so, else WeightsError that names the source at fault, or at `deadline`
    (monotonic seconds) those that are not done, or when `wake` becomes readable. Links in mid-reply are dropped then.
    """
    results: dict[Link, T] = {}
    waiting: dict[int, Link] = {}
    interest: dict[Link, tuple[socket.socket, int]] = {}
    ready = list(talks)
    try:
        while True:
            for link in ready:
                try:
                    interest[link] = next(talks[link])
                except StopIteration as end:
                    interest.pop(link, None)
                    results[link] = end.value
                except Newer:
                    raise
                except (EOFError, OSError, WireError, WeightsError) as e:
                    raise WeightsError(f"source {link.address}: {e} ({link.progress})") from e
            if not interest:
                return [results[link] for link in talks]
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                late = "; ".join(f"{link.address}: {link.progress}" for link in interest)
                raise WeightsError(f"deadline passed; not done: {late}")
            poller = select.poll()
            poller.register(wake, select.POLLIN)
            waiting.clear()
            for link, (sock, mask) in interest.items():
                poller.register(sock, mask)
                waiting[sock.fileno()] = link
            happened = [fd for fd, _ in poller.poll(math.ceil(remaining_s * 1000))]
            if wake.fileno() in happened:
                raise WeightsError("the pull was cancelled: the puller is closed")
            ready = [waiting[fd] for fd in happened]
    finally:
        for link, talk in talks.items():
            talk.close()
            if not link.idle:
                link.drop()
