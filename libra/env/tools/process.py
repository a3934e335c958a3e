"""One worker process as its parent sees it: a pipe in, a pipe out, a log, and a way to kill it.

Invariant: at most one call is under way; after anything but a complete reply (an error, a deadline, a cancellation) the
process is in an unknown state and must be killed. Called by `pool.py` only, on the event loop's thread.

Raw non-blocking pipes and `anyio.wait_readable` rather than anyio's process streams: a call costs two system calls and one
wake-up of the loop. Small requests fit a pipe's buffer, so writing all but never waits.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio

from libra.env.tools.worker import REPLY
from libra.errors import EnvError
from libra.wire import child

_READ_BYTES = 65_536
_LOG_TAIL_BYTES = 2_000
_REAP_S = 1.0
"""How long the exit code of a worker whose pipe has closed is waited for."""
_WORKER = Path(__file__).with_name("worker.py")


class ToolProcess:
    def __init__(
        self, tools: Mapping[str, Path], variables: Mapping[str, str], memory_bytes: int, output_bytes: int
    ) -> None:
        """Start the process; it can be called once `ready` has returned. EnvError if it cannot be forked."""
        self._output_bytes = output_bytes
        self._closed = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        files = [f"{name}={file.resolve()}" for name, file in tools.items()]
        keep = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if k in os.environ}
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", _WORKER, str(os.getpid()), str(memory_bytes), child.__file__, *files],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=keep | {"LC_ALL": "C.UTF-8"} | dict(variables),  # no tokens, no secrets of the run
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._log.close()
            raise EnvError(f"a tool worker could not be started: {error}; is the machine out of processes?") from error
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.pid = self._popen.pid
        self._in = self._popen.stdin.fileno()
        self._out = self._popen.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    async def ready(self) -> None:
        """Returns when the worker has loaded its tools; EnvError if it ends before."""
        await self._reply()

    async def call(self, request: bytes) -> tuple[bool, bytes, bool]:
        """(tool succeeded, at most `output_bytes` of its output, was there more). EnvError if the worker dies."""
        view = memoryview(request)
        while view:
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                await self._until(anyio.wait_writable, self._in)
            except BrokenPipeError:
                raise await self._died() from None
        return await self._reply()

    async def _reply(self) -> tuple[bool, bytes, bool]:
        data = b""
        while len(data) < REPLY.size:
            data += await self._read()
        ok, length = REPLY.unpack_from(data)
        missing = length - (len(data) - REPLY.size)
        output = data[REPLY.size :]
        if missing:
            kept = bytearray(output)
            while missing:
                part = await self._read()
                missing -= len(part)
                kept += part[: max(0, self._output_bytes - len(kept))]  # the rest is read and thrown away
            output = bytes(kept)
        return bool(ok), output[: self._output_bytes], length > self._output_bytes

    async def _read(self) -> bytes:
        """What is there, at most a buffer full. Always lets the loop turn, so that a flood cannot hold it up."""
        while True:
            try:
                await self._until(anyio.wait_readable, self._out)
                data = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                continue
            if data:
                return data
            raise await self._died()

    async def _until(self, ready: Callable[[int], Awaitable[None]], pipe: int) -> None:
        """Waits for a pipe; EnvError if it was closed meanwhile (its number may belong to another file by then)."""
        try:
            await ready(pipe)
        except anyio.ClosedResourceError:
            if not self._closed:
                raise
        if self._closed:
            raise EnvError(f"tool worker {self.pid} was stopped under a call: its pool is closing")

    async def _died(self) -> EnvError:
        with anyio.move_on_after(_REAP_S):
            while self._popen.poll() is None:  # noqa: ASYNC110 - the end of a process is no event of this loop
                await anyio.sleep(0.002)
        code = self._popen.returncode
        how = "closed its pipe" if code is None else f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return EnvError(f"tool worker {self.pid} died ({how}) instead of answering; its log ends: {self.log_tail()!r}")

    def log_tail(self) -> str:
        """The last lines that the worker wrote to its standard output or error."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()

    def kill(self) -> None:
        """End the process and what it started, at once, and free its pipes. Reap it afterwards with `reaped`."""
        if self._popen.returncode is None:  # else its number may belong to somebody else by now
            with contextlib.suppress(ProcessLookupError):  # a group without members is what we want
                os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None and not pipe.closed:
                anyio.notify_closing(pipe)
                pipe.close()
        self._log.close()
        self._closed = True

    def reaped(self) -> bool:
        """Whether the process has ended and left no zombie; never waits."""
        return self._popen.poll() is not None
