"""The engine against transformers: same weights, same log-probabilities, whatever happens to the turns."""

import itertools

import pytest
import torch
from reference import VOCAB, reference_logprobs, reference_model, weights_of

from libra.config.schema import ModelConfig
from libra.engine.engine import Engine
from libra.wire.messages import Turn

SMALL = ModelConfig(hidden=32, layers=2, heads=4, kv_heads=4, ffn=48, initializer_range=0.3, max_positions=256)
SHAPES = {
    "qwen2 tied": SMALL,
    "qwen2 untied gqa": ModelConfig(
        hidden=32, layers=3, heads=4, kv_heads=2, ffn=48, initializer_range=0.3, tied_embeddings=False
    ),
    "llama tied gqa": ModelConfig(
        architecture="llama", hidden=48, layers=2, heads=6, kv_heads=2, ffn=64, initializer_range=0.3, rope_theta=1e5
    ),
    "llama untied": ModelConfig(
        architecture="llama", hidden=32, layers=1, heads=2, kv_heads=2, ffn=32, initializer_range=0.3,
        tied_embeddings=False,
    ),
}  # fmt: skip
TEMPERATURE = 0.8
TURN_TOKENS = 12
STOP = frozenset({0, 1})


def engine_of(config: ModelConfig, max_batch: int = 64, kv_tokens: int = 8192) -> Engine:
    return Engine(config, VOCAB, STOP, max_batch, kv_tokens, TEMPERATURE, max_context_tokens=200)


def observation(traj: int, turn: int) -> list[int]:
    """What a tool answers: 1 to 9 tokens, fixed by trajectory and turn."""
    generator = torch.Generator().manual_seed(1000 * traj + turn)
    return torch.randint(2, VOCAB, (1 + (3 * traj + turn) % 9,), generator=generator).tolist()


class Episodes:
    """Multi-turn trajectories driven through one engine; records what was sampled, with which version."""

    def __init__(self, trajs: range, turns: int) -> None:
        self.turns_left = dict.fromkeys(trajs, turns)
        self.tokens = {traj: observation(traj, 99) + observation(traj, 98) for traj in trajs}
        self.sampled: dict[int, list[tuple[int, float, int]]] = {traj: [] for traj in trajs}
        self.left_in_turn = dict.fromkeys(trajs, TURN_TOKENS)

    def submit(self, engine: Engine, traj: int) -> None:
        engine.submit(Turn(traj, traj, list(self.tokens[traj]), self.left_in_turn[traj], (7, traj, 0, 0)))

    def take(self, done) -> bool:
        """Record a TurnDone; True if the trajectory goes on with another turn."""
        sampled = self.sampled[done.traj]
        start = len(self.tokens[done.traj])
        for i, (logprob, version) in enumerate(zip(done.logprobs, done.versions, strict=True)):
            sampled.append((start + i, logprob, version))
        self.tokens[done.traj] += done.tokens
        self.left_in_turn[done.traj] -= len(done.tokens)
        if done.finish == "cut":
            return True
        self.left_in_turn[done.traj] = TURN_TOKENS
        self.turns_left[done.traj] -= 1
        self.tokens[done.traj] += observation(done.traj, self.turns_left[done.traj])
        return self.turns_left[done.traj] > 0

    def run(self, engine: Engine, concurrent: int, cut_every: int = 0, before_step=lambda step: None) -> "Episodes":
        """All to the end, `concurrent` at a time; every `cut_every` steps all running turns are cut and resumed."""
        fresh, step = list(self.tokens), 0
        while fresh or engine.busy:
            while fresh and len(engine._turns) < concurrent:
                self.submit(engine, fresh.pop(0))
            before_step(step)
            step += 1
            if cut_every and step % cut_every == 0:
                for traj in list(engine._turns):
                    engine.cut(traj)
            for done in engine.step():
                if self.take(done):
                    self.submit(engine, done.traj)
        return self


def assert_parity(episodes: Episodes, model, version: int | None = None) -> int:
    checked = 0
    for traj, sampled in episodes.sampled.items():
        expected = reference_logprobs(model, episodes.tokens[traj], TEMPERATURE)
        for position, logprob, sampled_by in sampled:
            if version is None or sampled_by == version:
                assert abs(expected[position - 1].item() - logprob) < 1e-4, (traj, position)
                checked += 1
    return checked


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut_every", [0, 5])
def test_sampled_logprobs_equal_those_of_transformers(shape, cut_every) -> None:
    model = reference_model(SHAPES[shape])
    engine = engine_of(SHAPES[shape])
    engine.install(0, weights_of(model))
    episodes = Episodes(range(24), turns=4).run(engine, concurrent=16, cut_every=cut_every)
    assert engine.stats().reused_tokens > 0
    assert assert_parity(episodes, model) > 200


