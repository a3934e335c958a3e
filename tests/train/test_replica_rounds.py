"""A replica's sum is what the core would have summed; a round is taken by all members or by none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_ranks import run_ranks
from training_parts import CPU, VOCABULARY, Reference, config, sample, worst_difference

from libra.errors import RefusedError
from libra.train.gradient_sum import Share
from libra.train.replica import GradientReplica
from libra.train.trainer import StepResult, Trainer
from libra.wire.messages import ShareNote

pytestmark = pytest.mark.process
MICRO = [[sample(i, n)] for i, n in enumerate((3, 5, 2, 7, 4))]
"""Case 18: five micro-batches, 21 loss tokens in all."""
Lent = tuple[list[tuple[str, tuple[int, ...], int, torch.Tensor]], ShareNote]


def replica(index: int, size: int, version: int = 0) -> GradientReplica:
    made = GradientReplica(config(), VOCABULARY, index, size, CPU, dtype=torch.float64)
    made.install(version, [s.data.clone() for s in made.sharded.shards() if s.data.numel()])
    return made


def lend(index: int, size: int, which: list[int]) -> Lent:
    """A replica's share of the micro-batches `which`, one a member and round."""
    made = replica(index, size)
    for first in range(0, len(which), size):
        mine = which[first : first + size][index : index + 1]
        made.accumulate(0, 0, 21, [s for i in mine for s in MICRO[i]])
    pieces, note = made.share(0)
    lent = [(s.name, s.shape, s.start, s.data.clone()) for s in pieces]
    made.drop()
    assert all(p.grad is None for p in made.sharded.parameters.values())
    return lent, note


def whole(lent: list[Lent]) -> dict[str, torch.Tensor]:
    """The logical gradient out of what all members lent."""
    built: dict[str, torch.Tensor] = {}
    for pieces, _ in lent:
        for name, shape, start, data in pieces:
            flat = built.setdefault(name, torch.full(shape, torch.nan, dtype=data.dtype)).view(-1)
            flat[start : start + data.numel()] = data
    return built


def close_with(index: int, size: int, kept: list[int], lent: list[Lent]) -> tuple[float, StepResult]:
    """The core's own micro-batches and what was lent: the worst difference of the gradient before clipping, and the step."""
    trainer = Trainer(config(), VOCABULARY, index, size, CPU, dtype=torch.float64)
    reference = Reference(config(), torch.float64)
    parts = [reference.gradient(m, 21) for m in MICRO]
    trainer.open(0, 21)
    for first in range(0, len(kept), size):
        mine = kept[first : first + size][index : index + 1]
        trainer.round([s for i in mine for s in MICRO[i]])
    shares = []
    if lent:
        gradient = whole(lent)
        needed = [gradient[r.name].view(-1)[r.start : r.stop].clone() for r in trainer.sharded.ranges()]
        shares = [Share(needed, [note for _, note in lent] if index == 0 else [])]
        trainer.summed._sum.add_share(shares[0])
    got = {n: p.grad.full_tensor() for n, p in trainer.sharded.parameters.items()}  # type: ignore[union-attr]
    worst = worst_difference(got, {n: sum(g[n] for g in parts) for n in got})  # type: ignore[misc]
    return worst, trainer.close()


