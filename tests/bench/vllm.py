"""The vLLM engine beside its controls: bare `LLMEngine`, and the torch engine, with the same model and threads.

    just bench vllm [--models tiny,smollm2] [--tp 1,2] [--repeats 5]

One JSON line a figure, each with the load of the machine. "smollm2" has the shape of SmolLM2-135M and random weights; its nine
heads go with TP 1 and 3. Modes alternate within one process, so that all see the same machine; ratios are medians of pairs.

- start: making the engine and warming it up (imports, and forming the group, not counted); update: weights that lie in this
  process into the live model; ranges: bytes that one rank pulls of a publication.
- tokens: a second, at 1, 8 and 32 turns of 24 context and 48 sampled tokens; torch: the same by the torch engine (TP 1).
- bare: the same requests by `LLMEngine.add_request` and `.step` alone, on all ranks, without our loop and its ticks.
- tick: an empty tick from the leader to all ranks, alone.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from libra.config.schema import ModelConfig, VllmConfig

MODELS = {
    "tiny": (ModelConfig(hidden=128), 110),
    "smollm2": (
        ModelConfig(architecture="llama", hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, max_positions=2048),
        49_152,
    ),
}
BATCHES = (1, 8, 32)
CONTEXT, NEW = 24, 48
TICKS = 1000


def rank(index: int, tp: int, model_name: str, repeats: int, port: int, answers: Any) -> None:
    """One rank of an engine; the first answers."""
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore

    from libra.engine.engine import Engine
    from libra.engine.vllm.lockstep import Lockstep
    from libra.engine.vllm.settings import VllmShape
    from libra.rank.vllm_role import make_engine, preload
    from libra.train.model import build
    from libra.wire.messages import Turn

    torch.set_num_threads(1)
    preload()
    model, words = MODELS[model_name]
    shape = VllmShape(model, words, frozenset(), tp, max(BATCHES), 8192, 1.0, 256, VllmConfig())
    store = PrefixStore(f"{model_name}-{tp}", TCPStore("127.0.0.1", port, is_master=False))
    dist.init_process_group("gloo", store=store, rank=index, world_size=tp)
    lockstep = Lockstep(store, index, tp, 300.0)

    def tell(what: str, **figures: Any) -> None:
        if index == 0:
            load = round(os.getloadavg()[0], 1)
            answers.put({"bench": "vllm", "model": model_name, "tp": tp, "what": what, **figures, "load": load})

    began = time.perf_counter()
    engine = make_engine(shape, index, torch.device("cpu"), f"bench-{os.getppid()}")
    tell("start", seconds=round(time.perf_counter() - began, 2))

    named = {n: p.detach() for n, p in build(model, words, 0).named_parameters()}
    parts = [named[r.name].reshape(-1)[r.start : r.stop] for r in engine.ranges]
    seconds = [timed(partial(engine.install, v, parts)) for v in range(3)]
    whole = sum(p.numel() for p in named.values())
    mine = sum(len(p) for p in parts)
    tell("update", load_s=round(min(seconds), 4), pulled_bytes=4 * mine, of_bytes=4 * whole)

    dist.barrier()
    seconds = []
    for _ in range(TICKS):
        began = time.perf_counter()
        _ = lockstep.tell([], [], False) if lockstep.leads else lockstep.hear()
        seconds.append(time.perf_counter() - began)
    tell("tick", median_us=round(1e6 * statistics.median(seconds), 1))

    def turns(n: int, ordinal: int) -> list[Turn]:
        return [
            Turn(0, i, [(7 * i + ordinal + j) % words for j in range(CONTEXT)], NEW, (ordinal, i, 0, 0))
            for i in range(n)
        ]

    def ours(n: int, ordinal: int) -> None:
        given = turns(n, ordinal)
        left = n
        while left:
            tick = lockstep.tell(given, [], False) if lockstep.leads else lockstep.hear()
            for turn in tick.turns:
                engine.submit(turn)
            left -= len(engine.step())
            lockstep.sampled(engine.sampled)
            given = []

    def bare(n: int, ordinal: int) -> None:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        for turn in turns(n, ordinal):
            params = SamplingParams(
                temperature=1.0, seed=turn.traj, max_tokens=NEW, ignore_eos=True, logprobs=0, detokenize=False,
                skip_clone=True, output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            prompt = tokens_input(turn.tokens, cache_salt="bare")
            engine._engine.add_request(f"{ordinal}-{turn.traj}", prompt, params, arrival_time=float(turn.traj))
        while engine._engine.has_unfinished_requests():
            engine._engine.step()

    modes: dict[str, Callable[[int, int], None]] = {"ours": ours, "bare": bare}
    if tp == 1:
        torch_engine = Engine(model, words, frozenset(), max(BATCHES), 8192, 1.0, 256)
        torch_engine.install(0, named)

        def by_torch(n: int, ordinal: int) -> None:
            for turn in turns(n, ordinal):
                torch_engine.submit(turn)
            while torch_engine.busy:
                torch_engine.step()
            torch_engine.forget(range(n))

        modes["torch"] = by_torch
    ordinal = 0
    for n in BATCHES:
        took: dict[str, list[float]] = {name: [] for name in modes}
        for _ in range(repeats):
            for name, run in modes.items():
                ordinal += 1
                if tp > 1:
                    dist.barrier()
                took[name].append(timed(partial(run, n, ordinal)))
        rates = {name: round(n * NEW / statistics.median(s)) for name, s in took.items()}
        pairs = [a / b for a, b in zip(took["ours"], took["bare"], strict=True)]
        spread = [round(of(pairs), 3) for of in (min, statistics.median, max)]
        tell("tokens", requests=n, tokens_per_s=rates, ours_over_bare=spread)
    if index == 0:
        answers.put(None)


def timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny,smollm2")
    parser.add_argument("--tp", default="1,2,3")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for name in options.models.split(","):
        model, _ = MODELS[name]
        for tp in map(int, options.tp.split(",")):
            if model.heads % tp or model.kv_heads % tp:
                continue
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            answers: Any = context.Queue()
            ranks = [
                context.Process(target=rank, args=(i, tp, name, options.repeats, store.port, answers), daemon=True)
                for i in range(tp)
            ]
            for process in ranks:
                process.start()
            while (line := answers.get(timeout=900)) is not None:
                print(json.dumps(line), flush=True)
            began = time.perf_counter()
            for process in ranks:
                process.kill()
                process.join()
            seconds = round(time.perf_counter() - began, 3)
            print(json.dumps({"bench": "vllm", "model": name, "tp": tp, "what": "end", "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
