"""Turns that wait for an engine, tail first: the earliest batch's turns go before all others, first come first served.

Within a slot the head is never overtaken, so every turn's wait is bounded; a slot whose policy versions no engine holds yet
is passed over, since an older slot's turns may be allowed where a younger one's are not (and the other way round).
"""

from collections import deque
from collections.abc import Iterator

from libra.core.trajectory import Trajectory


class WaitingTurns:
    def __init__(self) -> None:
        self._by_slot: dict[int, deque[Trajectory]] = {}
        self._slots: list[int] = []
        """Keys of `_by_slot`, ascending: only the few admitted batches."""

    def push(self, traj: Trajectory, front: bool = False) -> None:
        """`front` for a turn that had already been placed (its engine died, or it was cut)."""
        slot = traj.group.slot
        queue = self._by_slot.get(slot)
        if queue is None:
            queue = self._by_slot[slot] = deque()
            self._slots = sorted(self._by_slot)
        (queue.appendleft if front else queue.append)(traj)

    def heads(self) -> Iterator[deque[Trajectory]]:
        """The queue of each slot, earliest first, without turns that are no longer waiting. Pop from its left to take."""
        for slot in self._slots:
            queue = self._by_slot[slot]
            while queue and queue[0].stage != "waiting":
                queue.popleft()
            if queue:
                yield queue

    def forget_before(self, slot: int) -> None:
        """Drop the empty queues of batches that have been consumed."""
        for s in [s for s in self._slots if s < slot and not self._by_slot[s]]:
            del self._by_slot[s]
        self._slots = sorted(self._by_slot)

    def __len__(self) -> int:
        return sum(1 for s in self._slots for t in self._by_slot[s] if t.stage == "waiting")
