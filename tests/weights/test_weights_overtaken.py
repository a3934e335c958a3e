"""Readers that are slower than the trainer: overtaken, pinned, or silent for good."""

import threading
import time

import numpy as np
import pytest
import torch
from weights_parts import BIG, INCARNATION, TOKEN, Proxy, RawReader, filled, publishers

from libra.errors import WeightsError
from libra.weights.buffers import VersionedBuffers
from libra.weights.layout import NEWEST, Chunk, Gone, Offer, Pin, Pinned, Shard
from libra.weights.publisher import Publisher
from libra.weights.puller import Puller
from libra.wire.frames import pack

STEP_BYTES = 12_000_000
"""Far enough that the next overtaking falls into the next reply, near enough that buffers cannot hold that reply's rest."""


class Overtake:
    """A tap that publishes three versions more in the middle of each of a link's first `times` replies."""

    def __init__(self, publisher: Publisher, times: int) -> None:
        self._publisher, self._times = publisher, times
        self.overtakings = 0

    def __call__(self, total: int, data: bytes) -> bytes:
        if self.overtakings < self._times and total > 2_000_000 + self.overtakings * STEP_BYTES:
            self.overtakings += 1
            for _ in range(3):
                self._publisher.publish(self._publisher.newest + 1, filled(self._publisher.newest + 1))
        return data


def test_a_reader_overtaken_in_mid_read_gets_the_newest_whole() -> None:
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0))
        tap = Overtake(publisher, times=1)
        proxy, puller = Proxy(publisher.address, tap), Puller(TOKEN, INCARNATION)
        version, tensors = puller.pull(0, [proxy.address], 60)
        puller.close()
        proxy.close()
        assert tap.overtakings == 1
        assert version == 3
        assert torch.equal(tensors["w"], torch.full((BIG,), 3.0))
        assert publisher._buffers.count == 2


def test_a_reader_overtaken_twice_reads_a_pinned_copy_however_fast_the_trainer_is() -> None:
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0))
        tap = Overtake(publisher, times=3)
        proxy, puller = Proxy(publisher.address, tap), Puller(TOKEN, INCARNATION)
        version, tensors = puller.pull(0, [proxy.address], 60)
        assert tap.overtakings == 3
        assert publisher.newest == 9
        assert version == 6
        assert torch.equal(tensors["w"], torch.full((BIG,), 6.0))
        assert publisher._buffers.count == 3
        assert puller.pull(9, [publisher.address], 60)[0] == 9
        assert publisher._buffers._pin is None
        puller.close()
        proxy.close()


def test_a_chunk_that_is_overwritten_while_it_is_copied_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = np.copyto
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0, 10))

        def overtaken(to: np.ndarray, source: np.ndarray) -> None:
            for version in range(publisher.newest + 1, 3):
                publisher.publish(version, filled(version, 10))
            copy(to, source)

        monkeypatch.setattr(np, "copyto", overtaken)
        puller = Puller(TOKEN, INCARNATION)
        version, tensors = puller.pull(0, [publisher.address], 30)
        puller.close()
    assert version == 2
    assert tensors["w"].unique().tolist() == [2.0]


def test_a_silent_reader_costs_neither_publish_nor_other_readers_anything() -> None:
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0))
        silent = RawReader(publisher.address)
        silent.pull(0)
        assert isinstance(silent.messages.receive(), Offer)  # its thread is sending now, to nobody who reads
        puller = Puller(TOKEN, INCARNATION)
        for version in range(1, 8):
            done = threading.Event()
            threading.Thread(target=lambda v=version, d=done: (publisher.publish(v, filled(v)), d.set())).start()
            assert done.wait(30)
            got, tensors = puller.pull(version, [publisher.address], 30)
            assert got == version
            assert tensors["w"].min() == tensors["w"].max() == version
        chunks = 0
        while isinstance(message := silent.messages.receive(), Chunk):
            assert set(silent.raw(message.n_bytes)) == {0}  # 0.0 is four zero bytes: version 0 and nothing else
            chunks += 1
        assert message == Gone(7)
        assert 0 < chunks < BIG * 4 // (1 << 20)  # it was stuck in mid-reply all the time
        silent.close()
        puller.close()


def test_a_pin_that_lapses_gives_its_buffer_back_to_the_writer() -> None:
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0))
        reader = RawReader(publisher.address)
        reader.sock.sendall(pack(Pin(NEWEST, 1.0, 0.0)))
        assert reader.messages.receive() == Pinned(0)
        for version in range(1, 5):
            publisher.publish(version, filled(version))
        reader.pull(0)
        assert reader.messages.receive() == Gone(4)
        reader.close()


def test_one_reader_pins_at_a_time_and_the_next_one_gets_its_turn() -> None:
    buffers = VersionedBuffers(None)
    buffers.write(0, filled(0, 10))
    far = float("inf")
    assert buffers.pin("first", NEWEST, 0.0, far) is not None
    assert buffers.pin("second", NEWEST, 0.0, far) is None
    got = []
    waiter = threading.Thread(target=lambda: got.append(buffers.pin("second", NEWEST, time.monotonic() + 30, far)))
    waiter.start()
    buffers.write(1, filled(1, 10))
    buffers.unpin("first")
    waiter.join(30)
    assert got == [1]


def test_a_pinned_version_survives_any_number_of_writes_and_the_others_rotate() -> None:
    buffers = VersionedBuffers(None)
    for version in range(2):
        buffers.write(version, filled(version, 10))
    assert buffers.pin("reader", 0, 0.0, float("inf")) == 0  # the *older* one, as a second source may be asked for
    held = buffers.find(0, 0.0)
    assert held is not None
    for version in range(2, 9):
        buffers.write(version, filled(version, 10))
        assert buffers.intact(held)
        assert buffers.find(version, 0.0) is not None
    assert held.buffer.tensor.view(torch.float32).unique().tolist() == [0.0]
    buffers.unpin("reader")
    for version in range(9, 12):
        buffers.write(version, filled(version, 10))
    assert not buffers.intact(held)


def test_a_version_still_to_come_is_kept_from_the_moment_it_is_written() -> None:
    buffers = VersionedBuffers(None)
    for version in range(3):
        buffers.write(version, filled(version, 10))
    assert buffers.pin("reader", 0, 0.0, float("inf")) is None  # overwritten
    assert buffers.pin("reader", 5, 0.0, float("inf")) == 5
    for version in range(3, 12):
        buffers.write(version, filled(version, 10))
    held = buffers.find(5, 0.0)
    assert held is not None
    assert held.buffer.tensor.view(torch.float32).unique().tolist() == [5.0]


def test_a_failing_copy_leaves_the_newest_version_and_publishes_nothing() -> None:
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0, 10))
        broken = Shard("w", (10,), 0, torch.empty(10, device="meta"))
        with pytest.raises((RuntimeError, NotImplementedError)):
            publisher.publish(1, [broken])
        assert publisher.newest == 0
        puller = Puller(TOKEN, INCARNATION)
        assert puller.pull(0, [publisher.address], 30)[0] == 0
        with pytest.raises(WeightsError, match=r"newest here is 0|deadline passed"):
            puller.pull(1, [publisher.address], 0.2)
        puller.close()
