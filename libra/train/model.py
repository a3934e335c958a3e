"""The policy network: a transformers decoder made from `ModelConfig`, and the wrapper that gives log-probabilities.

Every core rank builds the whole model from the same seed before it is cut, so all ranks begin with the same weights and
nothing has to be broadcast. Called by `libra.train.sharded`. transformers is imported by `preload`, or when a model is built.

Names for publication are transformers' own (`model.layers.0.self_attn.q_proj.weight`). A tied `lm_head.weight` is not
a parameter of its own and is never listed: who loads the weights ties it to `model.embed_tokens.weight`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from libra.config.schema import ModelConfig
from libra.train.packing import ATTENTION, Packing, attend

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

RMS_NORM_EPS = 1e-6
"""Of every norm; engines must use the same."""
_PREFIX = "network."


def transformers_config(model: ModelConfig, vocab_size: int) -> "PretrainedConfig":
    """The transformers configuration of a model: no dropout, no cache, plain rotary positions."""
    from transformers import LlamaConfig, Qwen2Config

    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": model.max_positions,
        "initializer_range": model.initializer_range,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tied_embeddings,
        "attention_dropout": 0.0,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if model.architecture == "qwen2":
        return Qwen2Config(use_sliding_window=False, **common)
    return LlamaConfig(head_dim=model.hidden // model.heads, attention_bias=False, mlp_bias=False, **common)


def describe(model: ModelConfig, vocab_size: int, directory: Path) -> None:
    """Write what a transformers directory says of a model, its weights excepted: for engines that read their shape from one."""
    config = transformers_config(model, vocab_size)
    config.architectures = [{"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[model.architecture]]
    config.save_pretrained(directory)


def preload(model: ModelConfig) -> None:
    """Import what `build` needs (seconds), so that a role does it before it is watched for progress."""
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM

    assert {"qwen2": Qwen2ForCausalLM, "llama": LlamaForCausalLM}[model.architecture]


def build(model: ModelConfig, vocab_size: int, seed: int) -> "PreTrainedModel":
    """A freshly initialised float32 decoder on the CPU. The same arguments give the same weights in every process.

    The global random state is left as it was.
    """
    from transformers import AutoModelForCausalLM

    config = transformers_config(model, vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def published_name(name: str) -> str:
    """The name under which a parameter of `Policy` is published: transformers' own."""
    return name.removeprefix(_PREFIX)


class Policy(nn.Module):
    """Log-probabilities of chosen tokens. It is the FSDP root, so that one forward runs all collectives of a round.

    Rows come packed (`libra.train.packing`). Logits are computed only at the positions asked for: with a large vocabulary
    they are most of the work.
    """

    def __init__(self, network: "PreTrainedModel", temperature: float) -> None:
        from transformers import AttentionInterface

        super().__init__()
        AttentionInterface.register(ATTENTION, attend)
        network.set_attn_implementation(ATTENTION)
        self.network = network
        self.temperature = temperature

    def forward(self, ids: torch.Tensor, packing: Packing, select: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """log softmax(logits / temperature) of `targets` (n) at positions `select` (n) of the packed `ids` (t)."""
        network: Any = self.network
        body = network.model(
            input_ids=ids.unsqueeze(0), position_ids=packing.positions, packing=packing, use_cache=False
        )
        logits = network.lm_head(body.last_hidden_state[0].index_select(0, select))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return -F.cross_entropy(logits, targets, reduction="none")
