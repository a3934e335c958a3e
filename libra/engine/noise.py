"""Keyed sampling noise: what a token becomes depends on its key, never on who else is in the batch.

A key is (run seed, prompt ordinal, sample, attempt, position), `position` being the index of the new token among *all*
tokens of its trajectory. Its encoding is fixed for ever: five little-endian signed 64-bit integers, hashed by BLAKE2b
with an eight-byte digest read as a little-endian unsigned integer. The engine calls `uniforms` once a decode step.
"""

import struct
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

Key = tuple[int, int, int, int]
"""(run seed, prompt ordinal, sample, attempt), as in `libra.wire.messages.Turn.noise`."""
_pack = struct.Struct("<5q").pack


def uniforms(keys: Iterable[tuple[Key, int]]) -> np.ndarray:
    """u in [0, 1) for each (key, position): float64, (hash >> 11) * 2**-53, so every value is exact."""
    digests = b"".join([blake2b(_pack(*key, position), digest_size=8).digest() for key, position in keys])
    return (np.frombuffer(digests, dtype="<u8") >> np.uint64(11)) * 2.0**-53


def seed_of(key: Key, position: int) -> int:
    """For an engine that draws a stretch of tokens, from `position` on, with a generator of its own: the seed."""
    return int.from_bytes(blake2b(_pack(*key, position), digest_size=8).digest(), "little") >> 1
