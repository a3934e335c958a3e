"""How much of a prefix an engine still has when its turn comes back: engines' own counters against what placement hoped for.

    share = (reused + PRIOR_TOKENS) / (hoped + PRIOR_TOKENS)          both forgotten by MEMORY at each report, reused <= hoped

A prefix that placement believes to lie on an engine may be gone there: caches keep whole blocks, and drop the prefix that was
not used for longest. What an engine reuses without being hoped for (prompts that a group has in common) counts for it, so the
share errs on the side of 1, which is also where it begins. Owned by `libra.core.placement`, one for all engines of a bucket.
"""

from msgspec import Struct

MEMORY = 0.95
PRIOR_TOKENS = 4096.0


class Reuse(Struct):
    hoped: float = 0.0
    reused: float = 0.0
    open: dict[int, int] = {}
    """Hoped for since the engine's last report."""
    counters: dict[int, int] = {}
    """The engine's counter at its last report."""

    @property
    def share(self) -> float:
        """Of the tokens that are believed to lie on an engine of this bucket: those that it is expected to find there."""
        return (self.reused + PRIOR_TOKENS) / (self.hoped + PRIOR_TOKENS)

    def hope(self, engine: int, tokens: int) -> None:
        """A turn begins on `engine`, where this many tokens of its context should lie."""
        self.open[engine] = self.open.get(engine, 0) + tokens

    def report(self, engine: int, reused_tokens: int) -> None:
        """The engine's counter of reused tokens, since it began: one that went back is that of a new process."""
        before = self.counters.get(engine, 0)
        new = reused_tokens - before if reused_tokens >= before else reused_tokens
        self.counters[engine] = reused_tokens
        self.hoped = MEMORY * self.hoped + self.open.pop(engine, 0)
        self.reused = min(MEMORY * self.reused + new, self.hoped)

    def copy(self) -> "Reuse":
        return Reuse(self.hoped, self.reused, dict(self.open), dict(self.counters))

    def gone(self, engine: int) -> None:
        """The engine will report no more."""
        self.open.pop(engine, None)
        self.counters.pop(engine, None)
