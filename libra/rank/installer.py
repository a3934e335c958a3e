"""Pulls weights in a thread of its own, so that the main thread goes on; what came is left as a note among its orders.

    Install ──> main thread ──> puller thread: pull over its own links ──> Pulled ──> main thread ──> Installed

One installation at a time, as the controller orders them. Called by the rollout and gradient roles.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from libra.errors import WeightsError
from libra.rank.link import RoleLink
from libra.weights.puller import Puller
from libra.wire import messages as m

W = TypeVar("W")


@dataclass(frozen=True)
class Pulled(Generic[W]):
    """A version is here: `weights` in the pull's own form. None: it is not, and `reason` says why."""

    order: m.Install
    version: int
    weights: W | None
    began: float
    reason: str = ""


class Installer(Generic[W]):
    """`pull(puller, order)` gives the version that came, which may be newer than the one ordered, and its weights."""

    def __init__(self, link: RoleLink, pull: Callable[[Puller, m.Install], tuple[int, W]]) -> None:
        self._link = link
        self._pull = pull
        self._puller = Puller(link.spec.token, link.spec.incarnation)
        self._orders: queue.Queue[m.Install] = queue.Queue(maxsize=1)
        threading.Thread(target=self._run, name="installer", daemon=True).start()

    def begin(self, order: m.Install) -> None:
        """Leaves a `Pulled` among the role's orders when done."""
        self._orders.put_nowait(order)

    def end(self, pulled: Pulled[W], install: Callable[[int, W], None]) -> None:
        """Installs what came, in the caller's thread, and answers the order."""
        if pulled.weights is None:
            self._link.send(m.InstallFailed(pulled.order.cmd, pulled.order.version, pulled.reason))
            return
        install(pulled.version, pulled.weights)
        self._link.send(m.Installed(pulled.order.cmd, pulled.version, time.monotonic() - pulled.began))

    def _run(self) -> None:
        while True:
            order = self._orders.get()
            began = time.monotonic()
            try:
                version, weights = self._pull(self._puller, order)
                note = Pulled(order, version, weights, began)
            except WeightsError as e:
                note = Pulled(order, order.version, None, began, str(e))
            self._link.orders.put(note)
