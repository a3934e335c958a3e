"""Who is at the other end of a Unix socket: what the kernel says, not what the peer says."""

import os
import pwd
import socket
import struct

from msgspec import Struct

_CREDENTIALS = struct.Struct("3i")


class Peer(Struct, frozen=True):
    """The user whose process opened the link."""

    uid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (uid {self.uid})"

    @property
    def may_order(self) -> bool:
        """The run's own user, or root."""
        return self.uid in (os.getuid(), 0)


def peer_of(sock: socket.socket) -> Peer:
    """By SO_PEERCRED: as it was when the link was opened."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    try:
        return Peer(uid, pwd.getpwuid(uid).pw_name)
    except KeyError:  # a container's user without an entry
        return Peer(uid, "?")
