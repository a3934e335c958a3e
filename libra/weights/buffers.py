"""Versioned host buffers: one writer that never waits, any number of readers that notice when they were overtaken.

The writer (the trainer's collective thread) fills a buffer that is neither the newest nor pinned; with two buffers that
is the older one. Readers hold no lock while they copy: they compare the buffer's `generation` before and after, and what
they copied counts only if it has not changed (a sequence lock). A reader that was overtaken twice may pin one version:
a third buffer is then made by the *reader's* thread, so that the writer always finds a free one.

    buffer state   writer may take it   readers may take it
    newest         no                   yes
    older          yes                  yes, until it is overwritten
    pinned         no, until the pin    yes
                   lapses or is freed
    being written  -                    no (version is -1)

The lock guards only a few fields; nobody copies, sends or waits for a peer while holding it. `Publisher` calls this.
"""

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from libra.errors import WeightsError
from libra.weights.layout import NEWEST, BufferLayout, Plan, Range, Shard, shard_key

MAX_DIGESTS = 64
"""Digests remembered for one version: one for each different request."""


class HostBuffer:
    """One version's bytes. `generation` grows whenever the writer begins to overwrite it."""

    def __init__(self, n_bytes: int) -> None:
        self.tensor = torch.empty(n_bytes, dtype=torch.uint8)
        self.bytes: np.ndarray = self.tensor.numpy()
        self.version = -1
        self.generation = 0
        self.digests: dict[tuple[Range, ...] | None, int] = {}


class Held(NamedTuple):
    """A version as one reader found it; good as long as `VersionedBuffers.intact` says so."""

    buffer: HostBuffer
    generation: int
    version: int


class _Pin(NamedTuple):
    """`buffer` is None as long as `version` is still to come; the writer fills it in."""

    owner: object
    version: int
    buffer: HostBuffer | None
    until: float


class VersionedBuffers:
    """Two versions of this rank's shards, and a third while one reader has pinned one."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._changed = threading.Condition(threading.Lock())
        self._buffers: list[HostBuffer] = []
        self._newest: HostBuffer | None = None
        self._pin: _Pin | None = None
        self._layout: BufferLayout | None = None
        self._closed = False

    @property
    def newest(self) -> int:
        """The newest whole version, -1 before the first."""
        newest = self._newest
        return -1 if newest is None else newest.version

    @property
    def count(self) -> int:
        """Buffers that exist: 0 before the first publication, then 2, 3 once something was pinned."""
        return len(self._buffers)

    def write(self, version: int, shards: Sequence[Shard]) -> None:
        """Copies `shards` in and makes `version` the newest. Waits for no reader. WeightsError if they do not fit."""
        layout = self._layout
        if layout is None:
            layout = BufferLayout(shards, self._dtype)
            self._buffers = [HostBuffer(layout.n_bytes), HostBuffer(layout.n_bytes)]
            self._layout = layout
        elif layout.key != [shard_key(s) for s in shards]:
            raise WeightsError(
                f"version {version} has other shards than the first one; names, shapes and cuts are fixed"
            )
        with self._changed:
            if version <= self.newest:
                raise WeightsError(f"version {version} published after {self.newest}; versions must grow")
            target = self._free_buffer()
            target.version = -1
            target.generation += 1
            target.digests = {}
        for shard, (first, last, dtype) in zip(shards, layout.views, strict=True):
            target.tensor[first:last].view(dtype).copy_(shard.data)
        with self._changed:
            target.version = version
            self._newest = target
            if self._pin and self._pin.version == version:
                self._pin = self._pin._replace(buffer=target)
            self._changed.notify_all()

    def _free_buffer(self) -> HostBuffer:
        pinned = self._pin.buffer if self._pin and self._pin.until > time.monotonic() else None
        # Three buffers, at most two of them taken: there is always one, so the writer need not wait.
        return min((b for b in self._buffers if b is not self._newest and b is not pinned), key=lambda b: b.version)

    def find(self, version: int, deadline: float) -> Held | None:
        """`version`, waiting for it if it is still to come; None if it is overwritten or did not come by `deadline`."""
        left_s = max(0.0, deadline - time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.newest >= version, left_s)
            for buffer in self._buffers:
                if buffer.version == version >= 0:
                    return Held(buffer, buffer.generation, version)
        return None

    def intact(self, held: Held) -> bool:
        """Whether everything copied from `held` until now belongs to its version."""
        with self._changed:
            return held.buffer.generation == held.generation

    def plan(self, ranges: tuple[Range, ...] | None) -> Plan:
        assert self._layout is not None, "a plan is asked for a version that is held"
        return self._layout.plan(ranges)

    def digest(self, held: Held, ranges: tuple[Range, ...] | None) -> int | None:
        """The digest that an earlier reader of the same version and ranges computed."""
        with self._changed:
            return held.buffer.digests.get(ranges) if held.buffer.generation == held.generation else None

    def remember_digest(self, held: Held, ranges: tuple[Range, ...] | None, digest: int) -> int:
        """Stores the first digest of this version and ranges; returns the stored one, which all readers are told."""
        with self._changed:
            if held.buffer.generation != held.generation or len(held.buffer.digests) >= MAX_DIGESTS:
                return digest
            return held.buffer.digests.setdefault(ranges, digest)

    def pin(self, owner: object, version: int, deadline: float, until: float) -> int | None:
        """Keeps `version` (`NEWEST`: the newest) from being overwritten until `until`, `unpin`, or the owner's next pin.

        A version still to come is reserved: it is kept from the moment it is written, so that an owner can pin one
        version in several processes that go on writing. Returns the version pinned; None if it is overwritten already,
        or if another owner's pin lasted to `deadline`: there is one at a time.
        """
        with self._changed:
            while self._pin and self._pin.owner is not owner and self._pin.until > (now := time.monotonic()):
                if self._closed or now >= deadline:
                    return None
                self._changed.wait(min(deadline, self._pin.until) - now)
            if not self._newest:
                return None
            self._pin = _Pin(owner, -1, None, until)
            third = len(self._buffers) == 2
            n_bytes = self._newest.tensor.numel()
        if third:
            # Made and touched here, so that the writer pays for no page fault.
            spare = HostBuffer(n_bytes)
            spare.tensor.zero_()
            with self._changed:
                if len(self._buffers) == 2:
                    self._buffers.append(spare)
        with self._changed:
            if self._pin is None or self._pin.owner is not owner:
                return None  # it lapsed while the buffer was made
            version = self.newest if version == NEWEST else version
            buffer = next((b for b in self._buffers if b.version == version), None)
            if buffer is None and version < self.newest:
                self._pin = None
                self._changed.notify_all()
                return None
            self._pin = _Pin(owner, version, buffer, until)
            return version

    def unpin(self, owner: object) -> None:
        with self._changed:
            if self._pin and self._pin.owner is owner:
                self._pin = None
                self._changed.notify_all()

    def close(self) -> None:
        """Wakes everybody who waits for a version or a pin."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
