"""What a simulation of an order is asked, and what it answers: between a viewer and its worker (`libra.sim.whatif`)."""

from msgspec import Struct

from libra.control.state import LiveState
from libra.core.orders import Order


class Question(Struct, frozen=True):
    state: LiveState
    orders: tuple[Order, ...]
    budget_s: float = 2.0
    """That the answer may take, about."""


class Price(Struct, frozen=True):
    """What the next batches cost with the orders, and against without them. None: could not be said."""

    valid: bool
    reason: str = ""
    """Why the orders would be refused."""
    throughput_ratio: float | None = None
    """Batches a second with the orders over those without, once the move is over."""
    train_s: float | None = None
    rollout_s: float | None = None
    """Both stages' seconds a batch, with the orders."""
    transition_s: float | None = None
    """From the orders to the end of the last move, in seconds of the run's clock."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """That the answer took."""
