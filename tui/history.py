"""What a snapshot does not hold: how busy each rank was in the last steps, and the last minutes' throughput.

Busy: a trainer or gradient rank for the seconds that it reported, an engine's rank while a turn ran on it.
Made of differences of a snapshot's counters, so a state that was missed costs nothing but resolution. Bounded: COLUMNS steps
of one byte a rank, and POINTS points. A column is one step, or several where states came more seldom than steps.
"""

from collections import deque

from libra.control.snapshot import Snapshot

COLUMNS = 96
POINTS = 240
LEAST_S = 0.4
"""Of a step that a column is made of: over less, one report makes it all or nothing."""
UNKNOWN_LEVEL = 255
LEVELS = 100


class Column:
    """One step: `levels[rank]` is the share of its time that the rank was busy, 0 to LEVELS, or UNKNOWN_LEVEL."""

    __slots__ = ("levels", "step")

    def __init__(self, step: int, levels: bytes) -> None:
        self.step = step
        self.levels = levels

    def of(self, rank: int) -> int:
        return self.levels[rank] if rank < len(self.levels) else UNKNOWN_LEVEL


class History:
    def __init__(self) -> None:
        self.columns: deque[Column] = deque(maxlen=COLUMNS)
        """Of steps that are over, oldest first."""
        self.open: Column | None = None
        """Of the step that runs."""
        self.tokens_per_s: deque[float | None] = deque(maxlen=POINTS)
        self._base: tuple[float, int, dict[int, float]] | None = None
        self._t = -1.0
        self._working: dict[int, float] = {}
        """Seconds of the open step in which the rank's engine ran something."""

    def take(self, s: Snapshot) -> None:
        """The next state. One of another time (a replay that went back) begins anew."""
        if s.t < self._t:
            self.columns.clear()
            self.tokens_per_s.clear()
            self._base = None
            self._working.clear()
            self._t = s.t
        if s.t == self._t and self._base is not None:
            return
        passed, self._t = s.t - self._t, s.t
        self.tokens_per_s.append(s.run.tokens_per_s)
        busy = {r.rank: r.busy_s for r in s.ranks if r.role != "rollout"}
        if self._base is None:
            self._base = (s.t, s.run.step, busy)
            return
        began, step, before = self._base
        for engine in s.engines:
            for rank in engine.ranks:
                self._working[rank] = self._working.get(rank, 0.0) + (passed if engine.running else 0.0)
        elapsed = s.t - began
        if elapsed < LEAST_S and s.run.step == step:
            return
        levels = bytearray(b"\xff" * (max((r.rank for r in s.ranks), default=-1) + 1))
        for rank, seconds in self._working.items():
            levels[rank] = min(LEVELS, round(LEVELS * seconds / max(elapsed, 1e-9)))
        for rank, now in busy.items():
            gained = now - before.get(rank, now)
            if gained >= 0:  # else its process began anew, and its counter with it
                levels[rank] = min(LEVELS, round(LEVELS * gained / max(elapsed, 1e-9)))
        self.open = Column(step, bytes(levels))
        if s.run.step != step:
            self.columns.append(self.open)
            self.open = None
            self._base = (s.t, s.run.step, busy)
            self._working.clear()

    def newest(self, count: int) -> list[Column]:
        """The last columns, oldest first, the open one among them."""
        shown = [*self.columns, *([self.open] if self.open is not None else [])]
        return shown[-count:] if count > 0 else []
