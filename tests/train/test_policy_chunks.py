"""Recomputed logits, a few positions at a time: same log-probabilities, same gradients."""

import pytest
import torch
from training_parts import VOCABULARY, config

from libra.train import model as policy_model
from libra.train.model import Policy, build
from libra.train.packing import pack


@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
def test_chunked_logits_change_nothing(monkeypatch, chunk_tokens):
    monkeypatch.setattr(policy_model, "LOGIT_CHUNK_TOKENS", chunk_tokens)
    model = config(architecture="llama").model
    tokens = [1, 5, 3, 8, 2, 2, 7, 12, 0, 4]
    inputs = (torch.tensor(tokens), pack([6, 4]), torch.tensor([0, 1, 2, 3, 4, 6, 7, 8]))
    targets = torch.tensor([5, 3, 8, 2, 2, 12, 0, 4])
    found = []
    for recompute in (False, True):
        policy = Policy(build(model, VOCABULARY, seed=1), 0.8, recompute)
        logprob = policy(*inputs, targets)
        logprob.sum().backward()
        found.append((logprob.detach(), {name: p.grad for name, p in policy.named_parameters()}))
    (plain, gradients), (again, others) = found
    assert (plain - again).abs().max() < 1e-6
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        assert gradient is not None
        assert (gradient - others[name]).abs().max() < 1e-5, name  # type: ignore[operator]
