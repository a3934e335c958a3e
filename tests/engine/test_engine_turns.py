"""What happens to turns: how they end, wait, are cut, forgotten or refused."""

import pytest
import torch

from libra.config.schema import ModelConfig
from libra.engine.engine import Engine
from libra.errors import NonFiniteError, RoleError, WeightsError
from libra.wire.messages import Turn, TurnDone

MODEL = ModelConfig(hidden=16, layers=2, heads=2, kv_heads=1, ffn=16)
VOCAB = 20


def weights_for(engine: Engine, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = engine._model.shapes()
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def engine_of(stop_ids: frozenset[int] = frozenset(), max_batch: int = 8, kv_tokens: int = 1000) -> Engine:
    engine = Engine(MODEL, VOCAB, stop_ids, max_batch, kv_tokens, 1.0, max_context_tokens=64)
    engine.install(0, weights_for(engine))
    return engine


def turn(traj: int, context: int = 5, new: int = 4, cmd: int = 0) -> Turn:
    return Turn(cmd, traj, [(traj + i) % VOCAB for i in range(context)], new, (0, traj, 0, 0))


def drain(engine: Engine, steps: int = 500) -> list[TurnDone]:
    done = []
    while engine.busy:
        steps -= 1
        assert steps > 0, "the engine stays busy for ever"
        done += engine.step()
    return done


def test_a_turn_ends_at_its_length() -> None:
    engine = engine_of()
    engine.submit(turn(3, new=4, cmd=17))
    (done,) = drain(engine)
    assert (done.cmd, done.traj, done.finish) == (17, 3, "length")
    assert len(done.tokens) == len(done.logprobs) == len(done.versions) == 4
    assert set(done.versions) == {0}
    assert all(logprob < 0 for logprob in done.logprobs)


def test_a_stop_token_ends_a_turn_and_belongs_to_it() -> None:
    engine = engine_of()
    engine.submit(turn(1, new=30))
    (free,) = drain(engine)
    stop = free.tokens[6]
    first = free.tokens.index(stop)
    engine = engine_of(frozenset({stop}))
    engine.submit(turn(1, new=30))
    (done,) = drain(engine)
    assert done.finish == "stop"
    assert done.tokens == free.tokens[: first + 1]


def test_a_stop_token_in_the_last_place_counts_as_stop() -> None:
    engine = engine_of(frozenset(range(VOCAB)))
    engine.submit(turn(1, new=1))
    assert drain(engine)[0].finish == "stop"


def test_a_running_turn_is_cut_at_the_token_boundary_and_a_waiting_one_without_tokens() -> None:
    engine = engine_of(max_batch=1)
    engine.submit(turn(1, new=20))
    engine.submit(turn(2, new=20))
    for _ in range(3):
        assert engine.step() == []
    engine.cut(1)
    engine.cut(2)
    engine.cut(2)
    engine.cut(99)
    assert engine.busy
    done = {d.traj: d for d in engine.step()}
    assert {d.finish for d in done.values()} == {"cut"}
    assert len(done[1].tokens) == 3
    assert done[2].tokens == []
    assert not engine.busy


def test_a_cut_that_comes_after_the_end_does_not_hit_the_next_turn() -> None:
    engine = engine_of()
    engine.submit(turn(1, new=2))
    drain(engine)
    engine.cut(1)
    engine.submit(turn(1, new=2))
    assert drain(engine)[0].finish == "length"


def test_turns_wait_in_order_for_batch_and_room_and_the_room_is_never_exceeded() -> None:
    engine = engine_of(max_batch=3, kv_tokens=40)
    for traj in range(12):
        engine.submit(turn(traj, context=1 + traj % 7, new=10))
    order = []
    while engine.busy:
        order += sorted(done.traj for done in engine.step())
        stats = engine.stats()
        assert stats.kv_tokens <= 40
        assert stats.running <= 3
    assert order == list(range(12))


def test_long_contexts_are_admitted_over_several_steps_so_that_running_turns_go_on(monkeypatch) -> None:
    monkeypatch.setattr("libra.engine.engine.PREFILL_TOKENS", 20)
    engine = engine_of()
    for traj in range(6):
        engine.submit(turn(traj, context=12, new=10))
    running = []
    for _ in range(3):
        engine.step()
        running.append(engine.stats().running)
    assert running == [2, 4, 6]
    assert {len(done.tokens) for done in drain(engine)} == {10}


def test_forget_leaves_no_room_taken_be_the_turn_idle_or_running() -> None:
    engine = engine_of()
    for traj in (1, 2, 3):
        engine.submit(turn(traj, new=2 + traj))
    for _ in range(3):
        engine.step()
    engine.forget([1, 2, 77])
    drain(engine)
    assert engine.stats().kv_tokens == 5 + 4
    engine.forget([3])
    assert engine.stats().kv_tokens == 0


def test_prefixes_are_reused_under_the_same_weights_only() -> None:
    engine = engine_of()
    engine.submit(turn(1, context=10, new=3))
    (done,) = drain(engine)
    context = [*turn(1, context=10).tokens, *done.tokens, 4, 5]
    engine.submit(Turn(0, 1, context, 3, (0, 1, 0, 0)))
    (done,) = drain(engine)
    assert engine.stats().reused_tokens == 12
    engine.install(1, weights_for(engine, seed=1))
    engine.submit(Turn(0, 1, [*context, *done.tokens], 3, (0, 1, 0, 0)))
    drain(engine)
    assert engine.stats().reused_tokens == 12


def test_equal_contexts_that_come_together_are_computed_once_and_sampled_apart() -> None:
    context = list(range(12))
    together, apart = engine_of(max_batch=8), engine_of(max_batch=1)
    results = []
    for engine in (together, apart):
        for sample in range(6):
            engine.submit(Turn(0, sample, context, 6, (0, 0, sample, 0)))
        results.append({done.traj: done.tokens for done in drain(engine)})
    assert results[0] == results[1]
    assert len({tuple(tokens) for tokens in results[0].values()}) > 1
    assert together.stats().reused_tokens == 5 * 11
    assert together.stats().prefilled_tokens == 12 + 5
    assert apart.stats().reused_tokens == 0


def test_a_turn_that_runs_through_an_install_goes_on_under_both_versions_and_leaves_no_prefix() -> None:
    engine = engine_of()
    engine.submit(turn(1, new=5))
    engine.step()
    engine.step()
    engine.install(4, weights_for(engine, seed=1))
    (done,) = drain(engine)
    assert done.versions == [0, 0, 4, 4, 4]
    assert engine.stats().kv_tokens == 0
    assert engine.stats().version == 4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (turn(1, context=0), "0 context tokens"),
        (turn(1, new=0), "max_new_tokens = 0"),
        (turn(1, context=60, new=5), "more than 64"),
        (turn(1, context=20, new=20), "more than 30"),
        (Turn(0, 1, [3, VOCAB], 4, (0, 0, 0, 0)), "vocabulary ends at 19"),
        (Turn(0, 1, [-1], 4, (0, 0, 0, 0)), "token ids from -1"),
        (turn(2), "still here"),
    ],
)
def test_a_turn_that_can_never_run_is_refused(bad, message) -> None:
    engine = engine_of(kv_tokens=30)
    engine.submit(turn(2))
    with pytest.raises(RoleError, match=message):
        engine.submit(bad)
    assert len(drain(engine)) == 1


