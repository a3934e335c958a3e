"""What a checkpoint costs: the trainer's standstill, the rest, a step beside it; and the controller's own part.

    python tests/bench/checkpoint.py [--hidden 576 --layers 30 --ffn 1536] [--nodes 20000] [--directory DIR]

One core rank on the CPU. Steps with and without a checkpoint being written beside them come from the same process, in turn,
so the load of the machine is in both.
"""

import argparse
import statistics
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
import torch.distributed as dist

from libra.checkpoint.directory import MOMENTS, WEIGHTS
from libra.config.schema import Config, ModelConfig, SchedulerConfig, TrainerConfig
from libra.core.causality import save
from libra.core.causality.tree import CausalityTree, TreeConfig
from libra.core.coordinator import Core
from libra.core.signal import Signal
from libra.train.saving import Saving
from libra.train.trainer import Trainer
from libra.wire.messages import Sample, Save, Saved, SaveFailed

VOCABULARY = 8192


def trainer_of(args: argparse.Namespace) -> Trainer:
    model = ModelConfig(architecture="llama", hidden=args.hidden, layers=args.layers, heads=9, kv_heads=3, ffn=args.ffn)
    config = Config(model=model, trainer=TrainerConfig(threads=1))
    return Trainer(config, VOCABULARY, 0, 1, torch.device("cpu"))


def step(trainer: Trainer, number: int) -> float:
    began = time.perf_counter()
    n = 64
    trainer.open(number, n - 1)
    trainer.round([Sample(0, list(range(n)), b"\0" + b"\1" * (n - 1), [-5.0] * n, [number] * n, 1.0)])
    assert trainer.close().finite
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("hidden", 576), ("layers", 12), ("ffn", 1536), ("nodes", 20_000), ("saves", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--directory", default=None, help="where to write; it should lie on the disk in question")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory(dir=args.directory) as name:
        dist.init_process_group("gloo", store=dist.FileStore(f"{name}/store", 1), rank=0, world_size=1)  # type: ignore[attr-defined]
        rank(args, Path(name))
        dist.destroy_process_group()
    controller(args.nodes)


def rank(args: argparse.Namespace, root: Path) -> None:
    trainer = trainer_of(args)
    done = threading.Event()
    answers: list[Saved | SaveFailed] = []

    def answer(message: Saved | SaveFailed) -> None:
        answers.append(message)
        done.set()

    saving = Saving(trainer.sharded, trainer.summed, answer)
    for file in (WEIGHTS, MOMENTS[0]):
        (root / file).parent.mkdir()
    number = 0
    alone, beside = [], []
    step(trainer, number)
    for _ in range(args.saves):
        for _ in range(3):
            number += 1
            alone.append(step(trainer, number))
        done.clear()
        saving.save(Save(1, str(root), 0))
        while not done.is_set():
            number += 1
            beside.append(step(trainer, number))
    copies = [a.copy_s for a in answers if isinstance(a, Saved)]
    seconds = [a.seconds for a in answers if isinstance(a, Saved)]
    n_bytes = sum((root / file).stat().st_size for file in (WEIGHTS, *MOMENTS))
    print(f"{n_bytes / 12e6:,.1f} M parameters, {n_bytes / 1e6:,.0f} MB a checkpoint, {len(copies)} saves")
    print(f"the trainer stands still: first {copies[0]:.3f} s, then {statistics.median(copies[1:]):.3f} s (median)")
    print(
        f"until all is on the disk: {statistics.median(seconds):.2f} s, {n_bytes / statistics.median(seconds) / 1e6:,.0f} MB/s"
    )
    print(
        f"a step: {statistics.median(alone):.3f} s alone, {statistics.median(beside):.3f} s beside a checkpoint ({len(beside)})"
    )


def controller(nodes: int) -> None:
    tree = CausalityTree(TreeConfig(max_nodes=nodes))
    traj = 0
    while len(tree.nodes) < nodes - 40:
        tree.start(traj, traj // 4, "bench")
        for turn in range(6):
            tree.advance(
                traj, Signal("tool", ("small", "medium", "large")[(traj >> turn) % 3], "ok"), 50 * turn, turn + 1, 1.0
            )
        tree.finish(traj, 400, 7, 2.0, traj // 64)
        traj += 1
    core = Core(Config(scheduler=SchedulerConfig(policy="causal")))
    core.placement.tree = tree
    took = []
    for _ in range(5):
        began = time.perf_counter()
        saved = core.saved(0)
        took.append(time.perf_counter() - began)
    began = time.perf_counter()
    data = msgspec.msgpack.encode(saved)
    print(
        f"controller, a tree of {len(save(tree).nodes):,} nodes: {statistics.median(took) * 1e3:.1f} ms to copy the core,"
        f" {(time.perf_counter() - began) * 1e3:.1f} ms to encode it in a thread, {len(data) / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
