"""transformers' own models as the reference that the engine is compared with."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from libra.config.schema import ModelConfig

VOCAB = 61


def reference_model(config: ModelConfig, seed: int = 0, vocab_size: int = VOCAB) -> PreTrainedModel:
    """A random model; biases are made non-zero, for transformers starts them at zero."""
    kind, of = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[config.architecture]
    torch.manual_seed(seed)
    model = of(
        kind(
            vocab_size=vocab_size,
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            intermediate_size=config.ffn,
            tie_word_embeddings=config.tied_embeddings,
            initializer_range=config.initializer_range,
            max_position_embeddings=config.max_positions,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters by name; tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def reference_logprobs(model: PreTrainedModel, tokens: list[int], temperature: float) -> torch.Tensor:
    """log softmax(logits / T) of tokens[i + 1] at i: [tokens - 1], float64."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1].double() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
