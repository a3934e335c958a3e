"""What all emulated roles are: a loop that takes orders and does what falls due, in run seconds.

    orders ──> take(order) ──> at(t, action) ──> heap ──(t has come)──> action ──> answers

A device's own time is exact: an action happens *at* its t, whatever the real clock says by then, so a busy laptop makes
answers late and devices no slower. The formulas are the simulator's. No torch, unless a test asks for real groups.
"""

import heapq
import itertools
import queue
import time
from collections.abc import Callable

from libra.config.schema import Config, CostConfig
from libra.errors import RoleError
from libra.rank.link import IDLE_S, RoleLink
from libra.wire import messages as m


class EmulatedRole:
    """`take` is the role's own; `now` is its time in run seconds, from its start."""

    def __init__(self, link: RoleLink) -> None:
        self.link = link
        self.config: Config = link.config
        self.now = 0.0
        self.index = 0
        """Among the members of its group."""
        self.size = 1
        self._speed = self.config.emulation.speed
        self._began = time.monotonic()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._n = itertools.count()

    @property
    def cost(self) -> CostConfig:
        if self.config.cost is None:
            raise RoleError("an emulated role needs [cost]: it takes its seconds from there")
        return self.config.cost

    def at(self, t: float, action: Callable[[], None]) -> None:
        """Do `action` once the run's clock reads `t`."""
        heapq.heappush(self._due, (t, next(self._n), action))

    def run(self) -> None:
        """Until Stop."""
        while True:
            order = self._next_order()
            self.link.progress += 1
            self._catch_up()
            while order is not None:  # all that came together is taken at the same time
                if isinstance(order, m.Stop):
                    return
                self.take(order)
                order = self._next_order(wait=False)

    def take(self, order: object) -> None:
        """Carry out an order, or a note of one of the role's own threads."""
        match order:
            case m.FormMembers():
                self.link.doing = m.FORMING
                self._form(order)
                self.link.doing = "idle"
            case _:
                raise TypeError(f"{type(self).__name__} cannot take the order {type(order).__name__}")

    def _next_order(self, wait: bool = True) -> object | None:
        """The next order; None where something falls due before, or nothing comes for `IDLE_S`."""
        wait_s = IDLE_S if wait else 0.0
        if wait and self._due:
            wait_s = min(wait_s, (self._due[0][0] - self._clock()) / self._speed)
        try:
            return self.link.orders.get(timeout=wait_s) if wait_s > 0 else self.link.orders.get_nowait()
        except queue.Empty:
            return None

    def _catch_up(self) -> None:
        """All that has fallen due, each at its own time; then it is now."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = now

    def _clock(self) -> float:
        return (time.monotonic() - self._began) * self._speed

    def _form(self, order: m.FormMembers) -> None:
        self.index, self.size = order.index, order.size
        if self.config.emulation.real_groups:
            import torch

            from libra.rank.group import join_group

            join_group(order, torch.device("cpu"), self.config.deadline.group_s)
        self.link.send(m.Formed(order.cmd))
