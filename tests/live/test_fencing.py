"""What the controller lets in: ranks without roles, role processes of the present start, and nobody else's word.

The controller's own shell and server run here; supervisors and roles are links played by the test.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from libra.config import load
from libra.controller.clock import Clock
from libra.controller.links import Server, welcome
from libra.controller.screen import Screen
from libra.controller.shell import Shell
from libra.controller.world import world_of
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.telemetry.display import open_display
from libra.telemetry.journal import Head, JournalReader, JournalWriter
from libra.telemetry.logs import RunLog
from libra.telemetry.metrics import MetricsWriter
from libra.telemetry.summary import Tally
from libra.wire import messages as m
from libra.wire.frames import AsyncReader, Codec, pack
from libra.wire.rendezvous import Meeting

CONFIG = Path(__file__).parents[2] / "configs/quickstart.toml"
RANK = 3
"""An engine's."""
WAIT_S = 20.0


class Link:
    def __init__(self, stream: anyio.abc.SocketStream, vocabulary: Any) -> None:
        self.stream = stream
        self._reader: AsyncReader[Any] = AsyncReader(stream, Codec(vocabulary))

    async def send(self, message: m.Message) -> None:
        await self.stream.send(pack(message))

    async def receive(self) -> Any:
        with anyio.fail_after(WAIT_S):
            return await self._reader.receive()

    async def next(self, kind: type) -> Any:
        while not isinstance(message := await self.receive(), kind):
            pass
        return message

    async def assert_closed(self) -> None:
        """It ends, whatever was still on its way."""
        try:
            while True:
                await self.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            await self.stream.aclose()


class Controller:
    """Rank 0 without torchrun: what is connected to it is real."""

    def __init__(self, shell: Shell, meeting: Meeting, run_dir: Path) -> None:
        self.shell = shell
        self.meeting = meeting
        self.run_dir = run_dir

    async def supervisor(self, roles: tuple[int, ...] = ()) -> Link:
        link = Link(await anyio.connect_unix(self.meeting.address), m.ToSupervisor)
        known = self.meeting
        await link.send(
            m.SupervisorHello(m.PROTOCOL, known.token, known.incarnation, RANK, socket.gethostname(), 1, roles)
        )
        return link

    async def role(self, start: int) -> Link:
        link = Link(await anyio.connect_unix(self.meeting.address), m.ToRole)
        await link.send(m.RoleHello(m.PROTOCOL, self.meeting.token, self.meeting.incarnation, RANK, start, 1))
        return link

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S):
            while not condition():  # noqa: ASYNC110 (what it waits for is a file)
                await anyio.sleep(0.01)

    def events(self, kind: type) -> list[Any]:
        return [event for event, _ in JournalReader(self.run_dir / "journal") if isinstance(event, kind)]


@asynccontextmanager
async def controller(run_dir: Path) -> AsyncIterator[Controller]:
    config = load(CONFIG)
    meeting = Meeting(str(run_dir / "c.sock"), "secret", "abc")
    tally = Tally(config.run.name, config.run.mode, config.run.seed)
    with (
        JournalWriter(run_dir / "journal", Head.of(config, meeting.incarnation)) as journal,
        MetricsWriter(run_dir / "metrics.jsonl") as metrics,
        RunLog(run_dir / "controller.log", anyio.current_time) as log,
        open_display() as display,
    ):
        world, clock = world_of(config), Clock()
        async with anyio.create_task_group() as tasks:
            screen = Screen(config, display, log, metrics, tally)
            shell = Shell(Core(world.core_config), world, run_dir, meeting, journal, tally, screen, tasks, clock)
            async with await anyio.create_unix_listener(meeting.address) as listener:
                tasks.start_soon(listener.serve, Server(meeting, shell.serve, welcome(config)).accept)
                shell.runtime.post(e.RunStarted(0.0))
                yield Controller(shell, meeting, run_dir)
                tasks.cancel_scope.cancel()


def with_controller(run_dir: Path, check: Callable[[Controller], Awaitable[None]]) -> None:
    async def run() -> None:
        async with controller(run_dir) as run:
            await check(run)

    anyio.run(run)


async def joined(run: Controller) -> tuple[Link, Link, int]:
    """A supervisor, its role, and the start of that."""
    supervisor = await run.supervisor()
    assert await supervisor.receive() == welcome(run.shell.config)
    order = await supervisor.next(m.SpawnRole)
    role = await run.role(order.start)
    await run.until(lambda: [x.cmd for x in run.events(e.RoleReady)] == [order.start])
    return supervisor, role, order.start


def test_every_heartbeat_is_acknowledged(tmp_path: Path) -> None:
    async def check(run: Controller) -> None:
        supervisor, _, _ = await joined(run)
        for n in range(3):
            await supervisor.send(m.Heartbeat(n))
            assert (await supervisor.next(m.HeartbeatSeen)).n == n

    with_controller(tmp_path, check)


def test_a_rank_that_returns_while_its_old_link_stands_is_lost_first_and_its_role_is_cut_off(tmp_path: Path) -> None:
    async def check(run: Controller) -> None:
        old, role, start = await joined(run)
        new = await run.supervisor()
        again = (await new.next(m.SpawnRole)).start
        assert again > start
        await old.assert_closed()
        await role.assert_closed()
        late = await run.role(start)
        assert "does not run the role of start" in (await late.next(m.Refused)).reason
        await late.assert_closed()
        await run.role(again)
        await run.until(lambda: [x.cmd for x in run.events(e.RoleReady)] == [start, again])
        (lost,) = run.events(e.RankLost)
        assert lost.reason == "its supervisor came back on a new link"

    with_controller(tmp_path, check)


def test_a_rank_that_went_silent_is_lost_with_its_role_and_taken_back_later(tmp_path: Path) -> None:
    async def check(run: Controller) -> None:
        supervisor, role, start = await joined(run)
        run.shell.monitor._check(anyio.current_time() + run.shell.config.deadline.lost_s + 1)
        await supervisor.assert_closed()
        await role.assert_closed()
        await run.until(lambda: len(run.events(e.RankLost)) == 1)
        assert "no heartbeat for 10 s" in run.events(e.RankLost)[0].reason
        back = await run.supervisor()
        assert (await back.next(m.SpawnRole)).start > start

    with_controller(tmp_path, check)


def test_a_supervisor_that_still_holds_roles_is_refused(tmp_path: Path) -> None:
    async def check(run: Controller) -> None:
        supervisor = await run.supervisor(roles=(7,))
        assert "rank 3 still holds roles of starts 7, expected none" in (await supervisor.receive()).reason
        await supervisor.assert_closed()
        assert run.events(e.RankJoined) == []

    with_controller(tmp_path, check)


def test_a_supervisor_that_comes_when_the_run_is_over_is_sent_home(tmp_path: Path) -> None:
    async def check(run: Controller) -> None:
        run.shell.carry_out(c.FinishRun(1, True, "done"))
        supervisor = await run.supervisor()
        assert isinstance(await supervisor.receive(), m.Welcome)
        assert isinstance(await supervisor.receive(), m.Shutdown)

    with_controller(tmp_path, check)
