"""A pretrained model on disk: where it lies, what its config.json says, and the way back from `[model]` to a config.json.

    model.pretrained =  a directory  |  a name in Libra's own cache  |  ORG/NAME in the hub's cache
                             └────────────── find ──────────────┘
                                              v
    config.json ── describe ──> the fields of ModelConfig ── config_json ──> config.json of trainers and of exports

Invariant: trainer, engine and export read one and the same `ModelConfig`, so they cannot disagree about an epsilon. What our
decoder does not do (other architectures, scaled positions, biases) is refused here, by name, before anything is loaded.
Reads JSON only. Called by `libra.config.load`, by the preflight, and by whoever writes or reads a model's directory.
"""

import difflib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libra.config.schema import ModelConfig
from libra.errors import ConfigError

CONFIG_FILE = "config.json"
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
"""One of them: the whole, or the table of its parts."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""What belongs to a tokenizer, as far as it is there."""
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
FIELDS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "initializer_range": "initializer_range",
    "rms_norm_eps": "rms_norm_eps",
    "max_positions": "max_position_embeddings",
}
"""`[model]` key -> transformers' key."""
_DEFAULTS: dict[str, Any] = {"tie_word_embeddings": False, "initializer_range": 0.02, "rms_norm_eps": 1e-6}
"""What transformers takes where its file is silent; sizes have to be stated."""


def cache_directory() -> Path:
    """${XDG_CACHE_HOME:-~/.cache}/libra/models: where `libra fetch` puts models, one directory each."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "libra" / "models"


def find(name: str) -> Path:
    """The directory of a pretrained model, absolute. ConfigError where there is none, with the command that gets it."""
    direct = Path(name).expanduser()
    if direct.is_dir():
        return direct.absolute()
    if "/" not in name and (cached := cache_directory() / name).is_dir():
        return cached
    if name.count("/") == 1 and name[0] not in "./~" and (there := _in_hub_cache(name)):
        return there
    raise ConfigError("model.pretrained", [_missing(name)])


def describe(directory: Path) -> dict[str, Any]:
    """The fields of `ModelConfig` as config.json has them. ConfigError with everything that our decoder cannot do."""
    where = str(directory / CONFIG_FILE)
    try:
        stated = json.loads((directory / CONFIG_FILE).read_bytes())
        assert isinstance(stated, dict)
    except OSError as e:
        raise ConfigError(
            where, [f"cannot be read ({e.strerror}); expected a directory in transformers' format"]
        ) from e
    except (ValueError, AssertionError) as e:
        raise ConfigError(where, [f"is no JSON object ({e}); expected transformers' config.json"]) from e
    if problems := [*_unsupported(stated), *(f"{key} is missing" for key in _silent(stated))]:
        raise ConfigError(where, problems)
    values: dict[str, Any] = {field: stated.get(key, _DEFAULTS.get(key)) for field, key in FIELDS.items()}
    rope = _rope(stated)
    return {
        **values,
        "architecture": stated["model_type"],
        "tied_embeddings": bool(values["tied_embeddings"]),
        "initializer_range": float(values["initializer_range"]),
        "rms_norm_eps": float(values["rms_norm_eps"]),
        "rope_theta": float(rope.get("rope_theta", stated.get("rope_theta", 10_000.0))),
    }


def problems(model: ModelConfig) -> list[str]:
    """What keeps a run from using the model's directory, one line each; none where `pretrained` is empty."""
    if not model.pretrained:
        return []
    directory = Path(model.pretrained)
    if not directory.is_dir():
        return [_missing(model.pretrained)]
    try:
        described = describe(directory)
    except ConfigError as e:
        return [f"model.pretrained: {e.source}: {p}" for p in e.problems]
    found = [
        f"model.{field}: got {getattr(model, field)!r}, but {directory / CONFIG_FILE} says {value!r}; leave the key out"
        for field, value in described.items()
        if getattr(model, field) != value
    ]
    if not any((directory / file).is_file() for file in WEIGHT_FILES):
        found.append(f"model.pretrained: {directory} holds neither {' nor '.join(WEIGHT_FILES)}; expected one of them")
    if not (directory / "tokenizer.json").is_file():
        found.append(f"model.pretrained: {directory} holds no tokenizer.json; save its fast tokenizer there")
    return found


def copy_tokenizer(source: Path, directory: Path) -> None:
    """The tokenizer and the chat template of one model's directory into another; the files' bytes are the same."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)


def config_json(model: ModelConfig, vocabulary: int) -> dict[str, Any]:
    """The model as transformers' config.json has it; the inverse of `describe`. `vocabulary` counts token ids."""
    stated: dict[str, Any] = {
        "architectures": [ARCHITECTURES[model.architecture]],
        "model_type": model.architecture,
        **{key: getattr(model, field) for field, key in FIELDS.items()},
        "vocab_size": vocabulary,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "attention_dropout": 0.0,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if model.architecture == "qwen2":
        return {**stated, "use_sliding_window": False}
    return {**stated, "head_dim": model.hidden // model.heads, "attention_bias": False, "mlp_bias": False}


def _silent(stated: Mapping[str, Any]) -> list[str]:
    return [key for key in FIELDS.values() if key not in stated and key not in _DEFAULTS]


def _rope(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 has `rope_parameters`, older files `rope_scaling` beside `rope_theta`."""
    return stated.get("rope_parameters") or stated.get("rope_scaling") or {}


def _unsupported(stated: Mapping[str, Any]) -> list[str]:
    kind = stated.get("model_type")
    if kind not in ARCHITECTURES:
        return [f"model_type: got {kind!r}, expected one of {', '.join(ARCHITECTURES)}: no other decoder is built here"]
    hidden, heads = stated.get("hidden_size", 0), stated.get("num_attention_heads", 0)
    width = hidden // heads if heads else 0
    rope = _rope(stated)
    checks: list[tuple[str, Any, Any]] = [
        ("hidden_act", stated.get("hidden_act", "silu"), "silu"),
        ("rope type", rope.get("rope_type", rope.get("type", "default")), "default"),
        ("head_dim", stated.get("head_dim") or width, width),
        ("mlp_bias", bool(stated.get("mlp_bias")), False),
        ("use_sliding_window", bool(stated.get("use_sliding_window")), False),
        ("quantization_config", stated.get("quantization_config"), None),
    ]
    if kind == "llama":
        checks.append(("attention_bias", bool(stated.get("attention_bias")), False))
    return [
        f"{key}: got {got!r}, expected {want!r}: the decoder does nothing else"
        for key, got, want in checks
        if got != want
    ]


def _in_hub_cache(name: str) -> Path | None:
    """The snapshot of ORG/NAME in the hub's cache; the network is never asked."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, CONFIG_FILE)
    return Path(config).parent if isinstance(config, str) else None


def _missing(name: str) -> str:
    root = cache_directory()
    known = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"get it with: libra fetch {name}"
    return (
        f"model.pretrained: got {name!r}, which is neither a directory nor in the cache ({root}) or the hub's; {hint}"
    )
