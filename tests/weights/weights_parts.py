"""Real parts for the tests of weights: cut models, a proxy that misbehaves between source and puller, a raw reader."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch

from libra.weights.layout import PROTOCOL, Hello, Pull, Reply, Shard
from libra.weights.publisher import Publisher
from libra.wire.frames import BlockingReader, Codec, pack

TOKEN, INCARNATION = "token", "incarnation"
BIG = 6_000_000
"""Elements of a float32 tensor (24 MB) that no socket buffers can swallow whole."""


def cut(model: dict[str, torch.Tensor], ranks: int) -> list[list[Shard]]:
    """Each tensor in `ranks` parts as even as whole elements allow; the last ranks hold nothing of small ones."""
    parts: list[list[Shard]] = [[] for _ in range(ranks)]
    for name, tensor in model.items():
        flat = tensor.reshape(-1)
        size = -(-flat.numel() // ranks)
        for rank in range(ranks):
            start = min(rank * size, flat.numel())
            parts[rank].append(Shard(name, tuple(tensor.shape), start, flat[start : start + size]))
    return parts


def filled(version: int, elements: int = BIG) -> list[Shard]:
    """One tensor in which every value is the version."""
    return [Shard("w", (elements,), 0, torch.full((elements,), float(version)))]


@contextmanager
def publishers(n: int, **options: object) -> Iterator[list[Publisher]]:
    with ExitStack() as stack:
        made = [Publisher(token=TOKEN, incarnation=INCARNATION, **options) for _ in range(n)]  # type: ignore[arg-type]
        for publisher in made:
            stack.callback(publisher.close)
        yield made


class Proxy:
    """Forwards links to `target`. `tap(total, data)` sees what comes from the source and returns what to pass on.

    `total` counts the link's bytes before `data`; a tap may block, which stalls the link, or raise EOFError to cut it.
    """

    def __init__(self, target: str, tap: Callable[[int, bytes], bytes]) -> None:
        self._target = target
        self._tap = tap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._socks: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        host, _, port = self._target.rpartition(":")
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.socket()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                far.connect((host, int(port)))
            except OSError:
                return
            self._socks += [near, far]
            threading.Thread(target=self._pump, args=(near, far, lambda _, data: data), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, self._tap), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, tap: Callable[[int, bytes], bytes]) -> None:
        total = 0
        with suppress(OSError, EOFError):  # either end may leave: that is what these tests are about
            while data := source.recv(1 << 16):
                sink.sendall(tap(total, data))
                total += len(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in (self._listener, *self._socks):
            with suppress(OSError):  # it may be closed or unconnected by now
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class RawReader:
    """A reader that does only what a test tells it to."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.socket()
        self.sock.settimeout(30)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.sock.connect((host, int(port)))
        self.sock.sendall(pack(Hello(PROTOCOL, TOKEN, INCARNATION)))
        self.messages = BlockingReader(self.sock, Codec[Reply](Reply))

    def pull(self, version: int) -> None:
        self.sock.sendall(pack(Pull(version, None, 0.0)))

    def raw(self, n: int) -> bytes:
        return self.messages._exactly(n)

    def close(self) -> None:
        self.sock.close()
