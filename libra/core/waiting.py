"""Turns that wait for an engine: the earliest batch's first, within a batch in lanes.

    raised:  like a slot before all slots
    slot 3:  any engine        ▸ turn ▸ turn ▸ turn       its head goes to whatever the policy picks
             bucket 1          ▸ turn ▸ turn              the policy wants them there; looked at when it may have got room
             engine 7          ▸ turn

A lane is in order of *virtual arrival*: when the turn came, less the lead that its policy gives it. So a turn is overtaken
only by those that come at most the largest lead after it (ageing without a sweep), and the lane's head is never passed by a
later turn of its lane. Nobody stays in a lane with a target for longer than `max_wait_s`: it then goes back among those that
take any engine, where its virtual arrival is the earlier of most. A slot whose versions no engine holds yet is passed over.
"""

from bisect import insort
from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush

from libra.core.scheduler.policy import Target
from libra.core.trajectory import Trajectory

FIRST = float("-inf")
"""Virtual arrival of a turn that had been placed already: its engine died, or it was cut."""
SPARE_SLOT = 1 << 62
"""After every batch: turns that go only where, and while, no turn of a batch waits."""

RAISED = -1
"""Where turns wait that a person has put before all others: before the first batch."""

Entry = tuple[float, int, Trajectory]
"""(virtual arrival, ticket, trajectory); stale once the trajectory has another ticket or waits no more."""


class Lane:
    """Turns of one slot that wait for `target`; None: for any engine."""

    __slots__ = ("heap", "refused", "target")

    def __init__(self, target: Target | None) -> None:
        self.target = target
        self.heap: list[Entry] = []
        self.refused: tuple[int, int, int] = (0, 0, 0)
        """(ticket, changes of the index, losses of the fleet) when no engine could take the head: until one of the three moves,
        none can, and some engine that is left is large enough for it."""

    def head(self) -> Entry | None:
        heap = self.heap
        while heap:
            _, ticket, traj = heap[0]
            if traj.ticket == ticket and traj.stage == "waiting":
                return heap[0]
            heappop(heap)
        return None

    def first(self) -> Entry:
        """The head of a lane that has one."""
        return self.heap[0]


class WaitingTurns:
    def __init__(self) -> None:
        self._slots: list[int] = []
        """Slots with lanes, ascending: only the few admitted batches."""
        self._lanes: dict[int, dict[Target | None, Lane]] = {}
        self._tickets = 0
        self._parked: deque[tuple[float, int, Trajectory]] = deque()
        """(since, ticket, trajectory) of turns in lanes with a target, in order of time."""

    def push(self, traj: Trajectory, target: Target | None = None, now: float = 0.0) -> None:
        """Put a turn into a lane, out of any other that it is in; with a target, `now` is since when it waits for it."""
        self._tickets += 1
        traj.ticket = self._tickets
        slot = RAISED if traj.raised else traj.group.slot
        lanes = self._lanes.get(slot)
        if lanes is None:
            lanes = self._lanes[slot] = {None: Lane(None)}
            insort(self._slots, slot)
        lane = lanes.get(target)
        if lane is None:
            lane = lanes[target] = Lane(target)
        heappush(lane.heap, (traj.arrival, traj.ticket, traj))
        if target is not None:
            self._parked.append((now, traj.ticket, traj))

    def slots(self) -> list[int]:
        """Slots in which somebody may wait, earliest first."""
        return list(self._slots)

    def any_before(self, slot: int) -> bool:
        """Whether a turn of an earlier slot waits, for whatever."""
        return any(lane.head() for s in self._slots if s < slot for lane in self._lanes[s].values())

    def lanes(self, slot: int, freed: Collection[Target]) -> list[Lane]:
        """The lanes of `slot` that have a head: of any engine, and of the targets in `freed`."""
        lanes = self._lanes[slot]
        found = [lanes[None]] if lanes[None].head() else []
        if len(lanes) > 1:
            for target in freed if len(freed) < len(lanes) else list(lanes):
                if target is None or target not in freed:
                    continue
                lane = lanes.get(target)
                if lane is None:
                    continue
                if lane.head():
                    found.append(lane)
                else:
                    del lanes[target]
        if not found and len(lanes) == 1:
            del self._lanes[slot]
            self._slots.remove(slot)
        return found

    def impatient(self, since: float) -> list[Trajectory]:
        """Turns that were put into a lane with a target at `since` or before; each is told once."""
        found: list[Trajectory] = []
        while self._parked and self._parked[0][0] <= since:
            _, ticket, traj = self._parked.popleft()
            if traj.ticket == ticket and traj.stage == "waiting":
                found.append(traj)
        return found

    def parked_since(self) -> float | None:
        """Since when the turn that has waited longest for a target does so; None where nobody does."""
        while self._parked:
            since, ticket, traj = self._parked[0]
            if traj.ticket == ticket and traj.stage == "waiting":
                return since
            self._parked.popleft()
        return None

    def __len__(self) -> int:
        heaps = [lane.heap for lanes in self._lanes.values() for lane in lanes.values()]
        return sum(1 for heap in heaps for _, ticket, t in heap if t.ticket == ticket and t.stage == "waiting")
