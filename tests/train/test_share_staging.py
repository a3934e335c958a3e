"""Staging takes whole shares of the step that is closed, in the order given, and nothing else, whatever the replica does."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from libra.errors import RoleError
from libra.train.staging import Staging
from libra.weights.layout import Range, Shard
from libra.weights.publisher import Publisher
from libra.wire.messages import FetchShare, ShareFetched, ShareLost, ShareNote
from tests.weights.weights_parts import Proxy

TOKEN, INCARNATION = "token", "incarnation"
ELEMENTS = 1_000_003
"""8 MB of float64: more than a link's buffers hold."""
RANGES = [Range("w", 500_000, ELEMENTS), Range("b", 1, 2)]
ANSWER_S = 60


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("share-"):
            thread.join(ANSWER_S)
            assert not thread.is_alive()


@contextmanager
def replica(value: float, *, dtype: torch.dtype = torch.float64, version: int = 0) -> Iterator[Publisher]:
    """One member that holds all of a gradient in which every element is `value`."""
    publisher = Publisher(token=TOKEN, incarnation=INCARNATION)
    gradient = [
        Shard("w", (ELEMENTS,), 0, torch.full((ELEMENTS,), value, dtype=dtype)),
        Shard("b", (3,), 0, torch.full((3,), value, dtype=dtype)),
    ]
    publisher.publish(version, gradient)
    yield publisher
    publisher.close()


class Core:
    """One core rank's staging and its answers."""

    def __init__(self) -> None:
        self.answers: queue.Queue[Any] = queue.Queue()
        self.staging = Staging(RANGES, torch.float64, TOKEN, INCARNATION, self.answers.put)

    def fetch(self, cmd: int, step: int, id: int, source: str, *, version: int = 0, deadline_s: float = 60.0) -> None:
        note = ShareNote(float(id), [0.0] * 6, [])
        self.staging.fetch(FetchShare(cmd, step, id, version, (source,), [note], deadline_s))

    def answer(self) -> Any:
        return self.answers.get(timeout=ANSWER_S)


@contextmanager
def stalling(publisher: Publisher, after_bytes: int) -> Iterator[tuple[Proxy, threading.Event]]:
    """A source that says no more after so many bytes; the event: it has come so far."""
    stalled, released = threading.Event(), threading.Event()

    def tap(total: int, data: bytes) -> bytes:
        if total + len(data) > after_bytes:
            stalled.set()
            released.wait(ANSWER_S)
            raise EOFError
        return data

    proxy = Proxy(publisher.address, tap)
    yield proxy, stalled
    released.set()
    proxy.close()


def test_the_listed_shares_are_taken_whole_and_in_the_order_given() -> None:
    core = Core()
    with replica(1.0) as one, replica(2.0) as two, replica(3.0) as three:
        for id, publisher in ((1, one), (2, two), (3, three)):
            core.fetch(10 + id, 4, id, publisher.address)
        assert sorted(core.answer().cmd for _ in range(3)) == [11, 12, 13]
        shares = core.staging.take(4, [3, 1])
    assert [[part.unique().tolist() for part in s.parts] for s in shares] == [[[3.0], [3.0]], [[1.0], [1.0]]]
    assert [len(part) for part in shares[0].parts] == [ELEMENTS - 500_000, 1]
    assert [s.notes[0].loss for s in shares] == [3.0, 1.0]
    with pytest.raises(RoleError, match=r"of \[2\] not all"):
        core.staging.take(4, [2])  # not listed then, gone now


def test_a_share_is_never_taken_twice_or_for_another_step() -> None:
    core = Core()
    with replica(1.0) as one:
        core.fetch(1, 4, 1, one.address)
        core.fetch(2, 6, 2, one.address)
        assert {type(core.answer()), type(core.answer())} == {ShareFetched}
        with pytest.raises(RoleError, match="once"):
            core.staging.take(4, [1, 1])
        core.fetch(3, 4, 1, one.address)
        assert core.answer() == ShareFetched(3, pytest.approx(0, abs=ANSWER_S))
        with pytest.raises(RoleError, match=r"of \[1\] not all"):
            core.staging.take(5, [1])  # step 4 is over with this
        (later,) = core.staging.take(6, [2])  # a share of a step to come is kept meanwhile
        assert later.notes[0].loss == 2.0


