"""Which engine takes a turn. One file a policy; all share the room check below.

The coordinator offers a policy only engines that may take the turn: they are up, hold a version that the turn's slot allows,
have a free place in the batch, and KV room for the turn's whole context and budget. So no policy can break the lag or
overflow an engine, and comparisons between policies are fair.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from libra.core.trajectory import NO_VERSION


@dataclass(slots=True)
class EngineLoad:
    """What a scheduler sees of one engine: its shape and what it has been given."""

    id: int
    bucket: int
    max_batch: int
    kv_tokens: int
    speed: float = 1.0
    """Relative decode speed of its shape."""
    version: int = NO_VERSION
    up: bool = False
    running: int = 0
    reserved_tokens: int = 0
    """KV room promised to running turns: context and budget."""
    outstanding_tokens: int = 0
    """Tokens that running turns may still sample."""

    def fits(self, kv_tokens: int) -> bool:
        return self.running < self.max_batch and self.reserved_tokens + kv_tokens <= self.kv_tokens

    def reserve(self, context_tokens: int, budget_tokens: int) -> None:
        self.running += 1
        self.reserved_tokens += context_tokens + budget_tokens
        self.outstanding_tokens += budget_tokens

    def release(self, context_tokens: int, budget_tokens: int) -> None:
        self.running -= 1
        self.reserved_tokens -= context_tokens + budget_tokens
        self.outstanding_tokens -= budget_tokens


@dataclass(frozen=True, slots=True)
class TurnView:
    """What a scheduler sees of one waiting turn."""

    traj: int
    context_tokens: int
    budget_tokens: int
    last_engine: int
    """Where its prefix may still be; -1 for a first turn."""


class Policy(Protocol):
    """Chooses among engines that may take the turn; never called with none."""

    def choose(self, turn: TurnView, engines: Sequence[EngineLoad]) -> int:
        """Index into `engines`. Ties break by engine id."""
        ...


def make(name: str) -> Policy:
    """The policy of that name."""
    from libra.core.scheduler.least_loaded import LeastLoaded

    return {"least_loaded": LeastLoaded}[name]()
