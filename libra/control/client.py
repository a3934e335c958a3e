"""The other side of the control sockets: blocking, for commands and programs.

    run directory ─> pointer ─> alive here? ─> connect ─> hello, welcome ─> View (snapshots, news) │ Orders (answers)

Every wait has a deadline. Errors say which of the many reasons it is that a run cannot be reached: it never ran, it ended, it
died, it runs elsewhere, it is somebody else's, it speaks another protocol.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Generic, Self, TypeVar

from libra.config.rundir import is_alive, read_pid
from libra.control.messages import (
    PROTOCOL,
    Draft,
    DraftAnswer,
    FromOrderer,
    FromViewer,
    Hello,
    Missed,
    News,
    OrderAnswer,
    OrderRequest,
    Refused,
    StateRequest,
    ToOrderer,
    Topic,
    ToViewer,
    Watch,
    Welcome,
)
from libra.control.pointer import Pointer, read_pointer
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.control.state import LiveState
from libra.core.orders import Order
from libra.errors import LibraError, RunGone
from libra.wire.frames import BlockingReader, Codec, pack

ANSWER_S = 15.0
"""For a hello, a snapshot or an order's answer: a controller that lives is far faster."""
SIGN_OF_LIFE_PER_S = 0.1
"""Snapshots that are asked for where only news are wanted: else nothing would tell a quiet run from a stopped one."""
PROGRAM = "libra"

Seen = Snapshot | TrajectoryDetail | News | Missed
"""What a viewer is told."""
In = TypeVar("In")
Out = TypeVar("Out")


def locate(run_dir: Path) -> Pointer:
    """The pointer of a run that lives on this host. RunGone where it does not run, LibraError where it runs elsewhere."""
    pointer = read_pointer(run_dir)
    name = run_dir.name
    if pointer is None:
        pid = read_pid(run_dir)
        if pid is not None and is_alive(pid):
            raise RunGone(
                f"{name} (pid {pid.pid}) has no control socket: it is starting, try again in a moment, or ending"
            )
        if pid is not None and pid.host != socket.gethostname():
            raise LibraError(f"{name} was started on {pid.host} and has left no pointer to its sockets; look there")
        raise RunGone(f"{name} does not run (any more)")
    if pointer.host != socket.gethostname():
        raise LibraError(f"{name} runs on {pointer.host}, and its sockets are only there; use the same command there")
    if not is_alive(pointer.process):
        raise RunGone(f"{name} does not run: its controller (pid {pointer.pid}) is gone and left no word of its end")
    return pointer


class _Link(Generic[In, Out]):
    """One greeted link. Use as a context manager."""

    def __init__(self, run_dir: Path, path: str, vocabulary: object, timeout_s: float) -> None:
        self._name = run_dir.name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._timeout_s = timeout_s
        try:
            self._socket.connect(path)
            self._reader: BlockingReader[Out | Welcome | Refused] = BlockingReader(self._socket, Codec(vocabulary))
            self._write(Hello(PROTOCOL, PROGRAM))
            self.welcome = self._greeted()
        except PermissionError:
            self.close()
            raise LibraError(
                f"no permission to open {path}: {self._name} belongs to another user; "
                "[control] group in its configuration lets a group look, and only its user may order"
            ) from None
        except (FileNotFoundError, ConnectionRefusedError):
            self.close()
            raise RunGone(f"{self._name} does not listen at {path} (any more); it is ending, or it died") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _greeted(self) -> Welcome:
        word = self._read()
        if isinstance(word, Refused):
            raise LibraError(f"{self._name} refuses the link: {word.reason}")
        if not isinstance(word, Welcome):
            raise LibraError(f"{self._name} answered a hello with {type(word).__name__}, expected a welcome")
        return word

    def _write(self, message: Hello | In) -> None:
        try:
            self._socket.sendall(pack(message))  # type: ignore[arg-type]
        except (BrokenPipeError, ConnectionResetError):
            raise RunGone(f"{self._name} has closed the link") from None

    def _read(self) -> Out | Welcome | Refused:
        try:
            return self._reader.receive()
        except TimeoutError:
            raise LibraError(
                f"{self._name} gave no answer within {self._timeout_s:g} s; its controller may be stopped"
            ) from None
        except (EOFError, ConnectionResetError):
            raise RunGone(f"{self._name} has closed the link") from None


class View(_Link[FromViewer, ToViewer]):
    """A look at a run. LibraError and RunGone as the module says."""

    def __init__(self, run_dir: Path, timeout_s: float = ANSWER_S) -> None:
        super().__init__(run_dir, locate(run_dir).view, ToViewer, timeout_s)

    def snapshot(self) -> Snapshot:
        """The state of now."""
        for word in self.follow(1.0):
            if isinstance(word, Snapshot):
                return word
        raise AssertionError("following ends by an error only")

    def follow(self, snapshots_per_s: float, topics: tuple[Topic, ...] = ()) -> Iterator[Seen]:
        """Snapshots and news as they come, until the link ends (RunGone) or nothing comes for too long (LibraError)."""
        self.watch(snapshots_per_s, topics)
        while True:
            word = self.next()
            if snapshots_per_s > 0 or not isinstance(word, Snapshot):
                yield word

    def watch(self, snapshots_per_s: float, topics: tuple[Topic, ...] = (), trajectory: int = -1) -> None:
        """What `next` is to give from now on; may be called from another thread than the one that waits in `next`."""
        asked = snapshots_per_s or SIGN_OF_LIFE_PER_S
        self._socket.settimeout(self._timeout_s + 1 / asked)
        self._write(Watch(asked, topics, trajectory))

    def next(self) -> Seen:
        """What comes next. RunGone where the link ends, LibraError where nothing comes for too long."""
        while True:
            word = self._read()
            if isinstance(word, Snapshot | News | Missed | TrajectoryDetail):
                return word

    def draft(self, order: Order) -> DraftAnswer:
        """Whether the order would be accepted now, by the core's own rules. Nothing is done."""
        id = token_hex(8)
        self._write(Draft(id, order))
        while True:
            word = self._read()
            if isinstance(word, DraftAnswer) and word.id == id:
                return word

    def state(self) -> LiveState:
        """What a simulation can start from."""
        self._write(StateRequest())
        while True:
            word = self._read()
            if isinstance(word, LiveState):
                return word


class Orders(_Link[FromOrderer, ToOrderer]):
    """A link that orders."""

    def __init__(self, run_dir: Path, timeout_s: float = ANSWER_S) -> None:
        super().__init__(run_dir, locate(run_dir).control, ToOrderer, timeout_s)

    def give(self, order: Order, epoch: int | None = None, id: str = "") -> OrderAnswer:
        """The core's answer. `epoch` is the allocation that the order means; None: whatever it is by now."""
        request = OrderRequest(id or token_hex(8), epoch, order)
        self._write(request)
        while True:
            word = self._read()
            if isinstance(word, OrderAnswer) and word.id == request.id:
                return word
