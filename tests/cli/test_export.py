"""`libra export`: what comes out loads and generates with transformers alone, and holds the checkpoint's weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_chat import END, chat_model

from libra.checkpoint.directory import WEIGHTS, Manifest, begin, commit
from libra.cli.arguments import Export
from libra.cli.export import export
from libra.config import Config, dump
from libra.config.rundir import CONFIG_FILE
from libra.config.schema import ModelConfig
from libra.config.worlds import CalculatorConfig
from libra.env.registry import vocabulary
from libra.errors import CheckpointError, PreflightError
from libra.train.model import build


def run_of(tmp_path: Path, config: Config, *steps: int) -> Path:
    """A run's directory with checkpoints whose weights are `step` times those of the model."""
    run_dir = tmp_path / "run"
    words = vocabulary(config.live_env, config.model)
    network = build(config.model, words.size, seed=0)
    for step in steps:
        partial = begin(run_dir, step)
        save_file({n: p.detach() * step for n, p in network.named_parameters()}, partial / WEIGHTS)
        sizes = {WEIGHTS: (partial / WEIGHTS).stat().st_size}
        commit(partial, Manifest(code="", run="run", incarnation="", step=step, version=step, files=sizes, parts=()))
    run_dir.mkdir(exist_ok=True)
    (run_dir / CONFIG_FILE).write_text(dump(config))
    (run_dir / "pid").write_text("")
    return run_dir


def loaded(directory: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    return network, AutoTokenizer.from_pretrained(directory, local_files_only=True)


def test_the_small_model_loads_and_generates_elsewhere(tmp_path):
    config = Config(model=ModelConfig(hidden=16, layers=1, heads=2, kv_heads=1, ffn=16))
    run_dir = run_of(tmp_path, config, 1, 2)
    assert export(Export(str(run_dir), str(tmp_path / "out"))) == 0
    network, tokenizer = loaded(tmp_path / "out")
    expected = build(config.model, 116, seed=0).state_dict()
    assert all(torch.equal(network.state_dict()[n], 2 * t) for n, t in expected.items()), "the newest checkpoint"
    ids = tokenizer("<question> 43 - 12 <solve>", return_tensors="pt").input_ids
    out = network.generate(ids, max_new_tokens=4, do_sample=False)
    assert out.shape[1] > ids.shape[1]
    assert set(network.generation_config.eos_token_id) == set(vocabulary(CalculatorConfig()).stop_ids)


def test_a_pretrained_model_keeps_its_own_description_and_tokenizer(tmp_path):
    model = chat_model(tmp_path / "m", weights=True, tied_embeddings=True)
    env = CalculatorConfig(max_operations=1, turn_tokens=48, trajectory_tokens=900)
    run_dir = run_of(tmp_path, Config(model=model, env=env), 3)
    assert export(Export(str(run_dir), str(tmp_path / "deep/er/out"), step=3)) == 0
    network, tokenizer = loaded(tmp_path / "deep/er/out")
    assert network.config.rms_norm_eps == model.rms_norm_eps
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert network.generation_config.eos_token_id == END
    assert torch.equal(network.lm_head.weight, network.model.embed_tokens.weight)


def test_nothing_is_overwritten_and_a_missing_checkpoint_is_named(tmp_path):
    config = Config(model=ModelConfig(hidden=16, layers=1, heads=2, kv_heads=1, ffn=16))
    run_dir = run_of(tmp_path, config, 4)
    (tmp_path / "out").mkdir()
    with pytest.raises(PreflightError, match="is there already"):
        export(Export(str(run_dir), str(tmp_path / "out")))
    with pytest.raises(CheckpointError, match=r"has checkpoints of the steps \[4\]; expected one of step 5"):
        export(Export(str(run_dir), str(tmp_path / "other"), step=5))
    assert not (tmp_path / "other").exists()
