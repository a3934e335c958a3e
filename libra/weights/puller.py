"""Pulls one whole version of the weights from all core ranks, each over a link of its own.

Invariant: what `pull` returns is *one* version, every element of it exactly once, with every source's digest compared;
or `pull` raises WeightsError within its deadline, naming the source and the reason. It never waits for anything but the
sources, and no source ever waits for it.

    try version v at all sources side by side
      one says Gone(w)  -> start again at w, everywhere
      twice in a row    -> pin the newest at each source *in the order given* (all pullers use the core's order, so two
                           of them cannot hold what the other needs), then read that one

An engine or a gradient replica owns one Puller and calls it from one thread; `close` may come from another.
"""

import socket
import threading
import time
import zlib
from collections.abc import Sequence

import torch

from libra.errors import WeightsError, WireError
from libra.weights.destination import Destination
from libra.weights.layout import NEWEST, Chunk, Done, Offer, Pin, Pinned, Pull, Range
from libra.weights.link import Link, Newer, Talk, together

CLOSE_S = 5.0
WAIT_SHARE = 0.8
"""Part of the time left that a source may wait for a version, so that its refusal, with the reason, comes in time."""
PIN_AFTER = 2
"""Supersessions in a row after which a version is pinned."""


class Puller:
    """Keeps one link a source and two sets of host tensors between pulls."""

    def __init__(self, token: str, incarnation: str) -> None:
        self._token = token
        self._incarnation = incarnation
        self._links: dict[str, Link] = {}
        self._spare, self._shown = Destination(), Destination()
        self._wake, self._waker = socket.socketpair()
        self._busy = threading.Lock()
        self._ending = threading.Lock()
        self._closed = False

    def pull(self, version: int, sources: Sequence[str], deadline_s: float) -> tuple[int, dict[str, torch.Tensor]]:
        """Every logical parameter, by name, on the host; of `version`, or of a newer one if it is gone.

        `sources`: "host:port" of every core rank, in core order. The tensors are reused: they stay as they are until
        the pull *after* the next one begins. WeightsError as the module says.
        """
        version, got = self._pull(version, sources, None, deadline_s)
        return version, got.parameters()

    def pull_ranges(
        self, version: int, sources: Sequence[str], ranges: Sequence[Range], deadline_s: float
    ) -> tuple[int, list[torch.Tensor]]:
        """Like `pull`, but only these parts of the logical tensors: one 1-D tensor for each range, in order."""
        for r in ranges:
            if not 0 <= r.start < r.stop:
                raise WeightsError(f"range {r.start} to {r.stop} of {r.name}; expected 0 <= start < stop")
        version, got = self._pull(version, sources, tuple(ranges), deadline_s)
        return version, got.parts()

    def cancel(self) -> None:
        """Ends a pull in progress, in whatever thread, with WeightsError, and forbids others. Waits for nothing."""
        with self._ending:
            if not self._closed:
                self._closed = True
                self._waker.send(b"x")

    def close(self) -> None:
        """Cancels, waits for the end of the pull, and closes all links."""
        self.cancel()
        if not self._busy.acquire(timeout=CLOSE_S):
            raise WeightsError(f"a pull did not end within {CLOSE_S} s of its cancellation")
        try:
            self._drop_links()
            self._wake.close()
            self._waker.close()
        finally:
            self._busy.release()

    def _pull(
        self, version: int, sources: Sequence[str], ranges: tuple[Range, ...] | None, deadline_s: float
    ) -> tuple[int, Destination]:
        if not self._busy.acquire(blocking=False):
            raise WeightsError("a pull is in progress; a Puller serves one thread at a time")
        try:
            if self._closed:
                raise WeightsError("the puller is closed")
            version = self._attempts(version, self._links_to(sources), ranges, time.monotonic() + deadline_s)
            self._spare, self._shown = self._shown, self._spare
            return version, self._shown
        except BaseException:
            self._drop_links()  # no half-read reply and no pin outlives a failure
            raise
        finally:
            self._busy.release()

    def _attempts(self, version: int, links: list[Link], ranges: tuple[Range, ...] | None, deadline: float) -> int:
        superseded = 0
        while True:
            try:
                if superseded >= PIN_AFTER:
                    version = self._pin(links, deadline)
                self._spare.begin(ranges)
                talks = {link: self._fetch(link, Pull(version, ranges, _left(deadline) * WAIT_SHARE)) for link in links}
                together(talks, deadline, self._wake)
                self._spare.check()
                return version
            except Newer as e:
                superseded += 1
                if _left(deadline) == 0:
                    raise WeightsError(f"deadline passed; superseded {superseded} times, last at {version}") from e
                version = e.newest

    def _pin(self, links: list[Link], deadline: float) -> int:
        """Pins one version at every source; the version.

        If a source has lost it by the time it is asked, the trainer is faster than our round trips: then a version still
        to come is reserved everywhere, further ahead each time, which succeeds after a few.
        """
        version, ahead = NEWEST, 0
        while True:
            try:
                for link in links:
                    pin = Pin(version, _left(deadline) * WAIT_SHARE, _left(deadline))
                    [version] = together({link: _pinned(link, pin)}, deadline, self._wake)
                return version
            except Newer as e:
                if _left(deadline) == 0:
                    raise WeightsError(f"deadline passed; version {e.newest} could not be pinned everywhere") from e
                version, ahead = e.newest + ahead, 2 * ahead + 1

    def _fetch(self, link: Link, pull: Pull) -> Talk[None]:
        offer = yield from link.ask(pull)
        if not isinstance(offer, Offer) or offer.version != pull.version:
            raise WireError(f"got {offer}; expected an offer of version {pull.version}")
        room = self._spare.room(offer, link.address)
        total = sum(len(view) for view in room)
        missing, digest, at = total, 0, 0
        while True:
            link.progress = f"{(total - missing) / 1e6:.1f} of {total / 1e6:.1f} MB received"
            match (yield from link.receive()):
                case Chunk(n_bytes=n) if 0 < n <= missing:
                    missing -= n
                    while n:
                        view = room[at][:n]
                        yield from link.read_into(view)
                        digest = zlib.crc32(view, digest)
                        n -= len(view)
                        room[at] = room[at][len(view) :]
                        at += not room[at]
                    yield from link.breathe()
                case Done(digest=sent) if missing == 0:
                    if sent != digest:
                        raise WeightsError(f"digest mismatch: got {digest:08x}, the source sent {sent:08x}; pull again")
                    return
                case other:
                    raise WireError(f"got {other} with {missing} bytes missing")

    def _links_to(self, sources: Sequence[str]) -> list[Link]:
        if not sources or len(set(sources)) != len(sources):
            raise WeightsError(f"sources {list(sources)}; expected one different address for each core rank")
        for address in [a for a in self._links if a not in sources]:
            self._links.pop(address).drop()
        for address in sources:
            self._links.setdefault(address, Link(address, self._token, self._incarnation))
        return [self._links[address] for address in sources]

    def _drop_links(self) -> None:
        for link in self._links.values():
            link.drop()


def _pinned(link: Link, pin: Pin) -> Talk[int]:
    reply = yield from link.ask(pin)
    if not isinstance(reply, Pinned):
        raise WireError(f"got {reply}; expected the answer to a pin")
    return reply.version


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
