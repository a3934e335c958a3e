"""Where orders of people meet the core: once each, with their author, answered whatever happens.

    OrderRequest ─> known id? its answer again │ overrides granted? ─> give(request, author) ─> the core ─> answered(...)

The memory of ids is bounded; an id older than `REMEMBERED` orders is new again, and then its epoch protects.
"""

from collections.abc import Callable

import anyio
import msgspec

from libra.control.messages import OrderAnswer, OrderRequest
from libra.control.peer import Peer

REMEMBERED = 1024
"""Orders whose answers are kept."""
ANSWER_S = 10.0
"""The core answers at once; beyond this it has forgotten the order, and its author is told so."""

Give = Callable[[OrderRequest, str], None]
"""Hand an order to the core, with its author as the journal will name him; its answer comes through `OrderDesk.answered`.

It must not raise: what breaks in the core is the run's affair, while an error in here only closes the link that ordered. So a
live shell posts it from a task of its own."""


class _Case:
    """One order: what was asked, and its answer once there is one."""

    def __init__(self, request: OrderRequest, author: str) -> None:
        self.request = request
        self.author = author
        self.answer: OrderAnswer | None = None
        self.done = anyio.Event()


class OrderDesk:
    """`give` None: this controller takes no orders. `epoch()` is the allocation's; `told` hears of each answer once."""

    def __init__(
        self,
        override: bool,
        give: Give | None,
        epoch: Callable[[], int],
        told: Callable[[OrderRequest, OrderAnswer, str], None],
    ) -> None:
        self._override = override
        self._give = give
        self.epoch = epoch
        self._told = told
        self._cases: dict[str, _Case] = {}

    async def submit(self, request: OrderRequest, author: Peer) -> OrderAnswer:
        """The order's answer; the same for the same id, however often it is asked."""
        case = self._cases.get(request.id)
        if case is not None and case.request != request:
            return self._refusal(request, f"the id {request.id} was used for another order; take a new one")
        if case is None:
            case = self._cases[request.id] = _Case(request, str(author))
            self._forget()
            self._begin(case, author)
        with anyio.move_on_after(ANSWER_S):
            await case.done.wait()
        return case.answer or self._refusal(
            request, f"the core gave no answer within {ANSWER_S:g} s; look at the status"
        )

    def answered(self, id: str, accepted: bool, reason: str, epoch: int) -> None:
        """The core's answer to the order `id`."""
        case = self._cases.get(id)
        if case is not None and case.answer is None:
            self._close(case, OrderAnswer(id, accepted, reason, epoch))

    def _begin(self, case: _Case, author: Peer) -> None:
        request = case.request
        if not author.may_order:
            refusal = f"{author} may not order; only the user of the run may"
        elif not self._override:
            refusal = "the run's configuration grants no orders: control.override = false"
        elif self._give is None:
            refusal = "this run has an allocation that cannot change: it takes no orders"
        else:
            self._give(request, case.author)
            return
        self._close(case, self._refusal(request, refusal))

    def _refusal(self, request: OrderRequest, reason: str) -> OrderAnswer:
        return OrderAnswer(request.id, False, reason, self.epoch())

    def _close(self, case: _Case, answer: OrderAnswer) -> None:
        case.answer = answer
        case.done.set()
        self._told(case.request, answer, case.author)

    def _forget(self) -> None:
        if len(self._cases) > REMEMBERED:
            del self._cases[next(iter(self._cases))]


def describe(request: OrderRequest) -> str:
    """The order in one line, for people."""
    fields = msgspec.structs.asdict(request.order)
    words = ", ".join(f"{name} {value}" for name, value in fields.items() if value not in (None, ""))
    return f"{type(request.order).__name__.lower()}{': ' + words if words else ''}"
