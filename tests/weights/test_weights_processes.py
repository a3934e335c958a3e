"""Core ranks as real processes: a trainer that publishes without pause, and one that is killed while it serves."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import pytest
import torch
from weights_parts import BIG, INCARNATION, TOKEN, Proxy, cut

from libra.errors import WeightsError
from libra.weights.publisher import Publisher
from libra.weights.puller import Puller

ELEMENTS = 200_001
DEADLINE_S = 60
spawn = multiprocessing.get_context("spawn")


def _train(rank: int, elements: int, pipe: Connection, step: Barrier) -> None:
    """Publishes version v full of v; all ranks step together, as a collective would make them. Ends when told to."""
    torch.set_num_threads(1)
    publisher = Publisher(token=TOKEN, incarnation=INCARNATION)
    weights = {"w": torch.zeros(elements), "b": torch.zeros(3)}
    shards = cut(weights, step.parties)[rank]
    publisher.publish(0, shards)
    pipe.send(publisher.address)
    version = 0
    while True:
        if rank == 0 and pipe.poll():
            step.abort()
        try:
            step.wait(DEADLINE_S)
        except Exception:  # aborted: the test is over
            break
        version += 1
        for tensor in weights.values():
            tensor.fill_(float(version))
        publisher.publish(version, shards)
    publisher.close()
    pipe.send(version)


@pytest.mark.process
def test_whatever_is_pulled_from_trainers_that_never_pause_is_one_version() -> None:
    step = spawn.Barrier(2)
    pipes, ranks = [], []
    for rank in range(2):
        near, far = spawn.Pipe()
        ranks.append(spawn.Process(target=_train, args=(rank, ELEMENTS, far, step), daemon=True))
        ranks[-1].start()
        pipes.append(near)
    assert all(p.poll(DEADLINE_S) for p in pipes)
    addresses = [p.recv() for p in pipes]
    puller = Puller(TOKEN, INCARNATION)
    version = 0
    for _ in range(15):
        asked = version
        version, tensors = puller.pull(asked, addresses, DEADLINE_S)
        assert version >= asked
        assert {tensors["w"].min().item(), tensors["w"].max().item(), *tensors["b"].tolist()} == {float(version)}
    puller.close()
    pipes[0].send("stop")
    assert all(p.poll(DEADLINE_S) for p in pipes)
    last = [p.recv() for p in pipes]
    for rank in ranks:
        rank.join(DEADLINE_S)
    assert min(last) >= version > 0
    assert max(last) - min(last) <= 1, "one of them is stopped inside a step"


@pytest.mark.process
def test_a_killed_source_is_named() -> None:
    near, far = spawn.Pipe()
    never = spawn.Barrier(2)  # the second rank never comes: version 0 stays
    rank = spawn.Process(target=_train, args=(0, 2 * BIG, far, never), daemon=True)
    rank.start()
    assert near.poll(DEADLINE_S)
    address = near.recv()

    def kill(total: int, data: bytes) -> bytes:
        if total > 2_000_000 and rank.is_alive():
            os.kill(rank.pid or 0, signal.SIGKILL)
            rank.join(DEADLINE_S)
        return data

    proxy, puller = Proxy(address, kill), Puller(TOKEN, INCARNATION)
    with pytest.raises(WeightsError, match=f"source {proxy.address}: "):
        puller.pull(0, [proxy.address], DEADLINE_S)
    assert rank.exitcode == -signal.SIGKILL
    with pytest.raises(WeightsError, match=f"source {address}: .*ECONNREFUSED"):
        puller.pull(0, [address], DEADLINE_S)
    puller.close()
    proxy.close()