def test_four_core_workers_and_a_helper_sum_to_the_same_gradient_as_four_without_it(tmp_path: Path) -> None:
    lent = run_ranks(1, tmp_path, lend, [4])
    helped = run_ranks(4, tmp_path, close_with, [0, 1, 2, 3], lent)
    alone = run_ranks(4, tmp_path, close_with, [0, 1, 2, 3, 4], [])  # the helper died before it lent anything
    for (difference, result), (difference_alone, result_alone) in zip(helped, alone, strict=True):
        assert difference < 1e-12
        assert difference_alone < 1e-12
        assert result.loss == pytest.approx(result_alone.loss, rel=1e-12)
        assert result.grad_norm == pytest.approx(result_alone.grad_norm, rel=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_replica_of_any_size_holds_the_sum_of_its_micro_batches_by_the_steps_count(tmp_path: Path, size: int) -> None:
    lent = run_ranks(size, tmp_path, lend, [0, 2, 3, 4])
    reference = Reference(config(), torch.float64)
    parts = [reference.gradient(MICRO[i], 21) for i in (0, 2, 3, 4)]
    gradient = whole(lent)
    assert worst_difference(gradient, {n: sum(g[n] for g in parts) for n in gradient}) < 1e-12  # type: ignore[misc]
    expected = sum(reference.loss_sum(MICRO[i]).item() for i in (0, 2, 3, 4))
    assert sum(note.loss for _, note in lent) == pytest.approx(expected, rel=1e-12)


def refusals(index: int, size: int) -> list[str]:
    """The last member is a version ahead of the others, as after pulls of a trainer that went on meanwhile."""
    made = replica(index, size, version=3 if index == size - 1 else 2)
    reasons = []

    def refused(call: Any) -> None:
        with pytest.raises(RefusedError) as caught:
            call()
        reasons.append(str(caught.value))

    refused(lambda: made.accumulate(2, 2, 21, MICRO[0]))
    if size > 1:
        refused(lambda: made.accumulate(3, 3, 21, MICRO[0]))
    made.install(3, [s.data.clone() for s in made.sharded.shards() if s.data.numel()])
    made.accumulate(3, 3, 21, MICRO[index])
    refused(lambda: made.accumulate(4, 3, 21, MICRO[0]))
    refused(lambda: made.share(4))
    made.accumulate(3, 3, 21, [])
    made.share(3)
    made.drop()
    refused(lambda: made.accumulate(3, 3, 21, MICRO[0]))
    refused(lambda: made.share(3))
    made.install(4, [s.data.clone() for s in made.sharded.shards() if s.data.numel()])
    made.accumulate(4, 4, 21, MICRO[index])
    made.install(5, [s.data.clone() for s in made.sharded.shards() if s.data.numel()])  # its step goes on without it
    refused(lambda: made.share(4))
    return reasons


@pytest.mark.parametrize("size", [1, 3])
def test_a_round_is_refused_by_all_members_alike_and_no_one_waits(tmp_path: Path, size: int) -> None:
    ranks = run_ranks(size, tmp_path, refusals)
    first, last = ranks[0], ranks[-1]
    assert "version 3 is held" in last[0]
    if size > 1:
        assert "another member" in first[0]
        assert "version 2 is held" in first[1]
        assert "another member" in last[1]
    for reasons in ranks:
        assert "step 3 is open" in reasons[-5]
        assert "no share of step 4" in reasons[-4]
        assert "step 3 is shared already" in reasons[-3]
        assert "step 3 is shared already" in reasons[-2]
        assert "no step is open" in reasons[-1]


def nan_in_a_share(index: int, size: int) -> tuple[StepResult, StepResult]:
    """A share whose note and values are not finite, then a clean step."""
    trainer = Trainer(config(), VOCABULARY, index, size, CPU, dtype=torch.float64)
    results = []
    for bad in (True, False):
        trainer.open(5, 21, batch=9)
        trainer.round(MICRO[0] if index == 0 else [])
        parts = [torch.zeros(r.stop - r.start, dtype=torch.float64) for r in trainer.sharded.ranges()]
        note = ShareNote(float("nan") if bad else 2.0, [1.5, 3.0, 1.0, 0.0, 0.0, 0.0], [77] if bad else [])
        results.append(trainer.close([Share(parts, [note] if index == 0 else [])]))
    return results[0], results[1]


def test_a_share_that_is_not_finite_stops_the_step_on_all_core_ranks_and_its_note_counts_once(tmp_path: Path) -> None:
    for bad, good in run_ranks(2, tmp_path, nan_in_a_share):
        assert not bad.finite
        assert "[77]" in bad.detail
        assert good.finite
        own = Reference(config(), torch.float64).loss_sum(MICRO[0]).item()
        assert good.loss == pytest.approx((own + 2.0) / 21, rel=1e-12)
        assert (good.gap.mean, good.gap.worst) == (pytest.approx(0.5), 1.0)
