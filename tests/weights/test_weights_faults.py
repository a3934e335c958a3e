"""Links that lie, stall, die or do not belong here; and nothing that leaks."""

import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from weights_parts import BIG, INCARNATION, TOKEN, Proxy, cut, filled, publishers

from libra.errors import WeightsError
from libra.weights import publisher as publisher_module
from libra.weights.puller import Puller


@pytest.fixture
def puller():
    with_links = Puller(TOKEN, INCARNATION)
    yield with_links
    with_links.close()


@pytest.mark.parametrize(
    ("token", "incarnation"), [("other", INCARNATION), (TOKEN, "earlier"), ("tokeninc", "arnation")]
)
def test_a_wrong_token_or_incarnation_is_refused(token: str, incarnation: str) -> None:
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0, 10))
        stranger = Puller(token, incarnation)
        with pytest.raises(WeightsError, match="wrong token"):
            stranger.pull(0, [publisher.address], 30)
        stranger.close()


def test_a_changed_byte_is_found_by_the_digest(puller: Puller) -> None:
    def flip(total: int, data: bytes) -> bytes:
        at = 3_000_000 - total
        return data if not 0 <= at < len(data) else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0))
        proxy = Proxy(publisher.address, flip)
        with pytest.raises(WeightsError, match=f"source {proxy.address}: digest mismatch"):
            puller.pull(0, [proxy.address], 60)
        proxy.close()
        assert puller.pull(0, [publisher.address], 60)[0] == 0


def test_a_source_cut_off_in_mid_chunk_is_named(puller: Puller) -> None:
    def cut_off(total: int, data: bytes) -> bytes:
        if total > 3_500_000:
            raise EOFError
        return data

    parts = cut({"w": torch.zeros(2 * BIG)}, 2)
    with publishers(2) as served:
        for publisher, shards in zip(served, parts, strict=True):
            publisher.publish(0, shards)
        proxy = Proxy(served[1].address, cut_off)
        with pytest.raises(WeightsError, match=f"source {proxy.address}: .*received"):
            puller.pull(0, [served[0].address, proxy.address], 60)
        proxy.close()


def test_a_stalled_source_is_named_when_the_deadline_passes(puller: Puller) -> None:
    release = threading.Event()

    def stall(total: int, data: bytes) -> bytes:
        if total > 3_500_000:
            release.wait(60)
        return data

    parts = cut({"w": torch.zeros(2 * BIG)}, 2)
    with publishers(2) as served:
        for publisher, shards in zip(served, parts, strict=True):
            publisher.publish(0, shards)
        proxy = Proxy(served[1].address, stall)
        with pytest.raises(WeightsError) as failure:
            puller.pull(0, [served[0].address, proxy.address], 1.5)
        release.set()
        proxy.close()
    assert f"{proxy.address}: 3." in str(failure.value)
    assert "of 24.0 MB received" in str(failure.value)


def test_close_from_another_thread_ends_a_stalled_pull() -> None:
    reached, release = threading.Event(), threading.Event()

    def stall(total: int, data: bytes) -> bytes:
        if total > 1_000_000:
            reached.set()
            release.wait(60)
        return data

    failures: list[str] = []
    puller = Puller(TOKEN, INCARNATION)

    def pull(address: str) -> None:
        try:
            puller.pull(0, [address], 60)
        except WeightsError as e:
            failures.append(str(e))

    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0))
        proxy = Proxy(publisher.address, stall)
        thread = threading.Thread(target=pull, args=(proxy.address,))
        thread.start()
        assert reached.wait(30)
        with pytest.raises(WeightsError, match="in progress"):
            puller.pull(0, [publisher.address], 30)
        puller.close()
        thread.join(30)
        release.set()
        proxy.close()
    assert "cancelled" in failures[0]
    with pytest.raises(WeightsError, match="closed"):
        puller.pull(0, ["127.0.0.1:1"], 1)


def test_an_unreachable_source_and_a_bad_address_are_named(puller: Puller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(WeightsError, match=f"source {address}: .*ECONNREFUSED"):
        puller.pull(0, [address], 30)
    with pytest.raises(WeightsError, match="numeric"):
        puller.pull(0, ["somewhere:1"], 30)
    with pytest.raises(WeightsError, match="one different address"):
        puller.pull(0, [], 30)


def test_a_source_that_accepts_and_says_nothing_ends_at_the_deadline(puller: Puller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(WeightsError, match=f"{address}: connected, no answer"):
            puller.pull(0, [address], 0.2)


def test_a_link_that_the_publisher_closed_between_pulls_is_made_again(puller: Puller) -> None:
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0, 10))
        assert puller.pull(0, [publisher.address], 30)[0] == 0
        for sock in list(publisher._readers):
            sock.shutdown(socket.SHUT_RDWR)
        assert puller.pull(0, [publisher.address], 30)[0] == 0


def test_one_reader_too_many_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "MAX_READERS", 2)
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0, 10))
        pullers = [Puller(TOKEN, INCARNATION) for _ in range(3)]
        for accepted in pullers[:2]:
            accepted.pull(0, [publisher.address], 30)
        with pytest.raises(WeightsError, match=r"2 readers are connected|closed the link|Connection reset"):
            pullers[2].pull(0, [publisher.address], 30)
        for p in pullers:
            p.close()


def test_garbage_and_half_a_hello_do_no_harm(puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "HELLO_S", 0.2)
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0, 10))
        host, _, port = publisher.address.rpartition(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\0\0\0\4abcd", b"\0\0"):
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                sock.sendall(garbage)
                assert _drained(sock) == b""
        assert puller.pull(0, [publisher.address], 30)[0] == 0


def _drained(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1)
    except ConnectionResetError:
        return b""


def test_two_hundred_pulls_leave_descriptors_threads_and_buffers_flat(puller: Puller) -> None:
    def count() -> tuple[int, int]:
        descriptors = Path("/proc/self/fd")
        return len(list(descriptors.iterdir())) if descriptors.exists() else 0, threading.active_count()

    parts = {v: cut({"a": torch.full((1000,), float(v)), "b": torch.full((7,), float(v))}, 2) for v in range(201)}
    with publishers(2) as served:
        addresses = [p.address for p in served]
        for version in range(201):
            for publisher, shards in zip(served, parts[version], strict=True):
                publisher.publish(version, shards)
            got, tensors = puller.pull(version, addresses, 30)
            assert got == version
            assert tensors["a"].unique().tolist() == tensors["b"].unique().tolist() == [float(version)]
            if version == 0:
                before = count()
        assert count() == before
        assert [p.readers for p in served] == [1, 1]


def test_closing_a_publisher_ends_its_threads_and_frees_its_port() -> None:
    before = threading.active_count()
    with publishers(1) as (publisher,):
        publisher.publish(0, filled(0, 10))
        puller = Puller(TOKEN, INCARNATION)
        puller.pull(0, [publisher.address], 30)
        address = publisher.address
    assert threading.active_count() == before
    begun = time.monotonic()
    with pytest.raises(WeightsError, match=address):
        puller.pull(0, [address], 30)
    assert time.monotonic() - begun < 30
    puller.close()
