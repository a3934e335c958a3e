"""Turns on vLLM engines: what is sampled, how turns end, what a prefix is worth, what happens when there is no room."""

from pathlib import Path

import pytest
from vllm_stage import VOCABULARY, EngineOnStage, Stage, config_of, gap, network, turn

from libra.config.schema import CalculatorConfig, VllmConfig
from libra.env.registry import vocabulary
from libra.wire import messages as m

STOPS = vocabulary(CalculatorConfig()).stop_ids


@pytest.fixture(autouse=True)
def newest(stage: Stage, engine: EngineOnStage) -> None:
    engine.install_next(0)


def test_log_probabilities_are_the_trainers(engine: EngineOnStage) -> None:
    given = [turn(i, context=3 + i, new=12) for i in range(12)]
    done = engine.turns(*given)
    assert max(gap(network(0), g, d) for g, d in zip(given, done, strict=True)) < 1e-4
    assert all(set(d.versions) == {engine.version} for d in done)


def test_more_context_than_one_step_takes_is_prefilled_in_several(engine: EngineOnStage) -> None:
    """With contexts in parts vLLM 0.32 ends here on a CPU: it cannot wind back the generator of a request with a seed."""
    context = 1 + VllmConfig().prefill_tokens // 24
    given = [turn(i, context=context, new=4) for i in range(30)]
    done = engine.turns(*given)
    assert max(gap(network(0), g, d) for g, d in zip(given, done, strict=True)) < 1e-4


def test_a_turn_ends_at_its_length_or_at_a_stop_token_which_belongs_to_it(engine: EngineOnStage) -> None:
    done = engine.turns(*(turn(i, new=40, cmd=7) for i in range(30)))
    assert {d.finish for d in done} == {"stop", "length"}
    for d in done:
        assert d.cmd == 7
        assert len(d.tokens) == len(d.logprobs) == len(d.versions)
        assert (d.tokens[-1] in STOPS) == (d.finish == "stop")
        assert not set(d.tokens[:-1]) & set(STOPS)
        assert d.finish == "stop" or len(d.tokens) == 40


def test_noise_depends_on_the_turn_alone(engine: EngineOnStage) -> None:
    """Not on who else is in the batch; another attempt at the same prompt samples something else."""
    [alone] = engine.turns(turn(3, new=30))
    crowd = engine.turns(*(turn(i, new=30) for i in range(8)))
    assert crowd[3].tokens == alone.tokens
    again = m.Turn(0, 3, turn(3).tokens, 30, (0, 3, 0, 1))
    assert engine.turns(again)[0].tokens != alone.tokens


def test_a_cut_turn_keeps_what_it_has_and_goes_on_from_there(engine: EngineOnStage) -> None:
    given = engine.busy()
    for each in given:
        engine.send(m.Cut(each.traj))
    engine.send(m.Cut(99_999))  # one that is not here is no error
    done = engine.wait_for(*(g.traj for g in given))
    cut = [(g, d) for g, d in zip(given, done, strict=True) if d.finish == "cut" and d.tokens]
    rest = [m.Turn(0, g.traj, g.tokens + d.tokens, 10, g.noise) for g, d in cut]
    assert rest, "all turns were over before they could be cut"
    resumed = engine.turns(*rest)
    policy = network(0)
    assert max(gap(policy, g, d) for g, d in [*cut, *zip(rest, resumed, strict=True)]) < 1e-4


def test_the_prefix_of_the_turn_before_is_not_computed_again(engine: EngineOnStage) -> None:
    first = turn(1, context=70, new=10)
    [done] = engine.turns(first)
    before = engine.settled_stats()
    context = first.tokens + done.tokens + [1, 2]
    engine.turns(m.Turn(0, 1, context, 5, (0, 1, 0, 0)))
    after = engine.settled_stats()
    assert after.reused_tokens - before.reused_tokens >= 64
    assert after.prefilled_tokens - before.prefilled_tokens <= len(context) - 64


def test_statistics_count_what_vllm_did(engine: EngineOnStage) -> None:
    before = engine.settled_stats()
    done = engine.turns(*(turn(i, context=6, new=9) for i in range(5)))
    after = engine.settled_stats()
    assert after.sampled_tokens - before.sampled_tokens == sum(len(d.tokens) for d in done)
    assert (after.running, after.waiting, after.kv_tokens) == (0, 0, 0)


@pytest.mark.parametrize("tp", [2])
def test_turns_that_have_to_give_way_are_computed_again_and_lose_nothing(stage: Stage, tp: int) -> None:
    """The core reserves room before it sends a turn; with reserve_share below 1 it may promise too much."""
    engine = stage.engine(tp, config_of(kv_tokens=160, max_batch=4))
    try:
        engine.install_next(0)
        given = [turn(i, context=9, new=90) for i in range(12)]
        done = engine.turns(*given)
        assert engine.settled_stats().preemptions > 0
        policy = network(0)
        assert max(gap(policy, g, d) for g, d in zip(given, done, strict=True)) < 1e-4
        assert all(len(d.tokens) == 90 or d.finish == "stop" for d in done)
    finally:
        engine.end()


def test_a_turn_that_can_never_run_ends_the_engine_with_the_reason(stage: Stage) -> None:
    engine = stage.engine(1)
    engine.install_next(0)
    engine.send(m.Turn(0, 1, [VOCABULARY], 5, (0, 1, 0, 0)))
    engine.until_gone()
    assert f"the vocabulary ends at {VOCABULARY - 1}" in engine.members[0].complaint


def test_no_rank_holds_shared_memory_that_would_outlive_it(engine: EngineOnStage) -> None:
    """Roles end without destructors; what still has a name then has it for ever."""
    for member in engine.members:
        maps = Path(f"/proc/{member.process.pid}/maps").read_text().splitlines()
        assert not [line for line in maps if "/dev/shm/" in line and not line.endswith("(deleted)")]
