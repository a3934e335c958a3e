"""Admission: which batch a new group belongs to, and which policy versions may sample for it.

Slots are batch ordinals. With `done` batches consumed (trained *or* skipped: otherwise a few skips would stop admission for
good), a new group takes the earliest free slot b with done <= b <= done + L; slots are never exchanged. A turn of slot b
goes only to an engine whose version is at least the one that was newest when b - L batches had been consumed. Batch b is
consumed at the version that is newest after b batches, so no token in it is older than L versions: the lag is bounded by
construction, not by checking afterwards (a bound on admission alone does not do it: a young group that completes early would
push an old one out of its batch).
"""

from collections.abc import Sequence

from libra.errors import CoreError


class Admission:
    """Counts slots. `lag` is L in batches, `groups` the groups of one batch, `batches` the run's length."""

    def __init__(self, lag: int, groups: int, batches: int, strict_order: bool) -> None:
        self.lag = lag
        self.groups = groups
        self.batches = batches
        self.strict_order = strict_order
        """One batch at a time: slot b opens only when every group of the slots before it is complete (`one-step-off`)."""
        self.done = 0
        self._taken = 0
        """Slots handed out so far; group n belongs to batch n // groups."""
        self._newest_at: list[int] = [0]
        """The newest version once i batches were consumed."""

    def restore(self, newest_at: Sequence[int]) -> None:
        """Go on as after len(newest_at) - 1 batches, with no group admitted but what these had."""
        self._newest_at = list(newest_at)
        self.done = len(newest_at) - 1
        self._taken = self.done * self.groups

    @property
    def newest_at(self) -> tuple[int, ...]:
        """The newest version once i batches were consumed."""
        return tuple(self._newest_at)

    def next_slot(self, all_complete: bool) -> int | None:
        """Take a place in the earliest free slot; None when admission is exhausted for now.

        `all_complete` tells whether every admitted group is complete; only `strict_order` looks at it.
        """
        slot = self._taken // self.groups
        if slot > self.done + self.lag or slot >= self.batches:
            return None
        if self.strict_order and self._taken % self.groups == 0 and not all_complete:
            return None
        self._taken += 1
        return slot

    def floor(self, slot: int) -> int:
        """The oldest policy version that may still sample for `slot`."""
        return self._newest_at[max(0, min(slot - self.lag, self.done))]

    def consume(self, newest: int) -> None:
        """One more batch was trained or skipped, after which `newest` is the newest version."""
        if self.done >= self.batches:
            raise CoreError(f"batch {self.done} consumed, but the run has only {self.batches}")
        self.done += 1
        self._newest_at.append(newest)

    @property
    def newest_slot(self) -> int:
        """The slot of the group admitted last; needs one."""
        return (self._taken - 1) // self.groups

    @property
    def prompts(self) -> int:
        """Groups admitted so far; the next group's prompt ordinal."""
        return self._taken

    @property
    def exhausted(self) -> bool:
        return self.done >= self.batches