def test_logprobs_stay_right_when_room_is_so_short_that_prefixes_are_evicted_and_rows_move() -> None:
    model = reference_model(SMALL)
    engine = engine_of(SMALL, max_batch=8, kv_tokens=400)
    engine.install(0, weights_of(model))
    episodes = Episodes(range(24), turns=5).run(engine, concurrent=24)
    assert assert_parity(episodes, model) > 200


def test_batch_composition_does_not_change_what_is_sampled() -> None:
    weights = weights_of(reference_model(SMALL))
    runs = []
    for concurrent in (1, 32):
        engine = engine_of(SMALL)
        engine.install(0, weights)
        runs.append(Episodes(range(32), turns=3).run(engine, concurrent).tokens)
    assert runs[0] == runs[1]


def test_a_turn_cut_and_resumed_on_another_engine_goes_on_with_the_same_tokens() -> None:
    weights = weights_of(reference_model(SMALL))
    here, there, whole = engine_of(SMALL), engine_of(SMALL), engine_of(SMALL)
    for engine in (here, there, whole):
        engine.install(0, weights)
    expected = Episodes(range(12), turns=1).run(whole, concurrent=12).tokens
    moved = Episodes(range(12), turns=1)
    for traj in range(12):
        moved.submit(here, traj)
    for _ in range(3):
        for done in here.step():
            moved.take(done)
    for traj in range(12):
        here.cut(traj)
    cut = here.step()
    assert cut
    assert not here.busy
    for done in cut:
        assert done.finish == "cut"
        assert len(done.tokens) == 3
        moved.take(done)
        moved.submit(there, done.traj)
    while there.busy:
        for done in there.step():
            moved.take(done)
    assert moved.tokens == expected


def test_after_an_install_tokens_of_one_version_throughout_are_those_of_the_new_weights() -> None:
    old, new = reference_model(SMALL, seed=0), reference_model(SMALL, seed=1)
    engine = engine_of(SMALL)
    engine.install(0, weights_of(old))

    def install(step: int) -> None:
        if step == 6:
            assert engine.stats().running > 0
            engine.install(1, weights_of(new))

    episodes = Episodes(range(24), turns=4).run(engine, concurrent=12, before_step=install)
    # Only turns that ran through the install have a context of two versions.
    crossing = {}
    for traj, sampled in episodes.sampled.items():
        for (before, _, v), (after, _, w) in itertools.pairwise(sampled):
            if after == before + 1 and v != w:
                crossing[traj] = after
    assert crossing
    pure = Episodes(range(24), turns=4)
    pure.tokens = episodes.tokens
    for traj, sampled in episodes.sampled.items():
        end = crossing.get(traj, -1)
        last = end
        while last + 1 in {position for position, _, _ in sampled}:
            last += 1
        pure.sampled[traj] = [s for s in sampled if traj not in crossing or not end <= s[0] <= last]
    assert assert_parity(pure, old, version=0) > 50
    assert assert_parity(pure, new, version=1) > 200


def test_a_context_longer_than_one_piece_is_filled_piece_by_piece(monkeypatch) -> None:
    monkeypatch.setattr("libra.engine.prefill.PIECE_TOKENS", 7)
    monkeypatch.setattr("libra.engine.prefill.BATCH_SCORES", 300)
    model = reference_model(SHAPES["llama tied gqa"])
    engine = engine_of(SHAPES["llama tied gqa"])
    engine.install(0, weights_of(model))
    assert assert_parity(Episodes(range(12), turns=4).run(engine, concurrent=12), model) > 100


def test_bfloat16_weights_and_arithmetic_stay_near_the_reference() -> None:
    model = reference_model(SMALL)
    engine = Engine(SMALL, VOCAB, STOP, 8, 4096, TEMPERATURE, 200, dtype=torch.bfloat16)
    engine.install(0, {name: weight.bfloat16() for name, weight in weights_of(model).items()})
    episodes = Episodes(range(4), turns=2).run(engine, concurrent=4)
    for traj, sampled in episodes.sampled.items():
        expected = reference_logprobs(model, episodes.tokens[traj], TEMPERATURE)
        assert abs(sum(expected[p - 1].item() - logprob for p, logprob, _ in sampled)) / len(sampled) < 0.2
