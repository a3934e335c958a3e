"""A rank's supervisor: runs one role process at a time, and never touches its device.

    controller <── supervisor link ──> supervisor <── pipe ──> role process ──> its own role link to the controller
                 spawn, kill, beats                 spec, beats

It imports neither torch nor anything else heavy, so it starts at once, survives whatever happens to its role, and its death is
left to torchrun. A role ends at EOF of the pipe and by the parent-death signal; on top of that a role that does not end in its
grace is killed. When the controller closes the link or torchrun says SIGTERM the supervisor ends its role and itself.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.abc

from libra.errors import LibraError, WireError
from libra.telemetry.logs import tail
from libra.wire import messages as m
from libra.wire.child import die_with_parent
from libra.wire.frames import AsyncReader, Codec, pack
from libra.wire.rendezvous import Meeting, find, meeting_file

LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 16_384
LINK_S = 30.0
"""Longest wait for the controller to accept the link and answer the hello."""


class Child:
    """One role process and the pipe that holds it."""

    def __init__(self, order: m.SpawnRole, process: anyio.abc.Process, pipe: anyio.abc.SocketStream) -> None:
        self.start = order.start
        self.log = Path(order.log)
        self.process = process
        self.pipe = pipe
        self.beats = 0
        self.doing = "starting"

    @classmethod
    async def spawn(cls, order: m.SpawnRole) -> "Child":
        ours, theirs = socket.socketpair()
        log = Path(order.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("ab") as out:  # noqa: ASYNC230 (a local file, opened once a role)
            process = await anyio.open_process(
                [sys.executable, "-m", "libra.rank.role", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(order.threads)},
            )
        pipe = await anyio.abc.SocketStream.from_socket(ours)
        await pipe.send(pack(order.spec))
        return cls(order, process, pipe)

    def kill(self) -> None:
        """The role and whatever it may have left in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self, grace_s: float) -> None:
        """Ask by closing the writing half of the pipe; kill after the grace."""
        with contextlib.suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self.pipe.send_eof()
        with anyio.move_on_after(grace_s):
            await self.process.wait()
        self.kill()


class Supervisor:
    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.meeting = meeting
        self.child: Child | None = None
        self.exit_code = 0

    async def run(self) -> int:
        """Serve until the controller says Shutdown or closes the link (exit code 0), or SIGTERM comes (143)."""
        stream: anyio.abc.SocketStream | None = None
        try:
            with anyio.fail_after(LINK_S):
                stream = await anyio.connect_unix(self.meeting.address)
                reader: AsyncReader[m.ToSupervisor] = AsyncReader(stream, Codec(m.ToSupervisor))
                await self._send(stream, self._hello())
                welcome = await reader.receive()
            if not isinstance(welcome, m.Welcome):
                raise LibraError(f"the controller refused rank {self.rank}: {getattr(welcome, 'reason', welcome)}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._signals, tasks.cancel_scope)
                tasks.start_soon(self._heartbeat, stream, welcome.heartbeat_s)
                await self._serve(stream, reader, tasks)
                tasks.cancel_scope.cancel()
        finally:
            if self.child is not None:
                self.child.kill()
            if stream is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
        return self.exit_code

    def _hello(self) -> m.SupervisorHello:
        return m.SupervisorHello(
            m.PROTOCOL,
            self.meeting.token,
            self.meeting.incarnation,
            self.rank,
            socket.gethostname(),
            os.getpid(),
            "cpu",
        )

    async def _serve(
        self, stream: anyio.abc.SocketStream, reader: AsyncReader[m.ToSupervisor], tasks: anyio.abc.TaskGroup
    ) -> None:
        while True:
            try:
                message = await reader.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, WireError) as e:
                # Exit code 0: if the controller died torchrun sees that itself; if it only gave this rank up, the run goes on.
                print(f"libra rank {self.rank}: the controller closed the link ({type(e).__name__})", file=sys.stderr)
                return
            match message:
                case m.SpawnRole():
                    self.child = await Child.spawn(message)
                    tasks.start_soon(self._watch, stream, self.child)
                    tasks.start_soon(self._beats, self.child)
                case m.KillRole():
                    if self.child is not None and self.child.start == message.start:
                        tasks.start_soon(self.child.end, message.grace_s)
                case m.Shutdown():
                    if self.child is not None:
                        await self.child.end(message.grace_s)
                    return
                case _:
                    raise WireError(f"unexpected {type(message).__name__} from the controller")

    async def _watch(self, stream: anyio.abc.SocketStream, child: Child) -> None:
        """Tell the controller how the role ended. Its tail goes along: the last thing it said is usually the reason."""
        code = await child.process.wait()
        child.kill()
        if self.child is child:
            self.child = None
        await anyio.aclose_forcefully(child.pipe)
        await self._send(stream, m.ChildExited(child.start, code, tail(child.log, LOG_TAIL_LINES, LOG_TAIL_BYTES)))

    async def _beats(self, child: Child) -> None:
        """Take the role's progress from the pipe until it closes; `_watch` reports the end."""
        reader: AsyncReader[m.Beat] = AsyncReader(child.pipe, Codec(m.Beat))
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                beat = await reader.receive()
                child.beats, child.doing = beat.beats, beat.doing

    async def _heartbeat(self, stream: anyio.abc.SocketStream, every_s: float) -> None:
        n = 0
        while True:
            child = self.child
            beat = m.Heartbeat(n, child.start, child.beats, child.doing) if child else m.Heartbeat(n, -1, -1, "")
            await self._send(stream, beat)
            n += 1
            await anyio.sleep(every_s)

    async def _send(self, stream: anyio.abc.SocketStream, message: m.Message) -> None:
        with contextlib.suppress(
            anyio.BrokenResourceError, anyio.ClosedResourceError
        ):  # the reader sees it too and says so
            await stream.send(pack(message))

    async def _signals(self, scope: anyio.CancelScope) -> None:
        """SIGTERM ends this rank at once."""
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for number in signals:
                self.exit_code = 128 + number
                scope.cancel()


def main(rank: int, deadline_s: float) -> int:
    """Run the supervisor of `rank`; returns its exit code."""
    die_with_parent()
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # torchrun passes them to all ranks; what they mean is the controller's business
        signal.signal(number, signal.SIG_IGN)
    try:
        return anyio.run(Supervisor(rank, find(meeting_file(), deadline_s)).run)
    except (LibraError, TimeoutError, OSError) as e:
        print(f"libra rank {rank}: {e or type(e).__name__}", file=sys.stderr)
        return 1
