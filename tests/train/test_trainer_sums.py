"""The step is a plain sum over micro-batches of all ranks: equal to one process, whoever computed what."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from training_parts import CPU, VOCABULARY, Reference, config, loss_tokens, sample, worst_difference

from libra.errors import RoleError
from libra.train.trainer import StepResult, Trainer
from libra.wire.messages import Sample

pytestmark = pytest.mark.process


def deal(micro_batches: list[list[Sample]], index: int, size: int, shift: int = 0) -> list[list[Sample]]:
    """This rank's rounds: micro-batches dealt in turn, an empty one where they have run out."""
    rounds = []
    for first in range(0, len(micro_batches), size):
        mine = first + (index + shift) % size
        rounds.append(micro_batches[mine] if mine < len(micro_batches) else [])
    return rounds


def three_steps(
    index: int, size: int, dtype_name: str, group_bytes: int, tied: bool, architecture: str
) -> dict[str, float]:
    dtype = getattr(torch, dtype_name)
    c = config(tied=tied, architecture=architecture)
    trainer = Trainer(c, VOCABULARY, index, size, CPU, dtype=dtype, group_bytes=group_bytes)
    reference = Reference(c, dtype)
    worst = {"start": 0.0, "loss": 0.0, "norm": 0.0, "least_norm": math.inf}
    state = trainer.sharded.full_state()
    if index == 0:
        worst["start"] = worst_difference(state, reference.state())
    for step in range(3):
        uneven = [[sample(10 * step + j + 100 * i, 1 + (j + i) % 4) for j in range(i)] for i in (1, 4, 2, 3)]
        batch = [s for micro in uneven for s in micro]
        trainer.open(step, loss_tokens(batch))
        for micro in deal(uneven, index, size):
            trainer.round(micro)
        trainer.round([])  # a round of dummies only
        got = trainer.close()
        loss, norm = reference.step(step, batch)
        assert got.finite
        worst["loss"] = max(worst["loss"], abs(got.loss - loss))
        worst["norm"] = max(worst["norm"], abs(got.grad_norm - norm))
        worst["least_norm"] = min(worst["least_norm"], norm)
    state = trainer.sharded.full_state()
    if index == 0:
        worst["state"] = worst_difference(state, reference.state())
    return worst


@pytest.mark.parametrize(
    ("size", "dtype", "group_bytes", "tied", "architecture"),
    [
        (1, "float64", 1 << 20, True, "qwen2"),
        (2, "float64", 1, True, "qwen2"),
        (3, "float64", 1, True, "qwen2"),
        (3, "float64", 1 << 20, False, "llama"),
        (3, "float32", 1, True, "llama"),
        (2, "float32", 1 << 20, True, "qwen2"),
    ],
)
def test_steps_equal_a_single_process_with_uneven_micro_batches_and_dummies(
    tmp_path: Path, size: int, dtype: str, group_bytes: int, tied: bool, architecture: str
) -> None:
    ranks = run_ranks(size, tmp_path, three_steps, dtype, group_bytes, tied, architecture)
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    assert ranks[0]["start"] == 0.0
    for worst in ranks:
        assert worst["loss"] < tolerance
        assert worst["norm"] < tolerance
        assert worst["least_norm"] > config().trainer.max_grad_norm, "the clip must have been at work"
    assert ranks[0]["state"] < tolerance


def case_18(index: int, size: int, shift: int) -> float:
    """Micro-batches of 3, 5, 2, 7 and 4 tokens: the gradient before clipping against (g1 + ... + g5) / 21."""
    micro = [[sample(i, n)] for i, n in enumerate((3, 5, 2, 7, 4))]
    trainer = Trainer(config(), VOCABULARY, index, size, CPU, dtype=torch.float64)
    reference = Reference(config(), torch.float64)
    parts = [reference.gradient(m, 21) for m in micro]
    trainer.open(0, 21)
    for mine in deal(micro, index, size, shift):
        trainer.round(mine)
    got = {n: p.grad.full_tensor() for n, p in trainer.sharded.parameters.items()}  # type: ignore[union-attr]
    return worst_difference(got, {n: sum(g[n] for g in parts) for n in got})  # type: ignore[misc]


@pytest.mark.parametrize(("size", "shift"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)])
def test_the_gradient_is_the_sum_over_micro_batches_by_the_fixed_count_whoever_computed_which(
    tmp_path: Path, size: int, shift: int
) -> None:
    assert max(run_ranks(size, tmp_path, case_18, shift)) < 1e-12


