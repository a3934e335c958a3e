"""The vocabulary of the control sockets: length-prefixed msgpack (`libra.wire.frames`) of Structs tagged by `kind`.

    view.sock       Hello ─> <─ Welcome      Watch ─> (again at any time)      <─ Snapshot | News | TrajectoryDetail ...
                                             Draft ─> <─ DraftAnswer           StateRequest ─> <─ LiveState
    control.sock    Hello ─> <─ Welcome      OrderRequest ─> <─ OrderAnswer    one at a time

`Hello`, `Welcome` and `Refused` keep their first fields in every protocol, so that any two versions can tell each other that
they do not fit. Unknown fields are ignored, absent ones take their defaults: a field may be added within a protocol.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.control.state import LiveState
from libra.core.orders import Order

PROTOCOL = 1
MOST_SNAPSHOTS_PER_S = 4.0
"""More is not built, whoever asks."""
REQUEST_FRAME_BYTES = 16 * 1024
"""Largest frame that a peer may send, hello included."""

Topic = Literal["report", "batch", "eval", "rank", "move", "order", "decision"]
TOPICS: tuple[Topic, ...] = ("report", "batch", "eval", "rank", "move", "order", "decision")
STANDING_TOPICS: tuple[Topic, ...] = ("report", "batch", "eval", "rank", "move", "order")
"""All but `decision`, of which there is one a turn: only for those who ask."""


class _Word(Struct, frozen=True, tag_field="kind", tag=str.lower):
    pass


class Hello(_Word, frozen=True):
    """The first word of either side's program."""

    protocol: int
    program: str = ""


class Refused(_Word, frozen=True):
    """The last word on a link that the controller closes. `protocol` is the one that it speaks."""

    reason: str
    protocol: int = PROTOCOL


class Welcome(_Word, frozen=True):
    protocol: int
    run: str
    incarnation: str
    epoch: int = 0
    """Of the allocation, now."""


# --- view.sock


class Watch(_Word, frozen=True):
    """What the viewer wants from now on: so many snapshots a second (0: none), and news of these topics."""

    snapshots_per_s: Annotated[float, Meta(ge=0)] = 1.0
    topics: tuple[Topic, ...] = ()
    trajectory: int = -1
    """One that is to be shown turn by turn: a `TrajectoryDetail` follows each snapshot; -1: none."""


class Draft(_Word, frozen=True):
    """Would this order be accepted now? Nothing is done."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    order: Order


class DraftAnswer(_Word, frozen=True):
    """By the core's own rules, as of `epoch`. `effects`: what would happen, for people, one line each."""

    id: str
    valid: bool
    reason: str
    effects: tuple[str, ...]
    epoch: int


class StateRequest(_Word, frozen=True):
    """Everything that a simulation of what comes next can start from: `LiveState`."""


class News(_Word, frozen=True):
    """Something that happened. `n` counts all news of the run; `data` holds for programs what `what` says to people."""

    n: int
    t: float
    topic: Topic
    level: str
    what: str
    data: dict[str, str | int | float | bool | None] = {}


class Missed(_Word, frozen=True):
    """So many news were thrown away because the viewer did not read; the next ones are newer."""

    news: int


# --- control.sock


class OrderRequest(_Word, frozen=True):
    """`id` makes the order idempotent: the same id again gets the same answer and does nothing.

    `expected_epoch` is the allocation that its author saw; None: whatever it is.
    """

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    expected_epoch: int | None
    order: Order


class OrderAnswer(_Word, frozen=True):
    """`epoch` is the allocation's after the order."""

    id: str
    accepted: bool
    reason: str
    epoch: int


FromViewer = Hello | Watch | Draft | StateRequest
FromOrderer = Hello | OrderRequest
ToViewer = Welcome | Refused | Snapshot | News | Missed | TrajectoryDetail | DraftAnswer | LiveState
ToOrderer = Welcome | Refused | OrderAnswer
