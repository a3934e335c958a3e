"""The links that reach the controller: who may connect, what they say, what is sent to them.

    connect ─> hello (64 KiB at most, HELLO_S) ─> token and incarnation compared ─> rank's supervisor link, or its role's link
                                                            └─> Refused, closed

Each link has a bounded queue of frames and one writer task. Nobody in the controller waits for a peer: a peer whose queue is
full has stopped reading, and its link is closed; what that means is decided where the end of the link is noticed.
"""

import hmac
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from libra.config.schema import Config
from libra.errors import WireError
from libra.wire import messages as m
from libra.wire.frames import HELLO_FRAME_BYTES, AsyncReader, Codec, pack
from libra.wire.rendezvous import Meeting

HELLO_S = 10.0
"""A connection that has not said hello by then is closed."""
LAST_WORD_S = 1.0
"""A peer that is done with gets what is queued for it within this time."""
QUEUE_FRAMES = 8192
"""Frames that may wait for one peer; admission keeps far below."""
COALESCE_BYTES = 1 << 18
"""Frames are sent together up to this size: one system call for a burst of turns."""


class Link:
    """One authenticated peer. `send` never waits."""

    def __init__(self, stream: anyio.abc.ByteStream, hello: m.SupervisorHello | m.RoleHello) -> None:
        self.hello = hello
        self._stream = stream
        self._put, self._get = anyio.create_memory_object_stream[bytes](QUEUE_FRAMES)
        self._writing = anyio.CancelScope()
        self.closed = False

    def send(self, message: m.Message) -> None:
        """Queue a message. A peer that does not read is cut off."""
        if self.closed:
            return
        try:
            self._put.send_nowait(pack(message))
        except anyio.WouldBlock:
            self.close()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.closed = True

    def close(self) -> None:
        """Cut the peer off, also one that does not read: nothing more is sent, and the reader sees the end."""
        self.finish()
        self._writing.cancel()

    def finish(self) -> None:
        """Nothing will follow what is queued."""
        self.closed = True
        self._put.close()

    async def write(self) -> None:
        """The writer task: ends when the link is closed, finished or broken."""
        try:
            with self._writing:
                async for frame in self._get:
                    parts, size = [frame], len(frame)
                    while size < COALESCE_BYTES:
                        try:
                            parts.append(self._get.receive_nowait())
                        except (anyio.WouldBlock, anyio.EndOfStream):
                            break
                        size += len(parts[-1])
                    await self._stream.send(b"".join(parts))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.closed = True
            self._get.close()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)


def welcome(config: Config) -> m.Welcome:
    """What every supervisor of this run is told first."""
    engines = {bucket.engine for bucket in config.bucket}
    preload: m.Preload = "vllm" if "vllm" in engines else "torch" if "torch" in engines else "nothing"
    return m.Welcome(config.deadline.heartbeat_s, config.deadline.lease_s, preload, config.trainer.threads)


class Server:
    """Accepts links. `serve(link, reader)` is run for each until the peer is gone."""

    def __init__(
        self,
        meeting: Meeting,
        serve: Callable[[Link, AsyncReader[m.ToController]], Awaitable[None]],
        welcome: m.Welcome,
    ) -> None:
        self._meeting = meeting
        self._serve = serve
        self._welcome = welcome
        self._codec: Codec[m.ToController] = Codec(m.ToController)

    async def accept(self, stream: anyio.abc.SocketStream) -> None:
        """Handle one connection from hello to end. A peer's bad manners end this connection only."""
        reader = AsyncReader(stream, self._codec)
        try:
            with anyio.fail_after(HELLO_S):
                hello = await reader.receive(HELLO_FRAME_BYTES)
            refusal = self._refusal(hello)
            if refusal or not isinstance(hello, m.SupervisorHello | m.RoleHello):
                await stream.send(pack(m.Refused(refusal)))
                return
            link = Link(stream, hello)
            if isinstance(hello, m.SupervisorHello):
                link.send(self._welcome)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.write)
                await self._serve(link, reader)
                link.finish()
                tasks.cancel_scope.deadline = anyio.current_time() + LAST_WORD_S
        except (WireError, TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # never a peer of ours, or one that went away: its absence is noticed by its deadline
        finally:
            await anyio.aclose_forcefully(stream)

    def _refusal(self, hello: object) -> str:
        if not isinstance(hello, m.SupervisorHello | m.RoleHello):
            return "the first message must be a hello"
        if hello.protocol != m.PROTOCOL:
            return f"got protocol {hello.protocol}, expected {m.PROTOCOL}: all ranks must run the same version of Libra"
        known = hmac.compare_digest(hello.token.encode(), self._meeting.token.encode())
        if not known or not hmac.compare_digest(hello.incarnation.encode(), self._meeting.incarnation.encode()):
            return "token or incarnation do not match this run"
        if isinstance(hello, m.SupervisorHello) and hello.roles:
            held = ", ".join(map(str, hello.roles))
            return f"rank {hello.rank} still holds roles of starts {held}, expected none: it must end them before it is used"
        return ""
