"""Keyed noise and the draw."""

import numpy as np
import pytest
import torch

from libra.engine.noise import uniforms
from libra.engine.sampling import draw

GOLDEN = ["0x1.ac1f744befa29p-1", "0x1.483933707a21fp-1", "0x1.47e6b256da000p-6"]
"""Computed once by hashlib and struct alone; changing the encoding changes every run's samples."""


def test_noise_is_what_it_was_when_the_encoding_was_fixed() -> None:
    keys = [((0, 0, 0, 0), 0), ((7, 3, 1, 0), 42), ((2**40, 19_999, 7, 2), 110)]
    assert [u.hex() for u in uniforms(keys)] == GOLDEN


def test_every_part_of_the_key_changes_the_noise_and_all_lie_in_the_unit_interval() -> None:
    keys = [((a, b, c, d), e) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1) for e in range(64)]
    u = uniforms(keys)
    assert len(set(u.tolist())) == len(keys)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.03


def test_no_keys_give_no_noise() -> None:
    assert uniforms([]).shape == (0,)


def test_the_token_is_the_first_whose_cumulative_weight_exceeds_u_times_the_total() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    u = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.9], dtype=torch.float64)
    tokens, logprobs = draw(logits.expand(6, 4), u, 1.0)
    assert tokens.tolist() == [0, 0, 1, 1, 2, 3]
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.125, 0.125])


def test_temperature_divides_the_logits_of_the_draw_and_of_the_logprob() -> None:
    logits = torch.randn(5, 11)
    u = torch.rand(5, dtype=torch.float64)
    tokens, logprobs = draw(logits, u, 0.5)
    twice, same = draw(logits * 2, u, 1.0)
    assert tokens.tolist() == twice.tolist()
    assert logprobs.tolist() == pytest.approx(same.tolist())


def test_a_word_without_weight_is_never_drawn_not_even_at_the_ends_of_the_unit_interval() -> None:
    logits = torch.tensor([[-torch.inf, 0.1, -torch.inf, 0.3, -torch.inf]]).expand(2, 5)
    tokens, logprobs = draw(logits, torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64), 1.0)
    assert tokens.tolist() == [1, 3]
    assert torch.isfinite(logprobs).all()


def test_logits_that_cannot_be_normalised_give_nan_not_a_quiet_token() -> None:
    logits = torch.zeros(3, 4)
    logits[0, 1] = torch.nan
    logits[1, 1] = torch.inf
    _, logprobs = draw(logits, torch.full((3,), 0.5, dtype=torch.float64), 1.0)
    assert torch.isnan(logprobs).tolist() == [True, True, False]


def test_draws_follow_the_distribution() -> None:
    logits = torch.linspace(-1, 1, 5)
    u = torch.from_numpy(uniforms(((1, 2, 3, 4), position) for position in range(20_000)))
    tokens, _ = draw(logits.expand(20_000, 5), u, 1.0)
    shares = np.bincount(tokens.numpy(), minlength=5) / 20_000
    assert shares.tolist() == pytest.approx(logits.softmax(-1).tolist(), abs=0.015)