def one_nan(index: int, size: int) -> tuple[StepResult, float, StepResult]:
    trainer = Trainer(config(), VOCABULARY, index, size, CPU)
    before = [s.data.clone() for s in trainer.shards()]
    bad = sample(77, 3)
    bad.logprobs[:] = [math.nan] * len(bad.logprobs)
    trainer.open(4, 8, batch=9)
    trainer.round([sample(5, 2), bad] if index == size - 1 else [sample(6, 3)])
    refused = trainer.close()
    moved = max(
        ((a - s.data).abs().max().item() for a, s in zip(before, trainer.shards(), strict=True) if a.numel()),
        default=0.0,
    )
    trainer.open(4, 3, batch=10)
    trainer.round([sample(6, 3)] if index == 0 else [])
    return refused, moved, trainer.close()


def test_nan_on_one_rank_stops_the_step_on_all_and_names_step_batch_and_trajectory(tmp_path: Path) -> None:
    ranks = run_ranks(2, tmp_path, one_nan)
    for refused, moved, after in ranks:
        assert not refused.finite
        assert "step 4, batch 9" in refused.detail
        assert "[77]" in refused.detail
        assert moved == 0.0
        assert after.finite, "the next step starts clean"
        assert after.detail == ""
    assert ranks[0][2] == ranks[1][2]


def gaps(index: int, size: int) -> StepResult:
    """Rank 0: turns of the held version 2, off by 0.25 and 0.75. Rank 1: turns of version 1, and turns that began under it."""
    c = config()
    trainer = Trainer(c, VOCABULARY, index, size, CPU)
    reference = Reference(c, torch.float32)
    rows = []
    for traj, version, off in [(1, 2, 0.25), (2, 2, 0.75)] if index == 0 else [(3, 1, 50.0), (4, 2, 50.0)]:
        s = sample(traj, 4, version=version)
        s.logprobs[1:] = (reference.logprobs(s) + off).tolist()
        if traj == 4:  # its turns began under version 1: keys and values of their first token are older
            s.versions[:] = [1 if now and not before else 2 for before, now in pairwise([0, *s.sampled])]
        rows.append(s)
    trainer.open(2, 16)
    trainer.round(rows)
    return trainer.close()


def test_the_parity_gauge_counts_turns_of_the_held_version_apart_from_the_rest(tmp_path: Path) -> None:
    for result in run_ranks(2, tmp_path, gaps):
        gap = result.gap
        assert (gap.mean, gap.worst) == (pytest.approx(0.5, abs=1e-5), pytest.approx(0.75, abs=1e-5))
        assert (gap.rest_mean, gap.rest_worst) == (pytest.approx(50, abs=1e-4), pytest.approx(50, abs=1e-4))


def stale_weights(index: int, size: int) -> list[float]:
    """The loss of one token with advantage 1, for stored log-probabilities at three distances below the current one."""
    c = config()
    reference = Reference(c, torch.float32)
    trainer = Trainer(c, VOCABULARY, index, size, CPU)
    losses = []
    for off in (0.0, 0.5, 9.0):
        s = Sample(0, [1, 2], b"\0\1", [0.0, 0.0], [0, 0], 1.0)
        s.logprobs[1] = reference.logprobs(s).item() - off
        trainer.open(0, 1, lr_scale=0.0)
        trainer.round([s])
        losses.append(trainer.close().loss)
    return losses


def test_the_stored_log_probability_weighs_the_token_up_to_the_cap(tmp_path: Path) -> None:
    (losses,) = run_ranks(1, tmp_path, stale_weights)
    assert losses == pytest.approx([-1.0, -math.exp(0.5), -config().trainer.importance_cap], rel=1e-5)


def wrong_orders(index: int, size: int) -> list[str]:
    trainer = Trainer(config(), VOCABULARY, index, size, CPU)
    complaints = []
    torn = Sample(0, [1, 2], b"\0\1", [0.0], [0, 0], 1.0)
    for calls in (
        lambda: trainer.round([]),
        lambda: trainer.close(),
        lambda: trainer.open(0, 0),
        lambda: (trainer.open(0, 1), trainer.close()),
        lambda: trainer.open(0, 1),
        lambda: trainer.round([torn]),
    ):
        with pytest.raises(RoleError) as caught:
            calls()
        complaints.append(str(caught.value))
    return complaints


def test_orders_out_of_sequence_and_torn_samples_are_refused(tmp_path: Path) -> None:
    (complaints,) = run_ranks(1, tmp_path, wrong_orders)
    assert "without an open step" in complaints[0]
    assert "after 0 rounds" in complaints[1]
    assert "0 loss tokens" in complaints[2]
    assert "after 0 rounds" in complaints[3]
    assert "another is open" in complaints[4]
    assert "trajectory 0 has 2 tokens" in complaints[5]
