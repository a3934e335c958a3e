"""All that depends on whose device it is; nothing else names one.

    late_imports()       what a spare child imports beside the engine
    prepare()            before vLLM is imported: the environment that it reads then
    arguments(device)    what `EngineArgs` needs for this kind of device
    mend(model, device)  after weights were loaded in place

CPU is what runs here. CUDA and Ascend take vLLM's own defaults; they have not been run.
"""
# pyright: reportMissingImports=false

import importlib
import os
from typing import Any

import torch
from torch import nn

BLOCK_TOKENS = {"cpu": 32}
"""Of the KV cache. vLLM's CPU kernels want a multiple of 32."""
DEFAULT_BLOCK_TOKENS = 16
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this process: it must die with it
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each engine of a machine binds itself to the same first cores
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

LATE = (
    "vllm.model_executor.models.registry",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.worker.gpu_worker",
)


def prepare() -> None:
    """Call it before anything imports vLLM. What the user has set stays."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def late_imports() -> None:
    """What vLLM imports only when an engine is made. Touches no device."""
    for name in LATE:
        importlib.import_module(name)


def block_tokens(device: torch.device) -> int:
    """Tokens of one KV block."""
    return BLOCK_TOKENS.get(device.type, DEFAULT_BLOCK_TOKENS)


def cuts_prefill(device: torch.device) -> bool:
    """Whether a context may be prefilled in parts. vLLM then winds back the generator of a request that has a seed, as all of
    ours have, and CPU generators cannot be wound back: "CPU Generator does not use offset" would end the engine."""
    return device.type != "cpu"


def arguments(device: torch.device) -> dict[str, Any]:
    """Of `EngineArgs`, beside those that are the same everywhere."""
    if device.type == "cpu":
        return {"worker_cls": "libra.engine.vllm.cpu_worker.NamedCpuWorker"}
    return {}


def bind(device: torch.device, index: int, name: str) -> None:
    """Tells vLLM which rank of its engine this process is, on which device. `name` is the engine's own on this machine."""
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(device.index or 0), "LIBRA_VLLM_NAME": name}


def mend(model: nn.Module, device: torch.device) -> None:
    """On CPU a tied `lm_head` keeps a packed copy of the embedding that loading in place does not renew: pack it again."""
    head = getattr(model, "lm_head", None)
    if device.type != "cpu" or head is None or not hasattr(head, "weight"):
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(head, remove_weight=False)
