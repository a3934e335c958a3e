"""A role's end of the pipe to its supervisor.

    supervisor ── SpawnRole once, then leases; EOF = end ──> listening thread
    supervisor <── beats ── whoever has one to send

Until its order comes the process is a spare, which only waits. The listening thread runs from the order on, also while the role
still imports, so a supervisor that closes the pipe never waits for that.
"""

import os
import socket
import threading
from typing import NoReturn

from libra.rank.lease import LeaseGuard
from libra.wire import messages as m
from libra.wire.frames import BlockingReader, Codec, pack


class SupervisorPipe:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader: BlockingReader[m.SpawnRole | m.Lease] = BlockingReader(sock, Codec(m.ToChild))
        self.lease = LeaseGuard(
            lambda: leave(1, "its lease has lapsed: no word from the controller reached the supervisor")
        )

    def order(self) -> m.SpawnRole:
        """Wait for what this process is to be. Without one there is nothing to live for."""
        try:
            order = self._reader.receive()
        except (EOFError, OSError):
            leave(0, "the supervisor closed the pipe")
        if not isinstance(order, m.SpawnRole):
            leave(1, f"the first frame on the pipe must be SpawnRole, got {type(order).__name__}")
        threading.Thread(target=self._listen, daemon=True).start()
        return order

    def beat(self, beats: int, doing: str) -> None:
        try:
            self._sock.sendall(pack(m.Beat(beats, doing)))
        except OSError:
            leave(1, "the supervisor is gone")

    def _listen(self) -> None:
        try:
            while True:
                message = self._reader.receive()
                if isinstance(message, m.Lease):
                    self.lease.extend(message.until_s)
        except (EOFError, OSError):
            leave(0, "the supervisor closed the pipe")
        except Exception as e:
            leave(1, f"the pipe to the supervisor broke: {e}")


def leave(code: int, why: str) -> NoReturn:
    """End this process from any thread, without the destructors that a hung collective could block."""
    print(f"role ends with {code}: {why}", flush=True)
    os._exit(code)
