"""The token losses against their formulas, published failures and finite differences."""

import math

import pytest
import torch

from libra.config.schema import TrainerConfig
from libra.train.loss import cross_entropy, grpo, importance_weight, in_band

TRAINER = TrainerConfig(clip_low=0.2, clip_high=0.28, importance_cap=2.0, negative_cap=3.0)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def grpo_of(log_ratio: torch.Tensor, advantage: float, **options: object) -> torch.Tensor:
    zero = torch.zeros_like(log_ratio)
    return grpo(log_ratio, zero, zero, torch.full_like(log_ratio, advantage), TRAINER, **options).loss  # type: ignore[arg-type]


def test_positive_advantage_follows_the_ratio_up_to_the_upper_clip() -> None:
    got = grpo_of(tensor(0.1, 1.0, 1.28, 1.3, 50.0).log(), 2.0)
    assert got.tolist() == pytest.approx([-0.2, -2.0, -2.56, -2.56, -2.56])


def test_negative_advantage_follows_the_ratio_from_the_lower_clip_up_to_the_cap() -> None:
    got = grpo_of(tensor(0.1, 0.8, 1.0, 2.9, 3.1, 50.0).log(), -2.0)
    assert got.tolist() == pytest.approx([1.6, 1.6, 2.0, 5.8, 6.0, 6.0])


def test_negative_advantage_has_a_bounded_loss_and_no_gradient_beyond_the_cap() -> None:
    log_ratio = tensor(2.0, 100.0, 1e6).requires_grad_()
    loss = grpo_of(log_ratio, -1.0)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([TRAINER.negative_cap] * 3)
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [0.0, 0.0, 0.0]


def test_importance_weight_is_truncated_and_carries_no_gradient() -> None:
    proximal = tensor(-1.0, -1.0, 0.0).requires_grad_()
    weight = importance_weight(proximal, tensor(-1.0, -0.5, -800.0), cap=2.0)
    assert weight.tolist() == pytest.approx([1.0, math.exp(-0.5), 2.0])
    assert not weight.requires_grad


def test_the_stored_behaviour_log_probability_decides_the_weight() -> None:
    """With the current log-probability in its place the weight would always be 1."""
    p, b = tensor(-1.0, -2.0), tensor(-1.3, -1.0)
    got = grpo(p, p.detach(), b, tensor(1.0, 1.0), TRAINER).loss
    assert got.tolist() == pytest.approx([-math.exp(0.3), -math.exp(-1.0)])


def test_with_the_own_log_probabilities_as_proximal_the_gradient_is_the_weighted_policy_gradient() -> None:
    p = tensor(-1.0, -2.0, -0.1).requires_grad_()
    b, a = tensor(-1.3, -1.0, -5.0), tensor(1.0, -2.0, 0.5)
    grpo(p, p.detach(), b, a, TRAINER).loss.sum().backward()
    assert p.grad is not None
    assert p.grad.tolist() == pytest.approx([-math.exp(0.3), 2.0 * math.exp(-1.0), -2.0 * 0.5])


def test_the_gradient_equals_finite_differences() -> None:
    torch.manual_seed(0)
    q, b = -torch.rand(40, dtype=torch.float64) * 3, -torch.rand(40, dtype=torch.float64) * 3
    p = (q + torch.randn(40, dtype=torch.float64)).requires_grad_()
    a = torch.randn(40, dtype=torch.float64)
    mask = torch.rand(40) > 0.2
    assert torch.autograd.gradcheck(lambda x: grpo(x, q, b, a, TRAINER, mask=mask).loss.sum(), (p,))
    assert torch.autograd.gradcheck(lambda x: grpo(x, q, b, a, TRAINER, band=(0.5, 2.0)).loss.sum(), (p,))


def test_a_ratio_band_takes_tokens_out_of_the_loss_and_of_the_denominator() -> None:
    log_ratio = tensor(0.1, -1.5, 0.8, -10.0, 0.3)
    assert in_band(log_ratio, 0.5, 2.0).tolist() == [True, False, False, False, True]
    zero = torch.zeros(5, dtype=torch.float64)
    got = grpo(log_ratio, log_ratio, zero, zero + 1.0, TRAINER, band=(0.5, 2.0))
    assert got.counted.sum() == 2
    assert got.loss.tolist() == pytest.approx([-math.exp(0.1), 0, 0, 0, -math.exp(0.3)])
    assert (got.loss.sum() / got.counted.sum()).item() == pytest.approx(-(math.exp(0.1) + math.exp(0.3)) / 2)


def test_nan_under_the_mask_reaches_neither_loss_nor_gradient() -> None:
    p = tensor(-1.0, math.nan, -2.0).requires_grad_()
    b, a = tensor(-1.0, math.nan, math.inf), tensor(1.0, math.nan, 1.0)
    mask = torch.tensor([True, False, False])
    for loss in (grpo(p, p.detach(), b, a, TRAINER, mask=mask).loss, cross_entropy(p, mask).loss):
        p.grad = None
        loss.sum().backward()
        assert loss.isfinite().all()
        assert p.grad is not None
        assert p.grad.tolist() == [-1.0, 0.0, 0.0]


def test_nan_in_a_counted_token_is_not_hidden() -> None:
    p = tensor(-1.0, -1.0)
    assert grpo(p, p, tensor(-1.0, math.nan), tensor(1.0, 1.0), TRAINER).loss.isnan().tolist() == [False, True]
