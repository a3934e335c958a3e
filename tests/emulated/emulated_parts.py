"""Emulated roles in threads of the test: a link that keeps what they say, orders put by hand. Sockets of shares are real."""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from libra.config import load
from libra.config.schema import EmulatedFault, EmulationConfig
from libra.rank.emulated_role import EmulatedRole
from libra.sim.plan import plan
from libra.wire import messages as m

SPEED = 500.0
WAIT_S = 60.0
BASE = load(Path(__file__).parents[2] / "configs" / "emulated-8.toml")
BASE = structs.replace(BASE, bucket=plan(BASE).config.bucket)
M = TypeVar("M", bound=m.Message)


class StubLink:
    """What a role needs of its link, without processes."""

    def __init__(self, rank: int, role: Any, fault: EmulatedFault, bucket: int = -1, epoch: int = 0) -> None:
        self.config = structs.replace(BASE, emulation=EmulationConfig(speed=SPEED, fault=fault))
        self.spec = m.RoleSpec(rank, 1, role, epoch, 0, bucket, "incarnation", "token", "", "cpu", b"", True)
        self.orders: queue.Queue[object] = queue.Queue()
        self.progress = 0
        self.doing = ""
        self.said: queue.Queue[m.Message] = queue.Queue()
        self.send = self.said.put


class Running:
    """A role at work until the end of the `with`."""

    def __init__(
        self,
        make: Callable[[Any], EmulatedRole],
        rank: int,
        role: Any,
        fault: EmulatedFault | None = None,
        bucket: int = -1,
        epoch: int = 0,
    ) -> None:
        self.link = StubLink(rank, role, fault or EmulatedFault(), bucket, epoch)
        self.role = make(self.link)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.link.orders.put(m.Stop())
        self._thread.join(WAIT_S if self.link.spec.role != "gradient" else 1.0)  # one that hangs never comes back

    def _run(self) -> None:
        try:
            self.role.run()
        except BaseException as e:
            self.failure = e

    def order(self, *orders: m.Message) -> None:
        for order in orders:
            self.link.orders.put(order)

    def says(self, kind: type[M]) -> M:
        """The next message of this kind; gauges and others before it are passed over."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            try:
                said = self.link.said.get(timeout=0.1)
            except queue.Empty:
                assert self.failure is None, self.failure
                continue
            if isinstance(said, kind):
                return said
        raise AssertionError(f"no {kind.__name__} within {WAIT_S:g} s")

    def fails(self) -> BaseException:
        """Waits for the error that ends the role."""
        self._thread.join(WAIT_S)
        assert self.failure is not None
        return self.failure
