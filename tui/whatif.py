"""The price of a draft: the simulator, started from the live state, in a worker process of its own.

    Desk's thread ── frame: state, order ──> python -m libra.sim.whatif ── frame: price ──> Desk's thread

The worker starts with the first draft and stays; it is killed where an answer is late, and started again for the next one. One
thread at a time may ask; `close` may come from any, and then the one that asks gets an error.
"""

import os
import selectors
import struct
import subprocess
import sys
import time
from typing import IO

import msgspec

from libra.control.price import Price, Question
from libra.control.state import LiveState
from libra.core.orders import Order
from libra.errors import LibraError

BUDGET_S = 2.0
"""That the simulation may take."""
ANSWER_S = 60.0
"""For an answer, the worker's start included, on a machine that is busy with the job itself."""
MOST_ANSWER_BYTES = 1 << 20
COMMAND = (sys.executable, "-m", "libra.sim.whatif")
_LENGTH = struct.Struct(">I")


class Worker:
    def __init__(self, command: tuple[str, ...] = COMMAND, answer_s: float = ANSWER_S) -> None:
        self._command = command
        self._answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None

    def price(self, state: LiveState, orders: tuple[Order, ...]) -> Price:
        """LibraError where the worker fails or is late."""
        body = msgspec.msgpack.encode(Question(state, orders, BUDGET_S))
        deadline = time.monotonic() + self._answer_s
        try:
            process = self._alive()
            _write(process, _LENGTH.pack(len(body)) + body, deadline)
            (length,) = _LENGTH.unpack(_read(process, _LENGTH.size, deadline))
            if length > MOST_ANSWER_BYTES:
                raise LibraError(f"announces {length} bytes, expected at most {MOST_ANSWER_BYTES}")
            return msgspec.msgpack.decode(_read(process, length, deadline), type=Price)
        except (OSError, EOFError, msgspec.DecodeError, LibraError) as e:
            self.close()
            raise LibraError(f"no price: the simulation's worker {_what(e, self._answer_s)}") from None

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # its pipes end, and whoever reads from them with them
            process.wait(timeout=5.0)

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        return self._process


def _write(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    assert process.stdin is not None
    left = memoryview(data)
    while left:
        _await(process.stdin, selectors.EVENT_WRITE, deadline)
        left = left[process.stdin.write(left) or 0 :]


def _read(process: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
    assert process.stdout is not None
    data = b""
    while len(data) < count:
        _await(process.stdout, selectors.EVENT_READ, deadline)
        part = process.stdout.read(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _await(pipe: IO[bytes], event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError


def _what(e: Exception, answer_s: float) -> str:
    match e:
        case TimeoutError():
            return f"gave no answer within {answer_s:g} s"
        case EOFError() | BrokenPipeError():
            return "has ended"
        case _:
            return f"failed: {e}"
