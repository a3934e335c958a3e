"""vLLM's arguments for one engine of ours, and why each is as it is: docs/engines.md.

Called by `libra.engine.vllm.engine`; a `VllmShape` is made by the role from the run's configuration.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from dataclasses import dataclass
from typing import Any

import torch
from vllm import EngineArgs
from vllm.config import WeightTransferConfig

from libra.config.schema import ModelConfig, VllmConfig
from libra.engine.vllm.device import arguments, block_tokens, cuts_prefill
from libra.engine.vllm.loading import BACKEND


@dataclass(frozen=True)
class VllmShape:
    """One engine: `tp` ranks that together decode `max_batch` turns in `kv_tokens` of room."""

    model: ModelConfig
    vocab_size: int
    stop_ids: frozenset[int]
    tp: int
    max_batch: int
    kv_tokens: int
    temperature: float
    max_context_tokens: int
    vllm: VllmConfig

    def blocks(self, device: torch.device) -> int:
        """KV blocks: room for `kv_tokens` however they are spread over turns, each of which may leave one block part empty;
        and the one block that vLLM keeps for itself."""
        return -(-self.kv_tokens // block_tokens(device)) + self.max_batch + 1

    def kv_bytes(self, device: torch.device) -> int:
        """Of the KV cache of one rank."""
        model = self.model
        width = model.hidden // model.heads * model.kv_heads // self.tp
        each = 2 * model.layers * width * getattr(torch, self.vllm.dtype).itemsize
        return self.blocks(device) * block_tokens(device) * each


def engine_args(shape: VllmShape, directory: str, device: torch.device) -> Any:
    """`directory` holds a transformers configuration; weights come later, from our publication."""
    parts = cuts_prefill(device)
    return EngineArgs(
        model=directory,
        skip_tokenizer_init=True,
        load_format="dummy",
        generation_config="vllm",
        seed=0,
        dtype=shape.vllm.dtype,
        tensor_parallel_size=shape.tp,
        distributed_executor_backend="external_launcher",
        async_scheduling=False,
        scheduling_policy="priority",
        max_num_seqs=shape.max_batch,
        max_model_len=shape.max_context_tokens,
        max_num_batched_tokens=max(
            shape.vllm.prefill_tokens, shape.max_batch, 0 if parts else shape.max_context_tokens
        ),
        enable_chunked_prefill=parts,
        enable_prefix_caching=True,
        block_size=block_tokens(device),
        kv_cache_memory_bytes=shape.kv_bytes(device),
        enforce_eager=shape.vllm.enforce_eager,
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        **arguments(device),
    )
