"""What a person may order of a running job. An order is an event; the core answers each with `AnswerOrder`.

    libra allocate, the dashboard, ... ──> control socket ──> OrderGiven(id, author, expected_epoch, order) ──> Core
                                                                                     AnswerOrder(id, accepted, reason) <──┘

An order is idempotent by its id. It names the epoch that its author saw: where the allocation has changed since, it is
refused, and nothing happens.
"""

from typing import Literal

from msgspec import Struct


class _Order(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class Allocate(_Order, frozen=True, tag=True):
    """So many device ranks in rollout and so many lending gradients; None: whatever is left. Core ranks do not count."""

    rollout: int | None = None
    gradient: int | None = None


class MoveRanks(_Order, frozen=True, tag=True):
    """These ranks, a whole number of replicas and of engines, go to `to`; `bucket` (its name) says which for rollout.

    spare: their units end in good order, and they do nothing until a person orders them elsewhere.
    """

    ranks: tuple[int, ...]
    to: Literal["rollout", "gradient", "spare"]
    bucket: str = ""


class Arrange(_Order, frozen=True, tag=True):
    """Several of these at once: all are legal together, or none begins."""

    moves: tuple[MoveRanks, ...]


class Hold(_Order, frozen=True, tag=True):
    """No automatic move for `seconds` from now; 0 lets go."""

    seconds: float


class Pause(_Order, frozen=True, tag=True):
    """No automatic move until `Resume`."""


class Resume(_Order, frozen=True, tag=True):
    """The rule may move ranks again: ends a pause and a hold."""


class Undo(_Order, frozen=True, tag=True):
    """Back to the allocation before the last accepted order of a person."""


class CancelMove(_Order, frozen=True, tag=True):
    """Give up the move under way with this id and go back."""

    move: int


class Raise(_Order, frozen=True, tag=True):
    """A trajectory's turns, or its whole group's, are looked at before all others whenever room appears. `raised` false: no
    longer. Where one finds no room others may go on: nothing stands still for it."""

    trajectory: int
    whole_group: bool = False
    raised: bool = True


class CancelTrajectory(_Order, frozen=True, tag=True):
    """End it as failed: it is tried again, or its group is dropped, like after any failure."""

    trajectory: int


Order = Allocate | MoveRanks | Arrange | Hold | Pause | Resume | Undo | CancelMove | Raise | CancelTrajectory