def test_a_stalled_share_delays_no_other_and_is_cancelled_by_the_close() -> None:
    core = Core()
    with replica(1.0) as one, replica(2.0) as two, stalling(one, 3_000_000) as (proxy, stalled):
        core.fetch(1, 0, 1, proxy.address)
        assert stalled.wait(ANSWER_S)
        core.fetch(2, 0, 2, two.address)
        assert core.answer().cmd == 2
        with pytest.raises(RoleError, match=r"of \[1\] not all"):
            core.staging.take(0, [1, 2])
        lost = core.answer()  # long before its deadline
        assert isinstance(lost, ShareLost)
        assert (lost.cmd, "cancelled" in lost.reason) == (1, True)


def test_a_share_that_is_whole_only_after_the_close_is_dropped() -> None:
    core = Core()
    late = threading.Event()
    with replica(1.0) as one:

        def tap(total: int, data: bytes) -> bytes:
            late.wait(ANSWER_S)
            return data

        proxy = Proxy(one.address, tap)
        core.fetch(1, 0, 1, proxy.address)
        assert core.staging.take(0, []) == []
        late.set()
        assert isinstance(core.answer(), ShareLost)
        with pytest.raises(RoleError):
            core.staging.take(0, [1])
        proxy.close()


def test_a_hung_replica_costs_its_fetch_the_deadline_and_a_dead_one_less() -> None:
    core = Core()
    with replica(1.0) as one, stalling(one, 3_000_000) as (proxy, _):
        core.fetch(1, 0, 1, proxy.address, deadline_s=0.2)
        lost = core.answer()
        assert isinstance(lost, ShareLost)
        assert "deadline passed" in lost.reason
        assert "replica 1 for step 0" in lost.reason
        assert proxy.address in lost.reason
        dead = one.address
    core.fetch(2, 0, 1, dead)
    assert "ECONNREFUSED" in core.answer().reason


def test_damaged_bytes_another_share_and_another_type_are_not_staged() -> None:
    core = Core()
    with replica(1.0) as good, replica(1.0, dtype=torch.float32) as narrow, replica(5.0, version=3) as newer:
        flip = Proxy(good.address, lambda total, data: data[:-1] + b"\xaa" if total > 2_000_000 else data)
        core.fetch(1, 0, 1, flip.address)
        assert isinstance(core.answer(), ShareLost)
        core.fetch(2, 0, 2, narrow.address)
        assert "float32" in core.answer().reason
        core.fetch(3, 0, 3, newer.address, version=2)
        assert "serves share 3" in core.answer().reason
        with pytest.raises(RoleError, match=r"of \[1, 2, 3\] not all"):
            core.staging.take(0, [1, 2, 3])
        flip.close()


def test_an_order_for_the_same_replica_replaces_the_one_before_and_each_is_answered_once() -> None:
    core = Core()
    with replica(1.0) as one, replica(2.0) as two, stalling(one, 3_000_000) as (proxy, stalled):
        core.fetch(1, 0, 1, proxy.address)
        assert stalled.wait(ANSWER_S)
        core.fetch(2, 0, 1, two.address)
        answers = {a.cmd: type(a) for a in (core.answer(), core.answer())}
        assert answers == {1: ShareLost, 2: ShareFetched}
        (share,) = core.staging.take(0, [1])
        assert share.parts[1].tolist() == [2.0]
    assert core.answers.empty()


def test_a_rank_that_owns_nothing_still_learns_whether_the_share_exists() -> None:
    answers: queue.Queue[Any] = queue.Queue()
    staging = Staging([], torch.float64, TOKEN, INCARNATION, answers.put)
    with replica(1.0) as one:
        staging.fetch(FetchShare(1, 0, 1, 0, (one.address,), [], 60.0))
        assert isinstance(answers.get(timeout=ANSWER_S), ShareFetched)
    (share,) = staging.take(0, [1])
    assert share == ([], [])
