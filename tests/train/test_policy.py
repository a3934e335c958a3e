"""The network: deterministic, named as published, and equal to transformers on unpacked rows."""

from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from training_parts import VOCABULARY, Reference, config, sample

from libra.errors import RoleError
from libra.train.batch import collate, targets
from libra.train.model import Policy, build
from libra.train.packing import pack


def test_packing_gives_every_token_one_place_and_keeps_rows_apart() -> None:
    lengths = [3, 17, 1, 9, 8, 2]
    packing = pack(lengths)
    row_of = torch.tensor([r for r, n in enumerate(lengths) for _ in range(n)])
    entries = torch.cat([b.flatten() for b in packing.blocks])
    assert torch.equal(entries[packing.restore], torch.arange(sum(lengths)))
    assert packing.positions[0].tolist() == [i for n in lengths for i in range(n)]
    for block in packing.blocks:
        assert (row_of[block] == row_of[block[:, :1]]).all()
    assert len(entries) <= 2 * sum(lengths)


def test_samples_become_exactly_their_loss_tokens() -> None:
    samples = [sample(1, 3), sample(2, 0), sample(3, 5)]
    batch = collate([s.tokens for s in samples], [s.sampled for s in samples], torch.device("cpu"))
    goal = targets(samples, torch.device("cpu"), torch.float64)
    expected = [
        (s.tokens[i], s.logprobs[i], s.advantage) for s in samples for i in range(len(s.tokens)) if s.sampled[i]
    ]
    assert list(zip(batch.targets.tolist(), goal.behaviour.tolist(), goal.advantage.tolist(), strict=True)) == expected
    assert torch.equal(batch.ids[batch.select + 1], batch.targets)
    assert batch.row.tolist() == [0] * 3 + [2] * 5


@pytest.mark.parametrize(("mask", "match"), [(b"\1\1", "first token"), (b"\0", "mask of 1")])
def test_rows_whose_mask_cannot_be_right_are_refused(mask: bytes, match: str) -> None:
    with pytest.raises(RoleError, match=match):
        collate([[1, 2]], [mask], torch.device("cpu"))


def parity(index: int, size: int, architecture: str) -> float:
    c = config(architecture=architecture)
    policy = Policy(build(c.model, VOCABULARY, c.run.seed), c.rollout.temperature).double()
    reference = Reference(c, torch.float64)
    samples = [sample(i, n) for i, n in enumerate((9, 1, 30, 4, 2, 12))]
    batch = collate([s.tokens for s in samples], [s.sampled for s in samples], torch.device("cpu"))
    expected = torch.cat([reference.logprobs(s)[[i - 1 for i, m in enumerate(s.sampled) if m]] for s in samples])
    return (policy(*batch.forward) - expected).abs().max().item()


@pytest.mark.process
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_packed_log_probabilities_equal_those_of_plain_rows_at_the_temperature(
    tmp_path: Path, architecture: str
) -> None:
    assert run_ranks(1, tmp_path, parity, architecture)[0] < 1e-9


def builds(index: int, size: int) -> tuple[bool, bool, bool, list[str]]:
    before = torch.random.get_rng_state()
    one, same, other = (dict(build(config().model, VOCABULARY, seed).named_parameters()) for seed in (1, 1, 2))
    return (
        all(torch.equal(one[n], same[n]) for n in one),
        any(not torch.equal(one[n], other[n]) for n in one),
        torch.equal(before, torch.random.get_rng_state()),
        list(one),
    )


@pytest.mark.process
def test_the_seed_alone_decides_the_initial_weights(tmp_path: Path) -> None:
    ((same, differs, untouched, names),) = run_ranks(1, tmp_path, builds)
    assert same
    assert differs
    assert untouched
    assert names[0] == "model.embed_tokens.weight"
    assert names[-1] == "model.norm.weight", "a tied head has no name of its own"
