"""The policy network: a transformers decoder made from `ModelConfig`, and the wrapper that gives log-probabilities.

Every core rank builds the whole model, from the same file or the same seed, before it is cut, so all ranks begin with the
same weights and nothing has to be broadcast. Called by `libra.train.sharded`. transformers is imported by `preload`, or when
a model is built.

Names for publication are transformers' own (`model.layers.0.self_attn.q_proj.weight`). A tied `lm_head.weight` is not
a parameter of its own and is never listed: who loads the weights ties it to `model.embed_tokens.weight`.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from libra.config.pretrained import config_json
from libra.config.schema import ModelConfig
from libra.errors import WeightsError
from libra.train.packing import ATTENTION, Packing, attend

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

LOGIT_CHUNK_TOKENS = 256
"""Positions whose logits exist at a time where they are computed again in the backward pass."""
_PREFIX = "network."
_MISFITS = ("missing_keys", "unexpected_keys", "mismatched_keys")


def transformers_config(model: ModelConfig, vocab_size: int) -> "PretrainedConfig":
    """The transformers configuration of a model: no dropout, no cache, plain rotary positions."""
    from transformers import LlamaConfig, Qwen2Config

    kind = {"qwen2": Qwen2Config, "llama": LlamaConfig}[model.architecture]
    return kind(**{**config_json(model, vocab_size), "use_cache": False})


def preload(model: ModelConfig) -> None:
    """Import what `build` needs (seconds), so that a role does it before it is watched for progress."""
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM

    assert {"qwen2": Qwen2ForCausalLM, "llama": LlamaForCausalLM}[model.architecture]


def build(model: ModelConfig, vocab_size: int, seed: int) -> "PreTrainedModel":
    """A float32 decoder on the CPU: the pretrained one, or a fresh one of which the same arguments give the same weights in
    every process. The global random state is left as it was. WeightsError where a file does not hold exactly this model.
    """
    from transformers import AutoModelForCausalLM

    config = transformers_config(model, vocab_size)
    if not model.pretrained:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    try:
        network, told = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]  # a pair, with output_loading_info
            model.pretrained,
            config=config,
            attn_implementation="sdpa",
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, RuntimeError) as e:
        raise WeightsError(f"{model.pretrained} cannot be loaded as a {model.architecture}: {e}") from e
    wrong = {kind: sorted(map(str, told[kind]))[:3] for kind in _MISFITS if told.get(kind)}
    if wrong:
        raise WeightsError(
            f"{model.pretrained} does not hold the model of its config.json: {wrong}; fetch or save it anew"
        )
    return network.train()


def published_name(name: str) -> str:
    """The name under which a parameter of `Policy` is published: transformers' own."""
    return name.removeprefix(_PREFIX)


class Policy(nn.Module):
    """Log-probabilities of chosen tokens. It is the FSDP root, so that one forward runs all collectives of a round.

    Rows come packed (`libra.train.packing`). Logits are computed only at the positions asked for: with a large vocabulary
    they are most of the work. With `recompute` a layer keeps only its input for the backward pass, and the head keeps no
    logits: they are made, and made again, for `LOGIT_CHUNK_TOKENS` positions at a time.
    """

    def __init__(self, network: "PreTrainedModel", temperature: float, recompute: bool = False) -> None:
        from transformers import AttentionInterface

        super().__init__()
        AttentionInterface.register(ATTENTION, attend)
        network.set_attn_implementation(ATTENTION)
        layers: Any = network.get_submodule("model.layers") if recompute else ()
        for layer in layers:
            # Around `forward`, so inside the hooks of `__call__`: what FSDP gathers is not gathered by the recomputation again.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        self.network = network
        self.temperature = temperature
        self.recompute = recompute

    def forward(self, ids: torch.Tensor, packing: Packing, select: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """log softmax(logits / temperature) of `targets` (n) at positions `select` (n) of the packed `ids` (t)."""
        network: Any = self.network
        body = network.model(
            input_ids=ids.unsqueeze(0), position_ids=packing.positions, packing=packing, use_cache=False
        )
        hidden = body.last_hidden_state[0].index_select(0, select)
        if not self.recompute:
            return self._logprob(hidden, targets)
        parts = zip(hidden.split(LOGIT_CHUNK_TOKENS), targets.split(LOGIT_CHUNK_TOKENS), strict=True)
        chunk = partial(checkpoint, self._logprob, use_reentrant=False)
        return torch.cat([chunk(*part) for part in parts])

    def _logprob(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        network: Any = self.network
        logits = network.lm_head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return -F.cross_entropy(logits, targets, reduction="none")
