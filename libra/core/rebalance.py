"""Running turns are looked at again: one that would finish much sooner elsewhere is cut at its next token and resumed there.

    started ──> due once every `review_s` ──> policy.rather_elsewhere? ──> CutTurn ──> TurnGenerated, "cut" ──> placed anew

A turn is placed with what is known when it begins, and a long one outlives that: engines fall idle, and that it is long shows
only as it goes on. What it has sampled so far is estimated from the pace of its engine, since engines tell only of whole
turns. At most one turn is looked at in one event, and one cut is on its way at a time, so that each decision sees what came
of the one before; a trajectory is cut `max_cuts` times at most. Called by `rollout`; only for policies that ask for it.
"""

from collections import deque
from collections.abc import Callable

from libra.config.schema import SchedulerConfig
from libra.core.commands import CutTurn
from libra.core.outbox import Outbox
from libra.core.placement import Placement
from libra.core.trajectory import Group, Trajectory

ALARM_MARGIN_S = 0.001
"""Added to a due time, so that rounding cannot make the alarm ring just before it."""


class Rebalance:
    def __init__(
        self, out: Outbox, config: SchedulerConfig, placement: Placement, floor: Callable[[Group], int]
    ) -> None:
        self.out = out
        self.placement = placement
        self.review_s = config.review_s
        self.max_cuts = config.max_cuts if placement.policy.rebalances else 0
        self._floor = floor
        self._due: deque[tuple[float, int, Trajectory]] = deque()
        """(when, the turn's `Generate`, trajectory) of running turns, in order of time; void once the turn is over."""
        self._cutting: Trajectory | None = None
        """Its running turn has been ordered to be cut."""
        self._alarm = False

    def started(self, traj: Trajectory) -> None:
        if traj.cuts < self.max_cuts:
            self._due.append((self.out.now + self.review_s, traj.awaited, traj))

    def over(self, traj: Trajectory) -> None:
        """Its running turn has ended, whatever ended it."""
        if traj is self._cutting:
            self._cutting = None

    def advance(self) -> None:
        """Look at one turn that is due."""
        if self._cutting is not None or (head := self._head()) is None:
            return
        if head[0] <= self.out.now:
            _, turn, traj = self._due.popleft()
            if self.placement.rather_elsewhere(traj, self._floor(traj.group), self.out.now):
                self._cutting = traj
                traj.cuts += 1
                self.out.put(CutTurn(self.out.next_seq(), traj.id, traj.engine, turn))
                return
            self.started(traj)
        if not self._alarm:
            self._set_alarm()

    def _head(self) -> tuple[float, int, Trajectory] | None:
        due = self._due
        while due:
            _, turn, traj = due[0]
            if traj.awaited == turn and traj.stage == "generating":
                return due[0]
            due.popleft()
        return None

    def _set_alarm(self) -> None:
        head = self._head()
        self._alarm = head is not None
        if head is not None:
            self.out.after(max(0.0, head[0] - self.out.now) + ALARM_MARGIN_S, self._ring)

    def _ring(self) -> None:
        """`advance` follows each event and does the work."""
        self._alarm = False
