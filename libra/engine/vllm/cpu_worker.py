"""vLLM's CPU worker, with a name of its own for the shared memory of its engine.

With the external launcher vLLM names that memory after `env://`, which all engines of a machine have in common: two engines
of the same TP degree would add up each other's activations. Loaded by vLLM, by its name in `EngineArgs.worker_cls`.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class NamedCpuWorker(CPUWorker):
    def __init__(
        self,
        vllm_config: Any,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        # The process group stands already, so nothing else is read from this but what follows the last colon.
        named = f"env://:{os.environ['LIBRA_VLLM_NAME']}"
        super().__init__(vllm_config, local_rank, rank, named, is_driver_worker)
