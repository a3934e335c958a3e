"""One child process of a supervisor, and the pipe that holds it: a spare until it is given an order, a role from then on.

A child is started before or at its order, always in the same way: what it prints goes to an unnamed file, and to the log of
its role once it knows that (`libra.rank.role`). It ends at EOF of the pipe, by the parent-death signal, or by SIGKILL.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.abc

from libra.errors import WireError
from libra.telemetry.logs import tail
from libra.wire import messages as m
from libra.wire.frames import AsyncReader, Codec, pack

LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 16_384
BROKEN = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Child:
    """`beats` and `doing` are what it said last; a spare that has said anything is ready to become a role."""

    def __init__(self, process: anyio.abc.Process, pipe: anyio.abc.SocketStream, output: BinaryIO) -> None:
        self.order: m.SpawnRole | None = None
        self.ready = False
        self.beats = 0
        self.doing = "starting"
        self.gone = anyio.Event()
        """Set by `watch`: reaped."""
        self._process = process
        self._pipe = pipe
        self._output = output
        self._extended = anyio.Event()
        self._until_s = 0.0
        self._asked_to_end = False

    @classmethod
    async def start(cls, preload: str, threads: int) -> "Child":
        """A spare that imports `preload`."""
        ours, theirs = socket.socketpair()
        output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        with theirs:
            process = await anyio.open_process(
                [sys.executable, "-m", "libra.rank.role", str(theirs.fileno()), str(os.getpid()), preload],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )
        return cls(process, await anyio.abc.SocketStream.from_socket(ours), output)

    @property
    def leased(self) -> bool:
        """The core's roles have no lease: nobody takes their place while the run goes on."""
        return self.order is not None and self.order.spec.role != "trainer"

    async def give(self, order: m.SpawnRole, until_s: float) -> None:
        """Make it a role; its first lease goes along."""
        self.order, self.beats, self.doing = order, 0, "starting"
        frames = pack(order) + (pack(m.Lease(until_s)) if self.leased else b"")
        with contextlib.suppress(*BROKEN):  # it is dead already: `watch` says so
            await self._pipe.send(frames)

    def extend(self, until_s: float) -> None:
        """Let its lease run on; never waits for a child that does not read."""
        if self.leased:
            self._until_s = until_s
            self._extended.set()

    async def pass_leases(self) -> None:
        """Send the newest extension, again and again. Ends with the child."""
        with contextlib.suppress(*BROKEN):
            while True:
                await self._extended.wait()
                self._extended = anyio.Event()
                if self._asked_to_end:
                    return
                await self._pipe.send(pack(m.Lease(self._until_s)))

    async def listen(self) -> None:
        """Take its beats. Ends with the child."""
        reader: AsyncReader[m.Beat] = AsyncReader(self._pipe, Codec(m.Beat))
        with contextlib.suppress(*BROKEN):
            try:
                while True:
                    beat = await reader.receive()
                    self.beats, self.doing, self.ready = beat.beats, beat.doing, True
            except WireError:
                self.kill()  # it is not in its right mind

    async def watch(self) -> int:
        """Wait for its end and release all that it held here. Returns the exit code, negative for a signal."""
        code = await self._process.wait()
        self.kill()
        self._asked_to_end = True
        self._extended.set()
        await anyio.aclose_forcefully(self._pipe)
        self.gone.set()
        return code

    def last_words(self) -> str:
        """The end of its log; of what it said before it had one where there is none. Once, after its end."""
        with self._output as output:
            early = os.pread(output.fileno(), LOG_TAIL_BYTES, 0).decode(errors="replace")
        log = tail(Path(self.order.log), LOG_TAIL_LINES, LOG_TAIL_BYTES) if self.order else ""
        return log or "\n".join(early.splitlines()[-LOG_TAIL_LINES:])

    def kill(self) -> None:
        """The process and whatever it may have left in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self, grace_s: float) -> None:
        """Ask by closing the writing half of the pipe; kill after the grace."""
        self._asked_to_end = True
        with contextlib.suppress(OSError, *BROKEN):
            await self._pipe.send_eof()
        with anyio.move_on_after(grace_s):
            await self.gone.wait()
        self.kill()
