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
    """These ranks, a whole number of replicas and of engines, go to `to`; `bucket` (its name) says which for rollout."""

    ranks: tuple[int, ...]
    to: Literal["rollout", "gradient"]
    bucket: str = ""


class Hold(_Order, frozen=True, tag=True):
    """No automatic move for `seconds` from now; 0 lets go."""

    seconds: float


class Undo(_Order, frozen=True, tag=True):
    """Back to the allocation before the last accepted order of a person."""


class CancelMove(_Order, frozen=True, tag=True):
    """Give up the move under way with this id and go back."""

    move: int


Order = Allocate | MoveRanks | Hold | Undo | CancelMove
