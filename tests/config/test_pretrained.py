"""[model] from a pretrained model's config.json: where it is found, what is refused, and that it stands alone afterwards."""

import json
from pathlib import Path

import pytest
from small_chat import chat_model

from libra.config import dump, load, preflight, pretrained
from libra.config.schema import ModelConfig
from libra.errors import ConfigError, PreflightError


def run_file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text("\n".join([f'[run]\ndirectory = "{tmp_path}"', *lines]) + "\n")
    return path


def edit(directory: Path, **values: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_all_sizes_come_from_config_json(tmp_path):
    model = chat_model(tmp_path / "m", rms_norm_eps=1e-5, rope_theta=5e4, tied_embeddings=False)
    got = load(run_file(tmp_path, "[model]", f'pretrained = "{tmp_path / "m"}"')).model
    assert got == model
    assert (got.rms_norm_eps, got.rope_theta, got.tied_embeddings, got.hidden) == (1e-5, 5e4, False, 24)
    assert got.vocabulary > 256


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_what_is_written_is_described_alike(tmp_path, architecture):
    model = ModelConfig(architecture=architecture, hidden=64, heads=4, kv_heads=2, rope_theta=1e6, rms_norm_eps=3e-6)
    (tmp_path / "config.json").write_text(json.dumps(pretrained.config_json(model, 77)))
    assert pretrained.describe(tmp_path) == {
        **{f: getattr(model, f) for f in ModelConfig.__struct_fields__ if f != "pretrained"},
        "vocabulary": 77,
    }


def test_a_resolved_run_is_read_without_its_model(tmp_path):
    chat_model(tmp_path / "m")
    config = load(run_file(tmp_path, "[model]", f'pretrained = "{tmp_path / "m"}"'))
    (tmp_path / "m" / "config.json").unlink()
    again = tmp_path / "again.toml"
    again.write_text(dump(config))
    assert load(again) == config


def test_a_size_that_contradicts_the_model_is_refused_where_it_stands(tmp_path):
    chat_model(tmp_path / "m")
    path = run_file(tmp_path, "[model]", f'pretrained = "{tmp_path / "m"}"', "layers = 3")
    with pytest.raises(
        ConfigError, match=r"model.layers in .*run.toml: got 3 beside model.pretrained, .* says 2; leave the key"
    ):
        load(path)


def test_names_are_found_in_our_cache_and_in_the_hubs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chat_model(tmp_path / "cache/libra/models/small-chat")
    assert pretrained.find("small-chat") == tmp_path / "cache/libra/models/small-chat"
    hub = tmp_path / "hub"
    (hub / "models--org--chat/refs").mkdir(parents=True)
    (hub / "models--org--chat/refs/main").write_text("abc123")
    chat_model(hub / "models--org--chat/snapshots/abc123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(hub))
    assert pretrained.find("org/chat") == hub / "models--org--chat/snapshots/abc123"
    with pytest.raises(ConfigError, match="did you mean 'small-chat'"):
        pretrained.find("smal-chat")
    with pytest.raises(
        ConfigError, match=r"neither a directory nor in the cache .* get it with: libra fetch org/other"
    ):
        pretrained.find("org/other")


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"model_type": "mistral"}, "model_type: got 'mistral', expected one of llama, qwen2"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', expected 'silu'"),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
            "rope type: got 'llama3', expected 'default'",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "rope type: got 'linear'"),
        ({"head_dim": 16}, "head_dim: got 16, expected 8"),
        ({"attention_bias": True}, "attention_bias: got True, expected False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_hidden_layers": "two"}, "layers"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_by_name(tmp_path, stated, says):
    chat_model(tmp_path / "m")
    edit(tmp_path / "m", **stated)
    with pytest.raises(ConfigError, match=r"model.pretrained in .*config.json") as e:
        load(run_file(tmp_path, "[model]", f'pretrained = "{tmp_path / "m"}"'))
    assert says in str(e.value)


def test_an_older_config_json_is_understood(tmp_path):
    chat_model(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    stated = json.loads(path.read_text())
    del stated["rope_parameters"], stated["rms_norm_eps"], stated["head_dim"]
    path.write_text(json.dumps({**stated, "rope_theta": 7e4, "rope_scaling": None}))
    described = pretrained.describe(tmp_path / "m")
    assert (described["rope_theta"], described["rms_norm_eps"]) == (7e4, 1e-6)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (
            lambda m: (m / "model.safetensors").unlink(),
            "holds neither model.safetensors nor model.safetensors.index.json",
        ),
        (lambda m: (m / "tokenizer.json").unlink(), "holds no tokenizer.json"),
        (lambda m: edit(m, num_hidden_layers=5), "model.layers: got 2, but"),
        (lambda m: m.rename(m.with_name("gone")), "neither a directory nor in the cache"),
        (lambda m: edit(m, model_type="gpt2"), "model_type: got 'gpt2'"),
    ],
)
def test_the_preflight_looks_before_anything_is_loaded(tmp_path, harm, says):
    chat_model(tmp_path / "m")
    steps = "[warm_start]\nsteps = 0"
    config = load(run_file(tmp_path, "[model]", f'pretrained = "{tmp_path / "m"}"', steps))
    preflight.check(config, machine=False)
    harm(tmp_path / "m")
    with pytest.raises(PreflightError) as e:
        preflight.check(config, machine=False)
    assert says in str(e.value)


def test_head_counts_of_a_pretrained_model_are_checked_against_tensor_parallelism(tmp_path):
    chat_model(tmp_path / "m")
    lines = ["[model]", f'pretrained = "{tmp_path / "m"}"', "[[bucket]]", "tp = 2", "[warm_start]", "steps = 0"]
    with pytest.raises(
        PreflightError, match=r"bucket.0.tp: got 2, expected a divisor of model.heads = 3 and model.kv_heads = 1"
    ):
        preflight.check(load(run_file(tmp_path, *lines)), machine=False)


def test_a_pretrained_model_has_no_warm_start(tmp_path):
    chat_model(tmp_path / "m")
    with pytest.raises(PreflightError, match=r"warm_start.steps: got 1000, expected 0 with model.pretrained"):
        preflight.check(load(run_file(tmp_path, "[model]", f'pretrained = "{tmp_path / "m"}"')), machine=False)
