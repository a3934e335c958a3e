"""A controller's control room around a real core in virtual time, with real sockets; and hand-made peers for it."""

import contextlib
import heapq
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
from virtual_shell import VirtualShell

from libra.config.schema import BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig
from libra.control.desk import Give
from libra.control.messages import PROTOCOL, Hello, ToOrderer, ToViewer, Watch
from libra.controller.control import ControlRoom
from libra.controller.rows import Liveness
from libra.core import events as e
from libra.telemetry.display import RunView
from libra.telemetry.summary import Tally
from libra.wire.frames import AsyncReader, Codec, pack
from libra.wire.messages import EngineStats

DEADLINE_S = 20.0


def small_config(**fields: Any) -> Config:
    return Config(
        run=RunConfig(name="job", steps=6),
        bucket=(BucketConfig(engines=2, max_batch=8, kv_tokens=2000),),
        rollout=RolloutConfig(groups_per_batch=3, samples_per_group=4),
        eval=EvalConfig(at_start=False, at_end=False),
        **fields,
    )


class Gauges:
    """What a screen would know."""

    def __init__(self, config: Config) -> None:
        self.view = RunView(run=config.run.name, mode=config.run.mode, seed=0, steps=config.run.steps)
        self.tally = Tally(config.run.name, config.run.mode, 0)

        self.stats: dict[int, EngineStats] = {}


class Room:
    """A run of the virtual shell that a control room follows, one event at a time; its clock is the run's."""

    def __init__(self, config: Config | None = None, give: Give | None = None, seed: int = 0, **shell: float) -> None:
        self.shell = VirtualShell(config or small_config(), seed, **shell)
        self.gauges = Gauges(self.shell.config)
        self.linked: dict[int, Liveness] = {}
        """What heartbeats tell."""
        self.log: list[str] = []
        """What the sockets' side had to say of bad links and faults."""
        core, now = self.shell.core, lambda: self.shell.now
        self.control = ControlRoom(core, self.gauges, self.linked, now, "beef", self.log.append, give)
        self.shell.at(0.0, e.RunStarted)
        for rank in range(1, self.shell.config.devices + 1):
            self.shell.at(self.shell.soon(), e.RankJoined, rank=rank, host="h", device="cpu")

    def step(self, events: int) -> None:
        """Handle so many events, or all that are left of the run."""
        shell = self.shell
        for _ in range(events):
            if not shell.heap or shell.end is not None:
                return
            shell.now, _, event = heapq.heappop(shell.heap)
            seen = len(shell.commands)
            shell.feed(event)
            for observer in (self.gauges.tally, self.control):
                observer.event(event)
                for command in shell.commands[seen:]:
                    observer.command(command)

    @contextlib.asynccontextmanager
    async def open(self, directory: Path, *, abrupt: bool = False) -> AsyncIterator["Room"]:
        """Its sockets listen, and its pointer stands. `abrupt`: in the end it does not wait for its peers to go."""
        opened = anyio.Event()
        (directory / "run").mkdir(exist_ok=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.control.run, directory, directory / "run", opened)
            with anyio.fail_after(DEADLINE_S):
                await opened.wait()
            yield self
            await until(lambda: abrupt or not any(self.control.server.links.values()))
            tasks.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    """Give the loop and the sockets time until it is so."""
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - sockets of two sides: no event tells
            await anyio.sleep(0.002)


class PeerLink:
    """One end of a socket that says whatever a test wants."""

    def __init__(self, stream: anyio.abc.ByteStream, vocabulary: object) -> None:
        self.stream = stream
        self._reader: AsyncReader[Any] = AsyncReader(stream, Codec(vocabulary))

    async def say(self, *messages: msgspec.Struct) -> None:
        await self.stream.send(b"".join(map(pack, messages)))

    async def raw(self, data: bytes) -> None:
        with contextlib.suppress(anyio.BrokenResourceError):
            await self.stream.send(data)

    async def hear(self) -> Any:
        with anyio.fail_after(DEADLINE_S):
            return await self._reader.receive()

    async def hear_until(self, kind: type) -> Any:
        while not isinstance(word := await self.hear(), kind):
            pass
        return word

    async def ended(self) -> bool:
        """Whether the other end closes, whatever it says before."""
        with anyio.move_on_after(DEADLINE_S):
            try:
                while True:
                    await self._reader.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return True
        return False


@contextlib.asynccontextmanager
async def link(directory: Path, which: str, *, greet: bool = True, small: bool = False) -> AsyncIterator[PeerLink]:
    """A link to view.sock or control.sock. `small`: its receive buffer holds next to nothing."""
    path = directory / f"{which}.sock"
    if small:
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.connect(str(path))
        stream: anyio.abc.SocketStream = await anyio.abc.UNIXSocketStream.from_socket(raw)
    else:
        stream = await anyio.connect_unix(path)
    async with stream:
        peer = PeerLink(stream, ToViewer if which == "view" else ToOrderer)
        if greet:
            await peer.say(Hello(PROTOCOL, "test"))
            await peer.hear()
        yield peer


@contextlib.asynccontextmanager
async def viewer(directory: Path, watch: Watch, *, small: bool = False) -> AsyncIterator[PeerLink]:
    async with link(directory, "view", small=small) as peer:
        await peer.say(watch)
        yield peer


def frame(body: bytes, length: int | None = None) -> bytes:
    """A frame, whose head may lie."""
    return struct.pack(">I", len(body) if length is None else length) + body