def test_a_turn_before_the_first_weights_is_refused() -> None:
    engine = Engine(MODEL, VOCAB, frozenset(), 8, 100, 1.0, 64)
    assert engine.version == -1
    with pytest.raises(RoleError, match="no weights yet"):
        engine.submit(turn(1))


def broken(weights: dict[str, torch.Tensor], fault: str) -> dict[str, torch.Tensor]:
    name = "model.layers.1.self_attn.k_proj.weight"
    match fault:
        case "missing":
            del weights[name]
        case "extra":
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        case "shape":
            weights[name] = weights[name].repeat(2, 1)
        case "dtype":
            weights[name] = weights[name].to(torch.int64)
    return weights


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "k_proj.weight is missing"),
        ("extra", "lm_head.weight is not part of this model"),
        ("shape", r"k_proj.weight has shape \(16, 16\), expected \(8, 16\)"),
        ("dtype", "expected a float"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(fault, message) -> None:
    engine, untouched = engine_of(), engine_of()
    with pytest.raises(WeightsError, match=message):
        engine.install(1, broken(weights_for(engine, seed=1), fault))
    assert engine.version == 0
    for each in (engine, untouched):
        each.submit(turn(1))
    assert drain(engine) == drain(untouched)


def test_weights_that_give_nan_stop_the_engine_and_name_the_version() -> None:
    engine = engine_of()
    weights = weights_for(engine)
    weights["model.norm.weight"][0] = torch.nan
    engine.install(9, weights)
    engine.submit(turn(1))
    with pytest.raises(NonFiniteError, match="version 9"):
        engine.step()


def test_a_model_whose_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(RoleError, match="heads must divide"):
        Engine(ModelConfig(hidden=30, heads=4), VOCAB, frozenset(), 8, 100, 1.0, 64)
