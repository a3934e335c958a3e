"""A rank's supervisor: holds its roles, speaks for them, and never touches its device.

    controller <── supervisor link ──> supervisor <── pipes ──> role processes, a spare ──> their own links to the controller
       spawn, kill, beats, beats seen                spec, lease, beats

    find ─> join ─> serve ──(Shutdown)──> end all, exit 0
              ^       └──(the link breaks, or beats go unanswered for a lease)──> kill the roles ─┬─ controller gone: exit 0
              └───────────────────────────────── a pause, longer each time ───────────────────────┘

It imports neither torch nor anything else heavy, so it starts at once, survives whatever happens to its roles, and its death is
left to torchrun. Whoever was cut off comes back without roles: the controller has given their work to others.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc

from libra.errors import LibraError, WireError
from libra.rank.child import BROKEN
from libra.rank.lease import LeaseBook
from libra.rank.roles import Roles
from libra.wire import messages as m
from libra.wire.child import die_with_parent
from libra.wire.frames import AsyncReader, Codec, pack
from libra.wire.loop import ignore_stale_wakeups
from libra.wire.rendezvous import Meeting, find, meeting_file, read

LINK_S = 30.0
"""Longest wait for the controller to accept the link and answer the hello."""
RETURN_S = 300.0
"""How long a supervisor that was cut off tries to come back; then it ends, and the run goes on without its rank."""
PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
"""Between two attempts: doubled from the first to this."""


@dataclass(slots=True)
class Joined:
    """A link over which the controller has said welcome."""

    stream: anyio.abc.SocketStream
    reader: AsyncReader[m.ToSupervisor]
    welcome: m.Welcome
    lease: LeaseBook
    _sending: anyio.Lock = field(default_factory=anyio.Lock)

    async def send(self, message: m.Message) -> None:
        with contextlib.suppress(*BROKEN):  # the reader sees it too and says so
            async with self._sending:
                await self.stream.send(pack(message))


class Supervisor:
    """`path` is the file with `meeting` in it, read again before each return."""

    def __init__(self, rank: int, meeting: Meeting, path: Path) -> None:
        self.rank = rank
        self.meeting = meeting
        self.exit_code = 0
        self._path = path
        self._link: Joined | None = None

    async def run(self) -> int:
        """Serve until the controller says Shutdown or is gone (exit code 0), or SIGTERM comes (143).

        Raises LibraError, OSError or TimeoutError where the first link cannot be made.
        """
        ignore_stale_wakeups()
        link = await self._join()
        async with anyio.create_task_group() as tasks:
            roles = Roles(tasks, self._exited)
            try:
                tasks.start_soon(self._signals, tasks.cancel_scope)
                while link is not None and not await self._serve(link, roles):
                    await roles.clear()
                    link = await self._return()
            except LibraError as e:  # exit code 0: the run goes on without this rank
                self._say(str(e))
            finally:
                roles.kill_all()
            tasks.cancel_scope.cancel()
        return self.exit_code

    # --- joining

    async def _join(self) -> Joined:
        stream: anyio.abc.SocketStream | None = None
        try:
            with anyio.fail_after(LINK_S):
                stream = await anyio.connect_unix(self.meeting.address)
                reader: AsyncReader[m.ToSupervisor] = AsyncReader(stream, Codec(m.ToSupervisor))
                sent_s = time.monotonic()
                await stream.send(pack(self._hello()))
                welcome = await reader.receive()
            if not isinstance(welcome, m.Welcome):
                raise LibraError(f"the controller refused rank {self.rank}: {getattr(welcome, 'reason', welcome)}")
        except BaseException as e:
            if stream is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
            if isinstance(e, BROKEN):
                raise WireError("the controller closed the link before its welcome") from None
            raise
        return Joined(stream, reader, welcome, LeaseBook(welcome.lease_s, sent_s))

    def _hello(self) -> m.SupervisorHello:
        known = self.meeting
        host = socket.gethostname()
        return m.SupervisorHello(m.PROTOCOL, known.token, known.incarnation, self.rank, host, os.getpid(), "cpu")

    async def _return(self) -> Joined | None:
        """A new link; None where there is nobody to return to. torchrun sees the death of a controller by itself."""
        end, pause_s = time.monotonic() + RETURN_S, PAUSE_S
        while time.monotonic() < end:
            if (meeting := read(self._path)) is None:
                return self._say("the controller is gone")
            self.meeting = meeting
            try:
                return await self._join()
            except (FileNotFoundError, ConnectionRefusedError):
                return self._say("the controller is gone")
            except (WireError, OSError, TimeoutError):
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        return self._say(f"no way back to the controller in {RETURN_S:g} s")

    # --- serving

    async def _serve(self, link: Joined, roles: Roles) -> bool:
        """Until the link ends; True when the controller said Shutdown."""
        self._link = link
        roles.welcome(link.welcome)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._heartbeat, link, roles)
                tasks.start_soon(self._mind_lease, link, roles)
                told = await self._obey(link, roles)
                tasks.cancel_scope.cancel()
        finally:
            self._link = None
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(link.stream)
        return told

    async def _obey(self, link: Joined, roles: Roles) -> bool:
        while True:
            try:
                message = await link.reader.receive()
            except (WireError, *BROKEN) as e:
                self._say(f"the link to the controller ended ({type(e).__name__})")
                return False
            match message:
                case m.SpawnRole():
                    await roles.spawn(message, link.lease.until_s)
                case m.HeartbeatSeen(n=n):
                    if link.lease.seen(n):
                        roles.extend(link.lease.until_s)
                case m.KillRole():
                    roles.kill(message)
                case m.Shutdown(grace_s=grace_s):
                    await roles.end(grace_s)
                    return True
                case _:
                    self._say(f"unexpected {type(message).__name__} from the controller")
                    return False

    async def _heartbeat(self, link: Joined, roles: Roles) -> None:
        n = 0
        while True:
            link.lease.sending(n)
            await link.send(m.Heartbeat(n, roles.beats, roles.has_spare))
            await roles.keep_spare()
            n += 1
            await anyio.sleep(link.welcome.heartbeat_s)

    async def _mind_lease(self, link: Joined, roles: Roles) -> None:
        """Give up a link whose beats go unanswered: the roles have ended, or will before this rank is missed. A core rank
        holds on to its link: its role has no lease, and its end would be the end of the run.

        It looks twice: one that was stopped itself first hears what has come meanwhile, mostly the end of the link.
        """
        lapsed = 0
        while lapsed < 2:
            await anyio.sleep(link.welcome.heartbeat_s)
            lapsed = lapsed + 1 if link.lease.lapsed and not roles.core else 0
        self._say("no heartbeat was acknowledged for a whole lease")
        await anyio.aclose_forcefully(link.stream)

    async def _exited(self, message: m.ChildExited) -> None:
        if self._link is not None:  # else the rank is lost, and with it all that it held
            await self._link.send(message)

    def _say(self, what: str) -> None:
        print(f"libra rank {self.rank}: {what}", file=sys.stderr)

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
        path = meeting_file()
        return anyio.run(Supervisor(rank, find(path, deadline_s), path).run)
    except (LibraError, TimeoutError, OSError) as e:
        print(f"libra rank {rank}: {e or type(e).__name__}", file=sys.stderr)
        return 1
