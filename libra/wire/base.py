"""What every message is."""

from msgspec import Struct


class Message(Struct, frozen=True, tag=True):
    """Tagged by its class's name."""
