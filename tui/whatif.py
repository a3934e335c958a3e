"""The price of a draft: the simulator, started from the live state, in a worker process of its own.

    Desk's thread ── frame: state, order ──> python -m libra.sim.whatif ── frame: price ──> Desk's thread

The worker starts with the first draft and stays; it is killed where an answer is late, and started again for the next one. One
thread at a time may ask; `close` may come from any, and then the one that asks gets an error.
"""

import contextlib
import os
import selectors
import struct
import subprocess
import sys
import time

import msgspec
from msgspec import Struct

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


class Question(Struct, frozen=True):
    state: LiveState
    orders: tuple[Order, ...]
    budget_s: float = BUDGET_S


class Price(Struct, frozen=True):
    """What the next batches cost with the draft, and against without it. None: could not be said."""

    valid: bool
    reason: str = ""
    throughput_ratio: float | None = None
    train_s: float | None = None
    rollout_s: float | None = None
    transition_s: float = 0.0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """That the simulation took."""


class Worker:
    def __init__(self, command: tuple[str, ...] = COMMAND, answer_s: float = ANSWER_S) -> None:
        self._command = command
        self._answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None

    def price(self, state: LiveState, orders: tuple[Order, ...]) -> Price:
        """LibraError where the worker fails or is late."""
        process = self._alive()
        body = msgspec.msgpack.encode(Question(state, orders))
        try:
            assert process.stdin is not None
            process.stdin.write(_LENGTH.pack(len(body)) + body)
            process.stdin.flush()
            deadline = time.monotonic() + self._answer_s
            (length,) = _LENGTH.unpack(self._read(process, _LENGTH.size, deadline))
            if length > MOST_ANSWER_BYTES:
                raise LibraError(
                    f"got an answer of {length} bytes from the what-if worker, expected at most {MOST_ANSWER_BYTES}"
                )
            return msgspec.msgpack.decode(self._read(process, length, deadline), type=Price)
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError, LibraError) as e:
            self.close()
            raise LibraError(f"no price: the simulation's worker {_what(e, self._answer_s)}") from None

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(timeout=5.0)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written is of no use any more
                    pipe.close()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )
        return self._process

    def _read(self, process: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
        assert process.stdout is not None
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(data) < count:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError
                part = os.read(process.stdout.fileno(), count - len(data))
                if not part:
                    raise EOFError
                data += part
        return data


def _what(e: Exception, answer_s: float) -> str:
    match e:
        case TimeoutError():
            return f"gave no answer within {answer_s:g} s"
        case EOFError() | BrokenPipeError():
            return "has ended"
        case _:
            return f"failed: {e}"
