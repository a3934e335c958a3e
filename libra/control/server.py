"""The controller's side of view.sock and control.sock: each link from its hello to its end.

    accept ─> hello (REQUEST_FRAME_BYTES at most, HELLO_S) ─> protocol compared ─> viewer: reader + writer │ orders, one by one
                                                                     └─> Refused, closed

Bad manners (a frame that is too long, torn, or of another vocabulary; silence instead of a hello; not reading for WRITE_S)
end the link that shows them and nothing else. So does a fault of ours while a snapshot is made: it is logged, the run goes on.
A peer's requests are taken at most every PACE_S, so that nobody can keep the loop busy with them: who sends faster is slowed
down by his own socket.
"""

import traceback
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
import anyio.abc
import msgspec

from libra.control.desk import OrderDesk
from libra.control.hub import Hub, Viewer
from libra.control.messages import (
    PROTOCOL,
    REQUEST_FRAME_BYTES,
    Draft,
    DraftAnswer,
    FromOrderer,
    FromViewer,
    Hello,
    OrderRequest,
    Refused,
    StateRequest,
    Watch,
    Welcome,
)
from libra.control.peer import peer_of
from libra.control.state import LiveState
from libra.core.orders import Order
from libra.errors import WireError
from libra.wire.frames import AsyncReader, Codec, pack

HELLO_S = 5.0
"""A connection that has not said hello by then is closed."""
WRITE_S = 60.0
"""A viewer that takes nothing for so long is closed; it may come back."""
PACE_S = 0.02
"""Between two requests of one peer."""
MOST_LINKS = 64
"""To one socket at a time."""
COALESCE_BYTES = 1 << 18
"""News are sent together up to this size."""

GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""A peer went away: nothing depends on it. (A TimeoutError is an OSError, but says that it is there and takes nothing.)"""
M = TypeVar("M")


class Prober(Protocol):
    """Looks that a viewer asks for one by one."""

    def draft(self, id: str, order: Order) -> DraftAnswer: ...
    def state(self) -> LiveState: ...


class ControlServer:
    """`log(line)` is told of refused links and of faults of ours."""

    def __init__(
        self, run: str, incarnation: str, hub: Hub, desk: OrderDesk, prober: Prober, log: Callable[[str], None]
    ) -> None:
        self._run = run
        self._incarnation = incarnation
        self._hub = hub
        self._desk = desk
        self._prober = prober
        self._log = log
        self._view_codec: Codec[FromViewer] = Codec(FromViewer)
        self._order_codec: Codec[FromOrderer] = Codec(FromOrderer)
        self.links = {"view": 0, "control": 0}
        self.refused = 0
        """Links that were closed for bad manners."""

    async def accept_viewer(self, stream: anyio.abc.SocketStream) -> None:
        await self._link("view", stream, AsyncReader(stream, self._view_codec), self._view)

    async def accept_orderer(self, stream: anyio.abc.SocketStream) -> None:
        await self._link("control", stream, AsyncReader(stream, self._order_codec), self._order)

    async def _link(
        self,
        name: str,
        stream: anyio.abc.SocketStream,
        reader: AsyncReader[M],
        serve: Callable[[anyio.abc.SocketStream, AsyncReader[M]], Awaitable[None]],
    ) -> None:
        self.links[name] += 1
        try:
            if self.links[name] > MOST_LINKS:
                await self._refuse(stream, f"{name}.sock has {MOST_LINKS} links already; close one")
            elif await self._greet(stream, reader):
                await serve(stream, reader)
        except (WireError, TimeoutError, ExceptionGroup) as x:
            self._ended(name, x)
        except GONE:
            pass  # the peer went away: nothing depends on it
        except Exception:
            self._log(f"a link to {name}.sock is closed by a fault of ours:\n{traceback.format_exc()}")
        finally:
            self.links[name] -= 1
            await anyio.aclose_forcefully(stream)

    def _ended(self, name: str, x: Exception) -> None:
        """Reader and writer of a link may both notice the same end."""
        causes = [cause for cause in _causes(x) if isinstance(cause, TimeoutError) or not isinstance(cause, GONE)]
        if not causes:
            return
        self.refused += 1
        fault = next((cause for cause in causes if not isinstance(cause, WireError | TimeoutError)), None)
        if fault is None:
            self._log(f"a link to {name}.sock is closed: {str(causes[0]) or 'the peer took too long'}")
        else:
            told = "".join(traceback.format_exception(fault))
            self._log(f"a link to {name}.sock is closed by a fault of ours:\n{told}")

    async def _greet(self, stream: anyio.abc.SocketStream, reader: AsyncReader[M]) -> bool:
        with anyio.fail_after(HELLO_S):
            hello = await reader.receive(REQUEST_FRAME_BYTES)
        if not isinstance(hello, Hello):
            await self._refuse(stream, "the first message must be a hello")
            return False
        if hello.protocol != PROTOCOL:
            reason = f"{hello.program or 'the peer'} speaks protocol {hello.protocol}, this run speaks {PROTOCOL}"
            await self._refuse(stream, f"{reason}: use the version of Libra that the run was started with")
            return False
        await self._send(stream, Welcome(PROTOCOL, self._run, self._incarnation, self._desk.epoch()))
        return True

    async def _refuse(self, stream: anyio.abc.SocketStream, reason: str) -> None:
        self.refused += 1
        await self._send(stream, Refused(reason))

    async def _send(self, stream: anyio.abc.SocketStream, message: msgspec.Struct) -> None:
        with anyio.fail_after(WRITE_S):
            await stream.send(pack(message))

    # --- view.sock

    async def _view(self, stream: anyio.abc.SocketStream, reader: AsyncReader[FromViewer]) -> None:
        viewer = Viewer()
        self._hub.join(viewer)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, stream, viewer)
                while True:
                    match await reader.receive(REQUEST_FRAME_BYTES):
                        case Watch() as request:
                            self._hub.watch(viewer, request)
                        case Draft(id=id, order=order):
                            await viewer.reply(pack(self._prober.draft(id, order)))
                        case StateRequest():
                            await viewer.reply(pack(self._prober.state()))
                        case Hello():
                            raise WireError("unexpected second hello on view.sock")
                    await anyio.sleep(PACE_S)
        finally:
            self._hub.leave(viewer)

    async def _write(self, stream: anyio.abc.SocketStream, viewer: Viewer) -> None:
        while True:
            with anyio.move_on_after(max(0.0, viewer.due - self._hub.clock())):
                await viewer.arrived.wait()
            frames = viewer.take()
            if viewer.due <= self._hub.clock():
                frames += self._hub.frames(viewer.watch)
                viewer.due = self._hub.clock() + viewer.interval_s
                viewer.sent_snapshots += 1
            for batch in _batches(frames):
                with anyio.fail_after(WRITE_S):
                    await stream.send(batch)

    # --- control.sock

    async def _order(self, stream: anyio.abc.SocketStream, reader: AsyncReader[FromOrderer]) -> None:
        author = peer_of(stream.extra(anyio.abc.SocketAttribute.raw_socket))
        while True:
            request = await reader.receive(REQUEST_FRAME_BYTES)
            if not isinstance(request, OrderRequest):
                raise WireError(f"unexpected {type(request).__name__} on control.sock, expected an order")
            await self._send(stream, await self._desk.submit(request, author))
            await anyio.sleep(PACE_S)


def _causes(x: Exception) -> list[Exception]:
    return [cause for part in x.exceptions for cause in _causes(part)] if isinstance(x, ExceptionGroup) else [x]


def _batches(frames: list[bytes]) -> list[bytes]:
    """The frames joined, in order, into few pieces."""
    batches: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        if parts and size + len(frame) > COALESCE_BYTES:
            batches.append(b"".join(parts))
            parts, size = [], 0
        parts.append(frame)
        size += len(frame)
    return [*batches, b"".join(parts)] if parts else batches
