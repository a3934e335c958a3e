"""An emulated share on its way: a socket of the replica's rank, and one of each core rank that asks.

    core rank ── Ask(token, incarnation, version) ──> replica's rank ── Told(loss tokens) ──> core rank

What is transferred is the count alone; the seconds of the bytes are the trainer's to wait. The connection is real, so that a
replica which hangs, is late or dies is noticed as with real bytes: by a deadline or a broken socket.
"""

import hmac
import socket
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from msgspec import Struct

from libra.errors import WireError
from libra.wire.frames import HELLO_FRAME_BYTES, BlockingReader, Codec, pack

ASK_S = 10.0
"""A connection that does not ask by then is closed."""


class Ask(Struct, frozen=True, tag=True):
    token: str
    incarnation: str
    version: int


class Told(Struct, frozen=True, tag=True):
    """`loss_tokens` are those of the whole replica; -1: this version is not offered (any more)."""

    loss_tokens: int


class ShareServer:
    """Serves the newest offer. `before` runs in the asker's thread before it is answered: where faults happen."""

    def __init__(self, token: str, incarnation: str, before: Callable[[], None]) -> None:
        self._secrets = (token, incarnation)
        self._before = before
        self._version = 0
        self._loss_tokens = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._socket.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def offer(self, loss_tokens: int) -> int:
        """Returns the version under which the share can be asked for."""
        self._loss_tokens = loss_tokens
        self._version += 1
        return self._version

    def _accept(self) -> None:
        while True:
            peer, _ = self._socket.accept()
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            peer.settimeout(ASK_S)
            try:
                ask = BlockingReader(peer, Codec[Ask](Ask)).receive(HELLO_FRAME_BYTES)
                if not all(map(hmac.compare_digest, (ask.token, ask.incarnation), self._secrets)):
                    return  # not of this run
                self._before()
                peer.sendall(pack(Told(self._loss_tokens if ask.version == self._version else -1)))
            except (OSError, EOFError, WireError):
                return  # the asker sees the end of the connection, and has its deadline


def fetch(sources: Sequence[str], token: str, incarnation: str, version: int, deadline_s: float) -> int:
    """Loss tokens of the share, told alike by every rank of the replica. Raises OSError (TimeoutError) with the reason."""
    until = monotonic() + deadline_s
    told: dict[str, int] = {}
    for source in sources:
        host, _, port = source.rpartition(":")
        left_s = max(0.001, until - monotonic())
        try:
            with socket.create_connection((host, int(port)), timeout=left_s) as peer:
                peer.sendall(pack(Ask(token, incarnation, version)))
                peer.settimeout(max(0.001, until - monotonic()))
                told[source] = BlockingReader(peer, Codec[Told](Told)).receive(HELLO_FRAME_BYTES).loss_tokens
        except TimeoutError:
            raise TimeoutError(f"no share from {source} within {deadline_s:g} s") from None
        except (EOFError, WireError) as e:
            raise ConnectionError(f"{source}: {e}") from e
    if len(set(told.values())) != 1 or -1 in told.values():
        raise ConnectionError(f"share {version} is not offered alike by all ranks of the replica: {told}")
    return next(iter(told.values()))
