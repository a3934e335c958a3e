"""Drafts checked and priced, orders given and answered: everything that asks the controller something, in one thread.

    app ── ask(revision, order) ──> [newest draft only] ─> view.sock: legal?  ─> worker process: price ─> Verdict ─┐
    app ── give(order, epoch) ────> [a few orders]      ─> control.sock: the order ─────────────────────> Answered ┴─> deliver

An older draft that was not looked at yet is forgotten for a newer one; orders go first. `deliver` is called in the thread.
Every wait for the controller or the worker has its deadline, and ends as a word for the person, not as an exception.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from libra.control.client import Orders, View
from libra.control.messages import DraftAnswer, OrderAnswer
from libra.control.state import LiveState
from libra.core.orders import Order
from libra.errors import LibraError
from tui.whatif import Price, Worker

CHECK_S = 5.0
ORDER_S = 15.0
MOST_ORDERS = 8


class Verdict(Struct, frozen=True):
    """Of the draft with this revision; what is None is not known yet."""

    revision: int = -1
    check: DraftAnswer | None = None
    price: Price | None = None
    problem: str = ""
    """Why it could not be checked or priced."""


class Answered(Struct, frozen=True):
    """`answer` is None where none came: `problem` says why, and then nobody knows whether it was carried out."""

    order: Order
    answer: OrderAnswer | None
    problem: str = ""


class Office(Protocol):
    """What a desk asks: the controller and the worker. Raises LibraError."""

    def check(self, order: Order) -> DraftAnswer: ...
    def state(self) -> LiveState: ...
    def price(self, state: LiveState, orders: tuple[Order, ...]) -> Price: ...
    def give(self, order: Order, epoch: int | None) -> OrderAnswer: ...
    def close(self) -> None: ...


class RunOffice:
    """A live run's. Its view link is opened when needed, and again after an error."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._view: View | None = None
        self._worker = Worker()

    def check(self, order: Order) -> DraftAnswer:
        with self._link() as view:
            return view.draft(order)

    def state(self) -> LiveState:
        with self._link() as view:
            return view.state()

    def price(self, state: LiveState, orders: tuple[Order, ...]) -> Price:
        return self._worker.price(state, orders)

    def give(self, order: Order, epoch: int | None) -> OrderAnswer:
        with Orders(self._run_dir, ORDER_S) as link:
            return link.give(order, epoch)

    def close(self) -> None:
        self._worker.close()
        if self._view is not None:
            self._view.close()

    @contextlib.contextmanager
    def _link(self):
        try:
            if self._view is None:
                self._view = View(self._run_dir, CHECK_S)
                self._view.watch(0.0)
            yield self._view
        except (LibraError, OSError):
            if self._view is not None:
                self._view.close()
            self._view = None
            raise


class Desk:
    def __init__(self, office: Office, deliver: Callable[[Verdict | Answered], None]) -> None:
        self._office = office
        self._deliver = deliver
        self._ready = threading.Condition()
        self._draft: tuple[int, Order] | None = None
        self._orders: deque[tuple[Order, int | None]] = deque()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="libra-top-desk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._ready:
            self._over = True
            self._ready.notify()

    def ask(self, revision: int, order: Order) -> None:
        """Check and price this draft; a Verdict comes once it is checked, and another one with the price."""
        with self._ready:
            self._draft = (revision, order)
            self._ready.notify()

    def give(self, order: Order, epoch: int | None) -> bool:
        """False: too many orders wait for their answers, and this one was not taken."""
        with self._ready:
            if len(self._orders) >= MOST_ORDERS:
                return False
            self._orders.append((order, epoch))
            self._ready.notify()
            return True

    def _run(self) -> None:
        while True:
            with self._ready:
                while not (self._over or self._orders or self._draft):
                    self._ready.wait()
                if self._over:
                    break
                order = self._orders.popleft() if self._orders else None
                draft = None
                if order is None:
                    draft, self._draft = self._draft, None
            if order is not None:
                self._deliver(self._answered(*order))
            elif draft is not None:
                self._judge(*draft)
        self._office.close()

    def _answered(self, order: Order, epoch: int | None) -> Answered:
        try:
            return Answered(order, self._office.give(order, epoch))
        except (LibraError, OSError) as e:
            return Answered(order, None, str(e))

    def _judge(self, revision: int, order: Order) -> None:
        try:
            check = self._office.check(order)
        except (LibraError, OSError) as e:
            self._deliver(Verdict(revision, problem=f"not checked: {e}"))
            return
        self._deliver(Verdict(revision, check))
        with self._ready:
            superseded = self._draft is not None or bool(self._orders) or self._over
        if not check.valid or superseded:
            return
        try:
            self._deliver(Verdict(revision, check, self._office.price(self._office.state(), (order,))))
        except (LibraError, OSError) as e:
            self._deliver(Verdict(revision, check, problem=str(e)))
