"""A real supervisor process, and a controller's end of its link played by the test: every frame is sent by hand."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from libra.config.schema import Config
from libra.wire import messages as m
from libra.wire.frames import BlockingReader, Codec, pack
from libra.wire.rendezvous import Meeting, announce

REPOSITORY = Path(__file__).parents[2]
RANK = 3
WAIT_S = 60.0
BAD_CONFIG = b"{"
"""A role with it ends at once, before it imports anything heavy."""


class Peer:
    """One accepted link."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_S)
        self.sock = sock
        self._reader: BlockingReader[Any] = BlockingReader(sock, Codec(m.ToController))

    def send(self, *messages: m.Message) -> None:
        self.sock.sendall(b"".join(map(pack, messages)))

    def receive(self) -> Any:
        return self._reader.receive()

    def next(self, kind: type) -> Any:
        """The next message of a kind; heartbeats are acknowledged, others on the way dropped."""
        while True:
            message = self.receive()
            if isinstance(message, m.Heartbeat):
                self.send(m.HeartbeatSeen(message.n))
            if isinstance(message, kind):
                return message

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def until_closed(self) -> None:
        try:
            while True:
                self.receive()
        except (EOFError, ConnectionError):
            self.sock.close()


class Supervised:
    """A supervisor of rank 3 whose controller listens at `address` until `close_controller`."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.address = str(tmp_path / "c.sock")
        meeting_place = tmp_path / "attempt_0"
        meeting_place.mkdir()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.address)
        self.listener.listen()
        self.listener.settimeout(WAIT_S)
        announce(Meeting(self.address, "secret", "abc"), meeting_place / "controller.json")
        code = f"import sys; from libra.rank.supervisor import main; sys.exit(main({RANK}, 10.0))"
        self.errors = tmp_path / "supervisor.txt"
        with self.errors.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=REPOSITORY,
                stderr=out,
                env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(meeting_place / "3" / "error.json")},
            )

    def __enter__(self) -> "Supervised":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.children():  # one that was stopped as it began has not asked yet to die with its parent
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.listener.close()

    def accept(self) -> tuple[Any, Peer]:
        """The next link and its hello."""
        peer = Peer(self.listener.accept()[0])
        return peer.receive(), peer

    def join(self, welcome: m.Welcome) -> Peer:
        """The supervisor's hello, answered."""
        hello, peer = self.accept()
        assert isinstance(hello, m.SupervisorHello)
        assert hello.roles == ()
        peer.send(welcome)
        return peer

    def close_controller(self) -> None:
        self.listener.close()
        Path(self.address).unlink()

    def order(self, start: int, role: Any = "rollout", config: Config | bytes = BAD_CONFIG) -> m.SpawnRole:
        encoded = config if isinstance(config, bytes) else msgspec.json.encode(config)
        spec = m.RoleSpec(RANK, start, role, 0, 0, 0, "abc", "secret", self.address, "cpu", encoded)
        return m.SpawnRole(start, spec, str(self.tmp_path / "logs" / f"{start}.log"))

    def log(self, start: int) -> str:
        path = self.tmp_path / "logs" / f"{start}.log"
        return path.read_text() if path.exists() else ""

    def children(self) -> dict[int, str]:
        """pid -> state of every process below it, zombies too."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == self.process.pid:
                    found[int(entry.name)] = fields[0]
        return found

    def until(self, what: str, condition: Any) -> Any:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {WAIT_S:g} s: {what}\n{self.errors.read_text()}")
