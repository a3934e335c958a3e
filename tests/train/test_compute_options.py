"""Recompute changes no number; bfloat16 passes change few, and nothing that is stored."""

from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from training_parts import CPU, VOCABULARY, config, loss_tokens, sample, worst_difference

from libra.train.trainer import StepResult, Trainer

pytestmark = pytest.mark.process


def steps(
    index: int, size: int, group_bytes: int, architecture: str, options: dict[str, object]
) -> tuple[list[StepResult], dict[str, torch.Tensor], set[torch.dtype]]:
    """Three steps; their results, the weights after them (rank 0), and the types of what is stored between them."""
    c = config(architecture=architecture, **options)  # type: ignore[arg-type]
    trainer = Trainer(c, VOCABULARY, index, size, CPU, group_bytes=group_bytes)
    results, stored = [], set()
    for step in range(3):
        batch = [sample(10 * step + i, 3 + i) for i in range(4)]
        trainer.open(step, loss_tokens(batch))
        trainer.round(batch[index::size])
        trainer.round([])
        stored |= {s.data.dtype for s in (*trainer.shards(), *trainer.sharded.gradients())}
        results.append(trainer.close())
    return results, trainer.sharded.full_state(), stored


def run(tmp_path: Path, size: int, group_bytes: int, architecture: str, **options: object):
    return run_ranks(size, tmp_path, steps, group_bytes, architecture, options)[0]


@pytest.mark.parametrize(("size", "group_bytes"), [(1, 1 << 30), (2, 1)])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_recompute_gives_the_same_steps(tmp_path, size, group_bytes, architecture):
    plain, weights, _ = run(tmp_path, size, group_bytes, architecture)
    again, others, _ = run(tmp_path, size, group_bytes, architecture, recompute=True)
    for a, b in zip(plain, again, strict=True):
        assert (a.finite, b.finite) == (True, True)
        assert b.loss == pytest.approx(a.loss, abs=1e-6)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-5)
    assert worst_difference(weights, others) < 1e-6


@pytest.mark.parametrize(("size", "group_bytes"), [(1, 1 << 30), (2, 1)])
def test_bfloat16_passes_stay_close_and_store_float32(tmp_path, size, group_bytes):
    plain, weights, _ = run(tmp_path, size, group_bytes, "llama")
    half, others, stored = run(tmp_path, size, group_bytes, "llama", compute="bfloat16")
    assert stored == {torch.float32}
    assert all(r.finite for r in half)
    for a, b in zip(plain, half, strict=True):
        assert b.loss == pytest.approx(a.loss, abs=0.05)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=0.1)
    moved = worst_difference(weights, others)
    assert 0 < moved < 0.02, "bfloat16 is not float32, and 8 bits of mantissa are not nothing"


def test_bfloat16_and_recompute_go_together(tmp_path):
    half, weights, _ = run(tmp_path, 2, 1, "llama", compute="bfloat16")
    both, others, _ = run(tmp_path, 2, 1, "llama", compute="bfloat16", recompute=True)
    assert [r.loss for r in both] == pytest.approx([r.loss for r in half], abs=1e-5)
    assert worst_difference(weights, others) < 1e-5
