"""Liveness: silence and standstill become events. It checks, and never assumes.

A supervisor that sends no heartbeat for `lost_s` is lost, whatever its process does; a role whose progress count stands
still for `stalled_s` is stalled, whatever its process says (before its first progress it is starting, and later it forms its
group and makes its engine: the core has deadlines for both). Time while the controller itself could not run (a stopped
process, a suspended machine) is not held against anybody.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from libra.config.schema import DeadlineConfig
from libra.core import events as e
from libra.wire.messages import FORMING, Heartbeat

CHECK_S = 0.5


@dataclass(slots=True)
class Progress:
    """One role of a rank, as its beats tell it. Times are seconds of the run's clock."""

    moved: float
    beats: int = -1
    doing: str = ""
    reported: bool = False


@dataclass(slots=True)
class Watched:
    """One rank and its roles by their start: two while the next one prepares beside the present one."""

    close: Callable[[], None]
    seen: float
    roles: dict[int, Progress] = field(default_factory=dict[int, Progress])


class Monitor:
    def __init__(
        self, deadline: DeadlineConfig, clock: Callable[[], float], post: Callable[[e.RoleStalled], None]
    ) -> None:
        self._deadline = deadline
        self._clock = clock
        self._post = post
        self.linked: dict[int, Watched] = {}
        """The ranks that are: for others to look at."""
        self._why: dict[int, str] = {}

    def joined(self, rank: int, close: Callable[[], None]) -> None:
        """`close` cuts the rank's link off; its end is then reported as the loss of the rank."""
        self.linked[rank] = Watched(close, self._clock())
        self._why.pop(rank, None)

    def left(self, rank: int) -> None:
        self.linked.pop(rank, None)

    def why(self, rank: int) -> str:
        """Why the link of a rank was cut off; "" where the rank itself closed it."""
        return self._why.get(rank, "")

    def role_started(self, rank: int, start: int) -> None:
        if (watched := self.linked.get(rank)) is not None:
            watched.roles[start] = Progress(self._clock())

    def role_ended(self, rank: int, start: int) -> None:
        if (watched := self.linked.get(rank)) is not None:
            watched.roles.pop(start, None)

    def heartbeat(self, rank: int, heartbeat: Heartbeat) -> None:
        watched = self.linked.get(rank)
        if watched is None:
            return  # it was cut off; this had been on its way
        watched.seen = self._clock()
        for beat in heartbeat.roles:
            role = watched.roles.get(beat.start)
            if role is not None:
                role.doing = beat.doing
                if beat.beats != role.beats:
                    role.beats, role.moved = beat.beats, watched.seen

    async def run(self) -> None:
        before = self._clock()
        while True:
            await anyio.sleep(CHECK_S)
            now = self._clock()
            self._forgive(now - before - CHECK_S)
            before = now
            self._check(now)

    def _forgive(self, late_s: float) -> None:
        if late_s > CHECK_S:
            for watched in self.linked.values():
                watched.seen += late_s
                for role in watched.roles.values():
                    role.moved += late_s

    def _check(self, now: float) -> None:
        for rank, watched in list(self.linked.items()):
            if now - watched.seen > self._deadline.lost_s:
                self._why[rank] = f"no heartbeat for {self._deadline.lost_s:g} s"
                watched.close()
                self.left(rank)
                continue
            for start, role in watched.roles.items():
                if role.doing == FORMING:
                    role.moved = now
                elif role.beats > 0 and not role.reported and now - role.moved > self._deadline.stalled_s:
                    role.reported = True
                    reason = f"no progress for {self._deadline.stalled_s:g} s (last: {role.doing or 'nothing'})"
                    self._post(e.RoleStalled(now, rank, start, reason))
