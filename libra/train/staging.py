"""Shares of gradient replicas on their way into this core rank's step.

    FetchShare ──> a thread of its own: pull_ranges(what this rank owns) ──> staged ──> ShareFetched
                                                                       └── fails ──> ShareLost
    Close(shares) ──> take(): exactly the listed ones; all others up to this step are dropped, their fetches cancelled

The collective thread only starts threads and takes what lies ready: a replica that is slow, hung or dead costs its own
fetch, to the order's deadline at most, and no round waits for it. Every order is answered once. A replica has one fetch
at a time, so there are no more threads than replicas; memory is this rank's part of one gradient for each share, from the
start of its fetch until the step is closed.

Called by `libra.rank.trainer_role`: `fetch` from any thread, `take` from the one that issues collectives.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from libra.errors import RoleError, WeightsError
from libra.train.gradient_sum import Share
from libra.weights.layout import Range
from libra.weights.puller import Puller
from libra.wire.messages import FetchShare, ShareFetched, ShareLost


@dataclass(eq=False)
class _Fetch:
    order: FetchShare
    puller: Puller
    share: Share | None = None
    """Set once all of it is here."""


class Staging:
    """`ranges` are this rank's pieces, `dtype` the type of its gradient. `answer` is called from the fetching threads."""

    def __init__(
        self,
        ranges: Sequence[Range],
        dtype: torch.dtype,
        token: str,
        incarnation: str,
        answer: Callable[[ShareFetched | ShareLost], None],
    ) -> None:
        self._ranges = ranges
        self._dtype = dtype
        self._token = token
        self._incarnation = incarnation
        self._answer = answer
        self._lock = threading.Lock()
        self._fetches: dict[int, _Fetch] = {}
        """Replica -> its newest."""

    def fetch(self, order: FetchShare) -> None:
        """Begins to fetch; an earlier share of the same replica is dropped. Waits for nothing."""
        fetch = _Fetch(order, Puller(self._token, self._incarnation))
        with self._lock:
            before = self._fetches.get(order.replica)
            self._fetches[order.replica] = fetch
        if before is not None:
            before.puller.cancel()
        threading.Thread(target=self._run, args=(fetch,), name=f"share-{order.replica}", daemon=True).start()

    def take(self, step: int, replicas: Sequence[int]) -> list[Share]:
        """The shares of `step` of these replicas, in this order. Nothing else of this step or earlier ones can come any more.

        RoleError where one of them is not wholly here: a step is closed only with shares that were answered ShareFetched.
        """
        with self._lock:
            known = {r: f for r, f in self._fetches.items() if f.order.step <= step}
            for replica in known:
                del self._fetches[replica]
            listed = {r: f for r, f in known.items() if r in replicas and f.order.step == step and f.share is not None}
        for replica, fetch in known.items():
            if replica not in listed:
                fetch.puller.cancel()
        missing = [r for r in replicas if r not in listed]
        if missing or len(set(replicas)) != len(replicas):
            raise RoleError(
                f"step {step} is closed with the shares of replicas {list(replicas)}, but of {missing} not all is staged "
                "on this rank; expected each share once, after every core rank has answered ShareFetched for it"
            )
        return [share for r in replicas if (share := listed[r].share) is not None]

    def _run(self, fetch: _Fetch) -> None:
        order, began = fetch.order, time.monotonic()
        try:
            share = Share(self._pull(fetch), order.notes)
            with self._lock:
                if self._fetches.get(order.replica) is not fetch:
                    raise WeightsError("the step was closed without it")
                fetch.share = share
        except WeightsError as e:
            self._answer(ShareLost(order.cmd, f"share of replica {order.replica} for step {order.step}: {e}"))
        else:
            self._answer(ShareFetched(order.cmd, time.monotonic() - began))
        finally:
            fetch.puller.close()

    def _pull(self, fetch: _Fetch) -> list[torch.Tensor]:
        order = fetch.order
        version, parts = fetch.puller.pull_ranges(order.version, order.sources, self._ranges, order.deadline_s)
        if version != order.version:
            raise WeightsError(f"the replica serves share {version} by now; expected {order.version}")
        types = {part.dtype for part in parts} - {self._dtype}
        if types:
            raise WeightsError(f"the gradient comes as {types}; expected {self._dtype}, the core's reduce dtype")
        return parts
