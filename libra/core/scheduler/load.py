"""What a scheduler sees of one engine: its shape, whether it serves, and what it has been given.

Every change goes through the methods here, each of which tells `on_change`: so the index that keeps the engines of a shape
in order (`libra.core.scheduler.index`) can never hold an engine at a place where it no longer belongs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

NO_WEIGHTS = -1
"""The version of an engine without weights."""


@dataclass(slots=True)
class EngineLoad:
    id: int
    bucket: int
    max_batch: int
    kv_tokens: int
    node: int = 0
    """The machine that it sits on: what a KV move has to cross."""
    version: int = NO_WEIGHTS
    up: bool = False
    generation: int = 0
    """Counts what empties its prefix cache: new weights, a new process. A prefix of an older generation is gone."""
    running: int = 0
    context_tokens: int = 0
    """Context of the running turns, as it was when they began."""
    reserved_tokens: int = 0
    """KV room promised to running turns."""
    outstanding_tokens: int = 0
    """Tokens that running turns may still sample."""
    residual_tokens: int = 0
    """Tokens that the trajectories of the running turns are predicted to need in all; 0 from policies that do not predict."""
    on_change: "Callable[[EngineLoad, bool], None] | None" = None
    """Called after each change; the flag tells whether it may have made room."""

    def fits(self, need_tokens: int) -> bool:
        """Whether a turn that needs this much KV room may begin now."""
        return self.running < self.max_batch and self.reserved_tokens + need_tokens <= self.kv_tokens

    def take(self, turn: "RoomTaken") -> None:
        """A turn begins here."""
        self._count(turn, 1)
        self._changed(False)

    def give_back(self, turn: "RoomTaken") -> None:
        """That turn is over, or given up."""
        self._count(turn, -1)
        self._changed(True)

    def renew(self, old: "RoomTaken", new: "RoomTaken") -> None:
        """What a running turn holds is known better now."""
        self._count(old, -1)
        self._count(new, 1)
        self._changed(False)

    def came_up(self) -> None:
        self.up = True
        self._changed(True)

    def close(self) -> None:
        """No new turns; its weights and prefixes stay."""
        self.up = False
        self._changed(True)

    def went_down(self) -> None:
        self.up = False
        self.version = NO_WEIGHTS
        self.generation += 1
        self._changed(True)

    def installed(self, version: int) -> None:
        if version > self.version:
            self.version = version
            self.generation += 1
            self._changed(True)

    def _count(self, turn: "RoomTaken", sign: int) -> None:
        self.running += sign
        self.context_tokens += sign * turn.context_tokens
        self.reserved_tokens += sign * turn.need_tokens
        self.outstanding_tokens += sign * turn.budget_tokens
        self.residual_tokens += sign * turn.residual_tokens

    def _changed(self, room: bool) -> None:
        if self.on_change is not None:
            self.on_change(self, room)


class RoomTaken(Struct, frozen=True, gc=False):
    """What one running turn holds of its engine; given back exactly as it was taken."""

    context_tokens: int
    budget_tokens: int
    need_tokens: int
    residual_tokens: int


NOTHING = RoomTaken(0, 0, 0, 0)
