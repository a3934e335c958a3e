"""A role's link to the controller: the threads around the main one.

    supervisor <── beats, twice a second ────────── beat thread          main thread: the role's own loop; all torch is here
                                                                         and so are all collectives
    controller ── orders ──> reader thread ──> bounded queue ──> main thread ──> results ──> controller

The main thread counts `progress` whenever it gets on; the beat thread passes the count on. So a role that hangs in a kernel or
a collective is seen from outside, although its process lives.
"""

import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from libra.config.schema import Config
from libra.errors import RoleError
from libra.rank.pipe import SupervisorPipe, leave
from libra.wire import messages as m
from libra.wire.frames import BlockingReader, Codec, pack

BEAT_S = 0.5
QUEUE_ORDERS = 8192
"""Orders that may wait for the main thread; admission keeps far below. When it is full the reader stops reading."""
SEND_S = 30
"""The controller always reads; a send that takes longer means that it is gone."""
IDLE_S = 0.25
"""An idle role looks up this often, which counts as progress."""


class RoleLink:
    """The role's link to the controller, and its beats to the supervisor. `send` may be called from any thread."""

    def __init__(self, spec: m.RoleSpec, config: Config, pipe: SupervisorPipe) -> None:
        self.spec = spec
        self.config = config
        self.progress = 0
        self.doing = "starting"
        self.orders: queue.Queue[object] = queue.Queue(QUEUE_ORDERS)
        self.at_once: dict[type, Callable[[Any], None]] = {}
        """Orders that do not wait until the main thread is free: they are taken in the reader's, and must not block it."""
        self._pipe = pipe
        self._lock = threading.Lock()
        pipe.lease.arm()
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(spec.controller)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))
        for target in (self._beat, self._read):
            threading.Thread(target=target, daemon=True).start()
        self.send(m.RoleHello(m.PROTOCOL, spec.token, spec.incarnation, spec.rank, spec.start, os.getpid()))

    def send(self, message: m.Message) -> None:
        with self._lock:
            self._sock.sendall(pack(message))

    def next_order(self, wait: bool, longest_s: float = IDLE_S) -> object | None:
        """The next order or internal note; None when there is none (after `longest_s` where `wait`)."""
        self.progress += 1
        try:
            return self.orders.get(timeout=longest_s) if wait else self.orders.get_nowait()
        except queue.Empty:
            return None

    def serve(self, take: Callable[[object], None]) -> None:
        """Until Stop: every order and note in its turn, in the calling thread."""
        while True:
            order = self.next_order(wait=True)
            if isinstance(order, m.Stop):
                return
            if order is not None:
                take(order)
                self.doing = "idle"

    def _read(self) -> None:
        reader: BlockingReader[m.ToRole] = BlockingReader(self._sock, Codec(m.ToRole))
        try:
            while True:
                message = reader.receive()
                if isinstance(message, m.Refused):
                    raise RoleError(f"the controller refused this role: {message.reason}")
                self.at_once.get(type(message), self.orders.put)(message)
        except EOFError:
            leave(1, "the controller closed the link")
        except Exception as e:
            leave(1, f"the link to the controller broke: {e}")

    def _beat(self) -> None:
        while True:
            self._pipe.beat(self.progress, self.doing)
            time.sleep(BEAT_S)
