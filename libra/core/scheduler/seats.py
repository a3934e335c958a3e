"""Which engine each trajectory belongs to; moves are transactional.

    reserve(target) ──> commit: the generation began there, the source's seat is free
                   └──> rollback: it did not (the target died, the turn was given up); the source's seat was never given up

A trajectory keeps its seat while its tool runs, so seats show where trajectories will come back to. (The KV *room* of a turn
is another book: `EngineLoad` holds it while the turn runs.)
"""

from collections import defaultdict

from libra.errors import CoreError


class Seats:
    """`active[engine]` counts the trajectories that are seated or expected there; 0 of an engine never heard of."""

    def __init__(self) -> None:
        self.active: defaultdict[int, int] = defaultdict(int)
        self._home: dict[int, int] = {}
        self._target: dict[int, int] = {}

    def home(self, traj: int) -> int:
        """The engine of the last turn that was committed; -1 before the first."""
        return self._home.get(traj, -1)

    def reserve(self, traj: int, engine: int) -> None:
        if traj in self._target:
            raise CoreError(
                f"seats: trajectory {traj} is already expected on engine {self._target[traj]}, now also on {engine}"
            )
        self._target[traj] = engine
        if engine != self._home.get(traj):
            self.active[engine] += 1

    def commit(self, traj: int) -> None:
        target = self._take(traj)
        home = self._home.get(traj)
        if home is not None and home != target:
            self.active[home] -= 1
        self._home[traj] = target

    def rollback(self, traj: int) -> None:
        target = self._take(traj)
        if target != self._home.get(traj):
            self.active[target] -= 1

    def finish(self, traj: int) -> None:
        """The trajectory is over, whatever it was doing."""
        if traj in self._target:
            self.rollback(traj)
        home = self._home.pop(traj, None)
        if home is not None:
            self.active[home] -= 1

    def removed(self, engine: int) -> None:
        """The engine is gone for good: nobody is seated there any more. Nobody may be expected there."""
        for traj in [t for t, home in self._home.items() if home == engine]:
            del self._home[traj]
        self.active.pop(engine, None)

    def _take(self, traj: int) -> int:
        target = self._target.pop(traj, None)
        if target is None:
            raise CoreError(f"seats: trajectory {traj} is expected on no engine; reserve one first")
        return target
