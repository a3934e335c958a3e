"""What publishing and pulling cost on loopback: one JSON line a model and operation.

    python tests/bench/weights.py [--large]

Two core ranks are processes of their own; the puller is this one. `publish` is the trainer's own cost (the copy); `pull`
is a whole version from both sources, assembled and checked. `median_cpu_ms` is of the measured process alone. The first
two of each (page faults, connecting) are left out of the medians; `first_ms` is the very first.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import torch

from libra.weights.layout import Shard
from libra.weights.publisher import Publisher
from libra.weights.puller import Puller

RANKS = 2
MODELS = {"0.2M": (26, 8_654, 40), "135M": (272, 494_500, 6)}
"""Name: (tensors, elements of each, versions pulled); float32."""


def serve(rank: int, tensors: int, elements: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    publisher = Publisher(token="token", incarnation="bench")
    half = elements // RANKS
    start, stop = (0, half) if rank == 0 else (half, elements)
    shards = [Shard(f"layer.{i}", (elements,), start, torch.randn(stop - start)) for i in range(tensors)]
    pipe.send(publisher.address)
    while (version := pipe.recv()) is not None:
        begun, cpu = time.perf_counter(), time.process_time()
        publisher.publish(version, shards)
        pipe.send((time.perf_counter() - begun, time.process_time() - cpu))
    publisher.close()


def report(model: str, operation: str, n_bytes: int, taken: list[tuple[float, float]]) -> None:
    seconds, cpu_s = zip(*taken, strict=True)
    median = statistics.median(seconds[2:])
    row = {
        "bench": "weights",
        "model": model,
        "operation": operation,
        "sources": RANKS,
        "bytes": n_bytes,
        "median_ms": round(median * 1e3, 3),
        "median_cpu_ms": round(statistics.median(cpu_s[2:]) * 1e3, 3),
        "worst_ms": round(max(seconds[2:]) * 1e3, 3),
        "first_ms": round(seconds[0] * 1e3, 3),
        "bytes_per_s": round(n_bytes / median),
    }
    print(json.dumps(row), flush=True)


def measure(model: str) -> None:
    tensors, elements, versions = MODELS[model]
    spawn = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for rank in range(RANKS):
        near, far = spawn.Pipe()
        ranks.append(spawn.Process(target=serve, args=(rank, tensors, elements, far), daemon=True))
        ranks[-1].start()
        pipes.append(near)
    addresses = [p.recv() for p in pipes]
    puller = Puller("token", "bench")
    publish_s: list[tuple[float, float]] = []
    pull_s: list[tuple[float, float]] = []
    for version in range(versions):
        for pipe in pipes:  # in turn: each publish alone on its core
            pipe.send(version)
            seconds = pipe.recv()
        publish_s.append(seconds)
        begun, cpu = time.perf_counter(), time.process_time()
        puller.pull(version, addresses, 120)
        pull_s.append((time.perf_counter() - begun, time.process_time() - cpu))
    for pipe, rank in zip(pipes, ranks, strict=True):
        pipe.send(None)
        rank.join(30)
    puller.close()
    n_bytes = tensors * elements * 4
    report(model, "publish", n_bytes // RANKS, publish_s)
    report(model, "pull", n_bytes, pull_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Costs of publishing and pulling weights on loopback.")
    parser.add_argument("--large", action="store_true", help="also 135M parameters in float32 (about 3.3 GB of memory)")
    for name in MODELS if parser.parse_args().large else ["0.2M"]:
        measure(name)
