"""The memory model: its parts by hand, and that a run which cannot fit is refused with what would make it fit."""

import pytest

from libra.config import Config, memory, preflight
from libra.config.schema import BucketConfig, ModelConfig, TrainerConfig
from libra.errors import PreflightError

SMOLLM2 = ModelConfig(
    architecture="llama", hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, vocabulary=49_152, max_positions=8192
)


def test_parameters_are_those_of_the_published_model():
    assert memory.parameters(SMOLLM2, words=0) == 134_515_008


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_transformers_does(architecture, tied):
    model = ModelConfig(architecture=architecture, hidden=24, heads=3, kv_heads=1, ffn=32, tied_embeddings=tied)
    from libra.train.model import build

    assert memory.parameters(model, 77) == sum(p.numel() for p in build(model, 77, 0).parameters())


def test_what_saves_memory_lowers_the_estimate():
    def trainer(**options: object) -> int:
        return memory.trainer_bytes(Config(model=SMOLLM2, trainer=TrainerConfig(**options)))  # type: ignore[arg-type]

    assert trainer(recompute=True) < trainer(compute="bfloat16") < trainer()
    assert trainer(micro_batch_tokens=512) < trainer(micro_batch_tokens=1024)


def test_a_run_that_does_not_fit_is_refused_with_what_would_help():
    config = Config(model=SMOLLM2, bucket=(BucketConfig(engines=2),))
    (problem,) = memory.problems(config, available_bytes=2 << 30)
    assert "2 training ranks take about" in problem
    assert "set trainer.recompute = true" in problem
    assert list(memory.problems(config, available_bytes=1 << 40)) == []
    assert list(memory.problems(config, available_bytes=None)) == []


def test_the_preflight_asks_the_machine(monkeypatch, tmp_path):
    from libra.config.schema import RunConfig

    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    config = Config(run=RunConfig(directory=str(tmp_path)))
    with pytest.raises(PreflightError, match=r"memory: 2 training ranks take about \d+ MiB"):
        preflight.check(config)
    preflight.check(config, machine=False)
