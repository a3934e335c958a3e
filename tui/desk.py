"""Drafts checked and priced, orders given and answered: everything that asks the controller something, in two threads.

    app ── ask(revision, order) ──> [newest draft] ─> view.sock: legal? ─> Verdict ─> [newest legal one] ─> price ─> Verdict
    app ── give(order, epoch) ────> [a few orders] ─> control.sock: the order ─> Answered

Orders go before drafts, and never wait for a price. An older draft that was not looked at yet is forgotten for a newer one.
`deliver` is called in the threads. Every wait for the controller or the worker has its deadline, and ends as a word for the
person, not as an exception.
"""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from libra.control.client import Orders, View
from libra.control.messages import DraftAnswer, OrderAnswer
from libra.control.price import Price
from libra.control.state import LiveState
from libra.core.orders import Order
from libra.errors import LibraError
from tui.whatif import Worker

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
    """A live run's: a link for each question, since they are few and far between."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._worker = Worker()

    def check(self, order: Order) -> DraftAnswer:
        with View(self._run_dir, CHECK_S) as link:
            return link.draft(order)

    def state(self) -> LiveState:
        with View(self._run_dir, CHECK_S) as link:
            return link.state()

    def price(self, state: LiveState, orders: tuple[Order, ...]) -> Price:
        return self._worker.price(state, orders)

    def give(self, order: Order, epoch: int | None) -> OrderAnswer:
        with Orders(self._run_dir, ORDER_S) as link:
            return link.give(order, epoch)

    def close(self) -> None:
        self._worker.close()


class Desk:
    def __init__(self, office: Office, deliver: Callable[[Verdict | Answered], None]) -> None:
        self._office = office
        self._deliver = deliver
        self._ready = threading.Condition()
        self._draft: tuple[int, Order] | None = None
        self._checked: tuple[Order, Verdict] | None = None
        """The newest legal draft that is to be priced."""
        self._orders: deque[tuple[Order, int | None]] = deque()
        self._over = False

    def start(self) -> None:
        for name, run in (("libra-top-desk", self._ask), ("libra-top-price", self._price)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        """The worker process is gone after this; a thread that waits for an answer ends with it."""
        with self._ready:
            self._over = True
            self._ready.notify_all()
        self._office.close()

    def ask(self, revision: int, order: Order) -> None:
        """Check and price this draft; a Verdict comes once it is checked, and another one with the price."""
        with self._ready:
            self._draft, self._checked = (revision, order), None
            self._ready.notify_all()

    def give(self, order: Order, epoch: int | None) -> bool:
        """False: too many orders wait for their answers, and this one was not taken."""
        with self._ready:
            if len(self._orders) >= MOST_ORDERS:
                return False
            self._orders.append((order, epoch))
            self._ready.notify_all()
            return True

    def _ask(self) -> None:
        while True:
            with self._ready:
                while not (self._over or self._orders or self._draft):
                    self._ready.wait()
                if self._over:
                    return
                given = self._orders.popleft() if self._orders else None
                draft = None
                if given is None:
                    draft, self._draft = self._draft, None
            if given is not None:
                self._deliver(self._answered(*given))
            elif draft is not None:
                self._check(*draft)

    def _answered(self, order: Order, epoch: int | None) -> Answered:
        try:
            return Answered(order, self._office.give(order, epoch))
        except (LibraError, OSError) as e:
            return Answered(order, None, str(e))

    def _check(self, revision: int, order: Order) -> None:
        try:
            verdict = Verdict(revision, self._office.check(order))
        except (LibraError, OSError) as e:
            self._deliver(Verdict(revision, problem=f"not checked: {e}"))
            return
        self._deliver(verdict)
        if verdict.check is not None and verdict.check.valid:
            with self._ready:
                if self._draft is None:
                    self._checked = (order, verdict)
                    self._ready.notify_all()

    def _price(self) -> None:
        while True:
            with self._ready:
                while not (self._over or self._checked):
                    self._ready.wait()
                if self._over or self._checked is None:
                    return
                (order, verdict), self._checked = self._checked, None
            try:
                price = self._office.price(self._office.state(), (order,))
            except (LibraError, OSError) as e:
                self._deliver(Verdict(verdict.revision, verdict.check, problem=str(e)))
            else:
                self._deliver(Verdict(verdict.revision, verdict.check, price))
