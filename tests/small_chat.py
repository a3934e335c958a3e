"""A chat model in miniature: a real byte-level BPE tokenizer, a chat template, and, where asked for, random weights of a Llama.

Made by the tests that need one, in a directory of theirs, as `libra fetch` would have left it. No network, no torch unless
weights are asked for.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from libra.config import pretrained
from libra.config.schema import ModelConfig

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = 2
"""Id of <|im_end|>."""
PLAIN = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As SmolLM2-Instruct has it: any role, no place for tools."""
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    + PLAIN
)
_TEXTS = [
    "What is 43 - 12? The answer is 31. error: malformed; call one tool with",
    '<tool_call>[{"name": "calculator", "arguments": {"expression": "43 - 12"}}]</tool_call>',
    "You have access to the following tools: system user assistant tool",
    *(f"{n} + {n + 7} = {2 * n + 7}" for n in range(100)),
]


def write_words(directory: Path, template: str = PLAIN) -> int:
    """Tokenizer and template; returns the number of tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(word, special=True, normalized=False) for word in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_TEXTS, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps({**stated, "chat_template": template}))
    return made.get_vocab_size()


def chat_model(directory: Path, template: str = PLAIN, weights: bool = False, **fields: Any) -> ModelConfig:
    """The model's directory, and `[model]` as `load` would fill it in. `fields` replace sizes."""
    words = write_words(directory, template)
    sizes = {
        "architecture": "llama",
        "hidden": 24,
        "layers": 2,
        "heads": 3,
        "kv_heads": 1,
        "ffn": 32,
        "max_positions": 1024,
    }
    sizes |= {"rms_norm_eps": 1e-5, "rope_theta": 1e5, "initializer_range": 0.2}
    described = pretrained.config_json(ModelConfig(**{**sizes, **fields}), words)
    described |= {"eos_token_id": END, "pad_token_id": END}
    (directory / "config.json").write_text(json.dumps(described))
    if weights:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(5)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory)).save_pretrained(directory)
    else:
        (directory / "model.safetensors").touch()
    return msgspec.convert({**pretrained.describe(directory), "pretrained": str(directory)}, ModelConfig)
