"""Memory of a core rank and of an engine, measured against the preflight's formula, for the tiny model and for SmolLM2-135M.

    just bench memory [--models tiny,smollm2]

Each row is a real trainer and a real engine in processes of their own: a step on full micro-batches, published, pulled over
loopback and installed, then the engine's KV room filled. What is read is the kernel's own high-water mark (VmHWM). The row
`imports` is the control: the same process without a model.
"""

import argparse
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from libra.config import Config, load, memory
from libra.errors import ConfigError

CASES = {
    "tiny": ("configs/quickstart.toml", ("--allocation.trainer=1",)),
    "smollm2": ("configs/smollm2.toml", ()),
    "smollm2-kept": ("configs/smollm2.toml", ("--trainer.recompute=false", "--trainer.micro_batch_tokens=512")),
}
TOKEN, INCARNATION = "t" * 64, "bench"


def peak_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM:"))


def imports(pipe: Connection) -> None:
    from libra.config.schema import ModelConfig
    from libra.train.model import preload

    preload(ModelConfig())
    pipe.send(peak_bytes())


def train(pipe: Connection, config: Config, words: int, store: str) -> None:
    """Two steps of one full micro-batch, the second with everything in place; then serves the weights until told to end."""
    import torch
    import torch.distributed as dist

    from libra.train.model import preload
    from libra.train.trainer import Trainer
    from libra.weights.publisher import Publisher
    from libra.wire.messages import Sample

    preload(config.model)
    dist.init_process_group("gloo", store=dist.FileStore(store, 1), rank=0, world_size=1)
    trainer = Trainer(config, words, 0, 1, torch.device("cpu"))
    publisher = Publisher(token=TOKEN, incarnation=INCARNATION)
    publisher.publish(0, trainer.shards())
    length = config.live_env.trajectory_tokens
    rows = max(1, config.trainer.micro_batch_tokens // length)

    def row(traj: int) -> Sample:
        sampled = b"\0" + b"\1" * (length - 1)
        return Sample(
            traj, [(7 * traj + i) % words for i in range(length)], sampled, [-1.0] * length, [0] * length, 1.0
        )

    for step in range(2):
        trainer.open(step, rows * (length - 1))
        trainer.round([row(i) for i in range(rows)])
        assert trainer.close().finite
        publisher.publish(step + 1, trainer.shards())
    pipe.send((publisher.address, peak_bytes()))
    pipe.recv()
    dist.destroy_process_group()


def engine(pipe: Connection, config: Config, words: int, stop: int, address: str) -> None:
    """Two pulls and installs, then as many turns as the KV room takes."""
    import torch

    from libra.engine.engine import Engine
    from libra.train.model import preload
    from libra.weights.puller import Puller
    from libra.wire.messages import Turn

    preload(config.model)
    bucket, length = config.bucket[0], config.live_env.trajectory_tokens
    made = Engine(
        model=config.model, vocab_size=words, stop_ids=frozenset({stop}), max_batch=bucket.max_batch,
        kv_tokens=bucket.kv_tokens, temperature=1.0, max_context_tokens=length, device=torch.device("cpu"),
    )  # fmt: skip
    puller = Puller(TOKEN, INCARNATION)
    for _ in range(2):
        version, weights = puller.pull(2, [address], 300.0)
        made.install(version, weights)
    for traj in range(bucket.kv_tokens // length):
        context = [(traj + i) % words for i in range(length - 8)]
        made.submit(Turn(traj, traj, context, 8, (traj, 0, 0, 0)))
    while made.busy:
        made.step()
    pipe.send(peak_bytes())


def alone(target: Any, *arguments: Any) -> tuple[Any, Connection, Any]:
    """Starts `target` in a fresh interpreter; (what it sent first, the pipe, the process)."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *arguments))
    process.start()
    there.close()
    return here.recv(), here, process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    names = parser.parse_args().models.split(",")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    base, _, process = alone(imports)
    process.join()
    print(f"imports alone: {base >> 20} MiB (formula's base: {memory.BASE_BYTES >> 20} MiB)")
    print(f"{'model':14} {'role':8} {'measured':>10} {'formula':>10} {'formula/measured':>17}")
    for name in names:
        file, overrides = CASES[name]
        try:
            config = load(file, overrides)
        except ConfigError as e:
            print(f"{name:14} not measured: {e.problems[0]}")
            continue
        measure(name, config)


def measure(name: str, config: Config) -> None:
    import tempfile

    from libra.env.registry import vocabulary

    words = vocabulary(config.live_env, config.model)
    with tempfile.TemporaryDirectory() as scratch:
        (address, trained), pipe, process = alone(train, config, words.size, f"{scratch}/store")
        generated, _, other = alone(engine, config, words.size, words.stop_ids[0], address)
        pipe.send("end")
        process.join()
        other.join()
    rows = (
        ("trainer", trained, memory.trainer_bytes(config, words.size)),
        ("engine", generated, memory.engine_bytes(config, config.bucket[0], words.size)),
    )
    for role, measured, formula in rows:
        print(f"{name:14} {role:8} {measured >> 20:7} MiB {formula >> 20:7} MiB {formula / measured:17.2f}", flush=True)


if __name__ == "__main__":
    main()
