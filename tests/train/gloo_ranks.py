"""Runs a function on N real processes that form one gloo group, under a deadline, and returns what each rank returned.

Children are forked from a server that has imported torch and the trainer once, so that a group of three costs a fraction
of a second. A rank's exception is raised here with its traceback; a rank that hangs is killed and named.
"""

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

GROUP_TIMEOUT_S = 20.0
"""A collective that waits longer raises in the rank: on gloo the time-out is what ends a hang."""
DEADLINE_S = 60.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["libra.train.warm_start", "libra.train.trainer", "transformers.models.qwen2.modeling_qwen2"]
)


def _rank(pipe: Connection, store: str, index: int, size: int, function: Callable[..., Any], arguments: bytes) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            dist.get_default_backend_for_device("cpu"),
            store=dist.FileStore(store, size),  # type: ignore[attr-defined]
            rank=index,
            world_size=size,
            timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        )
        result = function(index, size, *pickle.loads(arguments))
        pipe.send_bytes(pickle.dumps((True, result)))
        dist.barrier()
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
    finally:
        dist.destroy_process_group()


def run_ranks(size: int, directory: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(index, size, *arguments)` on every rank of a fresh group; the results in rank order.

    `function` is at the top of a test module, its arguments and result can be pickled.
    """
    store = str(directory / f"store-{time.monotonic_ns()}")
    deadline = time.monotonic() + DEADLINE_S
    # Plain pickle copies tensors; multiprocessing's own would share their memory with a process that is about to end.
    packed = pickle.dumps(arguments)
    pipes, processes = [], []
    for index in range(size):
        here, there = _context.Pipe(duplex=False)
        process = _context.Process(target=_rank, args=(there, store, index, size, function, packed), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        results = []
        for index, pipe in enumerate(pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(
                    f"rank {index} of {size} gave no result of {function.__name__} within {DEADLINE_S} s"
                )
            ok, result = pickle.loads(pipe.recv_bytes())
            if not ok:
                raise AssertionError(f"rank {index} of {size} failed in {function.__name__}:\n{result}")
            results.append(result)
        return results
    finally:
        for process in processes:
            process.join(max(0.1, min(5.0, deadline - time.monotonic())) if process.exitcode is None else 0)
            if process.is_alive():
                process.kill()
                process.join()
