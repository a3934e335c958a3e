"""The control room of a live run: opens the sockets, points to them, and ties snapshots, news and orders to the shell.

    runtime ──> follower ──> hub ──> view.sock ──> viewers
    control.sock ──> desk ── give ──> core                       runs/NAME/control.json says where both are

Both sockets are in the run's private directory: control.sock the user's alone, view.sock also open to the configured group.
"""

import grp
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.abc

from libra.config.rundir import own_pid
from libra.config.schema import Config
from libra.control.desk import Give, OrderDesk, describe
from libra.control.hub import Hub
from libra.control.messages import PROTOCOL, DraftAnswer, OrderAnswer, OrderRequest
from libra.control.pointer import Pointer, remove_pointer, write_pointer
from libra.control.server import ControlServer
from libra.control.state import LiveState
from libra.controller import view
from libra.controller.follow import Follower
from libra.controller.rows import Liveness
from libra.controller.turns import Turns
from libra.core import commands as c
from libra.core import events as e
from libra.core.allocation import Refused
from libra.core.coordinator import Core
from libra.core.orders import Order

BACKLOG = 64


def viewers_group(config: Config) -> int | None:
    """The number of the group that may look; None where nobody but the user may."""
    return grp.getgrnam(config.control.group).gr_gid if config.control.group else None


class ControlRoom:
    """`give` hands orders to the core, None while it takes none; its answers come through `desk.answered`.

    `linked`: what heartbeats tell of the ranks that are; `wall`: what they are timed with, where that is not the run's clock.
    """

    def __init__(
        self,
        core: Core,
        gauges: view.Gauges,
        linked: Mapping[int, Liveness],
        clock: Callable[[], float],
        incarnation: str,
        log: Callable[[str], None],
        give: Give | None = None,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self.core = core
        self.follower = Follower(core, self._publish, self._wants_decisions)
        self.turns = Turns(core)
        self._clock = clock
        looker = view.Looker(core, self.follower, gauges, linked, clock, wall or clock)
        self.hub = Hub(looker.snapshot, lambda traj: self.turns.detail(traj, round(clock(), 4)), clock)
        self.desk = OrderDesk(core.config.control.override, give, partial(view.epoch, core), self._answered)
        self.server = ControlServer(core.config.run.name, incarnation, self.hub, self.desk, self, log)
        self._incarnation = incarnation

    # --- an observer of the runtime

    def event(self, event: e.AnyEvent) -> None:
        self.follower.event(event)
        self.turns.event(event)

    def command(self, command: c.Command) -> None:
        self.follower.command(command)
        self.turns.command(command)

    # --- what a viewer asks

    def draft(self, id: str, order: Order) -> DraftAnswer:
        """By the core's own rules; nothing is done."""
        epoch = self.core.fleet.epoch
        try:
            return DraftAnswer(id, True, "", tuple(self.core.elastic.draft(order, self.core.ready)), epoch)
        except Refused as x:
            return DraftAnswer(id, False, str(x), (), epoch)

    def state(self) -> LiveState:
        return self.turns.state(round(self._clock(), 4))

    # ---

    def _publish(self, *news: object) -> None:
        self.hub.publish(*news)  # type: ignore[arg-type]

    def _wants_decisions(self) -> bool:
        return self.hub.wants("decision")

    def _answered(self, request: OrderRequest, answer: OrderAnswer, author: str) -> None:
        verdict = "accepted" if answer.accepted else f"refused: {answer.reason}"
        data = {"id": answer.id, "accepted": answer.accepted, "reason": answer.reason, "author": author}
        data |= {"expected_epoch": request.expected_epoch, "epoch": answer.epoch}
        self.hub.publish("order", "info", f"{describe(request)} by {author}: {verdict}", data)

    async def run(self, directory: Path, run_dir: Path, opened: anyio.Event | None = None) -> None:
        """Serve until cancelled. The pointer stands as long as the sockets listen."""
        paths = directory / "view.sock", directory / "control.sock"
        async with AsyncExitStack() as stack:
            viewers, orderers = [
                await stack.enter_async_context(await anyio.create_unix_listener(path, mode=0o600, backlog=BACKLOG))
                for path in paths
            ]
            if (group := viewers_group(self.core.config)) is not None:
                os.chown(paths[0], -1, group)
                paths[0].chmod(0o660)
            write_pointer(run_dir, _pointer(self._incarnation, paths))
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(viewers.serve, self.server.accept_viewer)
                    tasks.start_soon(orderers.serve, self.server.accept_orderer)
                    if opened is not None:
                        opened.set()
            finally:
                remove_pointer(run_dir)


def _pointer(incarnation: str, paths: tuple[Path, Path]) -> Pointer:
    me = own_pid()
    return Pointer(PROTOCOL, me.host, me.pid, me.start_ticks, incarnation, str(paths[0]), str(paths[1]))
