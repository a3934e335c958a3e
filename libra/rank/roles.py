"""The processes below one supervisor: two roles at most, and one spare.

    SpawnRole ──> the spare if it is ready, else a fresh child ──> role, by its `start` ──> ChildExited
                  └── a new spare, once no role is on its way and some time has passed

Two roles, because where memory allows a rank's next role prepares while the present one still serves. The spare is made of
what others leave of the processor (`libra.rank.preload`), and not at all beside a trainer, whose rank never gets another role.
"""

import sys
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from libra.errors import LibraError
from libra.rank.child import Child
from libra.wire import messages as m

MAX_ROLES = 2
QUIET_S = 1.0
"""From the last order until a spare is begun: the first order comes with the welcome, and orders come in pairs."""
REAP_S = 10.0
"""The longest that a killed process may take to be gone."""


class Roles:
    """`exited` tells the end of a role to whoever gave the order."""

    def __init__(self, tasks: anyio.abc.TaskGroup, exited: Callable[[m.ChildExited], Awaitable[None]]) -> None:
        self.spare: Child | None = None
        self._roles: dict[int, Child] = {}
        self._tasks = tasks
        self._exited = exited
        self._last_order_s = time.monotonic()
        self._welcome = m.Welcome(0.0)
        self._no_spare = False
        """A spare could not be made; the next order is reason enough to try again."""

    def welcome(self, welcome: m.Welcome) -> None:
        """What the controller wants children to be like."""
        self._welcome, self._last_order_s = welcome, time.monotonic()

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(self._roles)

    @property
    def beats(self) -> tuple[m.RoleBeat, ...]:
        return tuple(m.RoleBeat(start, child.beats, child.doing) for start, child in self._roles.items())

    @property
    def has_spare(self) -> bool:
        """One is ready to take the next order."""
        return self.spare is not None and self.spare.ready

    @property
    def core(self) -> bool:
        """One of them is of the trainer core."""
        return any(not child.leased for child in self._roles.values())

    async def spawn(self, order: m.SpawnRole, until_s: float) -> None:
        """Begin a role whose first lease runs until `until_s`. A third is refused as one that ended at once."""
        if len(self._roles) >= MAX_ROLES:
            held = " and ".join(map(str, self._roles))
            why = f"rank {order.spec.rank} holds the roles of starts {held}, expected at most one: end one first"
            await self._exited(m.ChildExited(order.start, 1, why))
            return
        self._last_order_s, self._no_spare = time.monotonic(), False
        if self.spare is not None and self.spare.ready:
            child, self.spare = self.spare, None
        else:
            child = await self._start("nothing")
        self._roles[order.start] = child
        self._tasks.start_soon(child.pass_leases)
        await child.give(order, until_s)

    def extend(self, until_s: float) -> None:
        for child in self._roles.values():
            child.extend(until_s)

    def kill(self, order: m.KillRole) -> None:
        """End one role; its exit is reported as any other."""
        if (child := self._roles.get(order.start)) is not None:
            self._tasks.start_soon(child.end, order.grace_s)

    async def end(self, grace_s: float) -> None:
        """End all, in good order."""
        self._drop_spare()
        async with anyio.create_task_group() as tasks:
            for child in self._roles.values():
                tasks.start_soon(child.end, grace_s)

    async def clear(self) -> None:
        """End all roles now; the spare, which has no part in anything, stays. LibraError where one cannot be killed."""
        children = list(self._roles.values())
        self.kill_all(spare=False)
        with anyio.move_on_after(REAP_S):
            for child in children:
                await child.gone.wait()
        if self._roles:
            raise LibraError(f"the roles of starts {self.starts} are not gone {REAP_S:g} s after SIGKILL")

    def kill_all(self, spare: bool = True) -> None:
        """At once, without waiting."""
        for child in self._roles.values():
            child.kill()
        if spare:
            self._drop_spare()

    def _drop_spare(self) -> None:
        if self.spare is not None:
            self.spare.kill()
            self.spare = None

    async def keep_spare(self) -> None:
        """Begin one where it is wanted and disturbs least. Called with every heartbeat."""
        working = all(child.beats > 0 for child in self._roles.values())
        quiet = time.monotonic() - self._last_order_s > QUIET_S
        if working and quiet and not (self.spare or self.core or self._no_spare):
            self.spare = await self._start(self._welcome.preload)

    async def _start(self, preload: str) -> Child:
        with anyio.CancelScope(shield=True):  # milliseconds; a child that nobody has would be nobody's to reap
            child = await Child.start(preload, self._welcome.threads)
        self._tasks.start_soon(child.listen)
        self._tasks.start_soon(self._watch, child)
        return child

    async def _watch(self, child: Child) -> None:
        """Report how it ended. Its last words go along: they are usually the reason."""
        code = await child.watch()
        words = child.last_words()
        if child.order is not None:
            del self._roles[child.order.start]
            await self._exited(m.ChildExited(child.order.start, code, words))
        elif child is self.spare:
            self.spare, self._no_spare = None, True
            print(f"libra: a spare child ended with {code}, roles start without one:\n{words}", file=sys.stderr)
