"""The hidden truth: the same for the same seed whoever asks first, around what the cost model says, and plain by default."""

from itertools import permutations
from math import log
from statistics import fmean, median, stdev

import pytest

from libra.config.schema import TruthConfig
from libra.workload.truth import Truth


def test_the_default_changes_nothing() -> None:
    truth = Truth(TruthConfig())
    assert truth.is_plain
    assert {truth.pace(e, t) for e in range(5) for t in (0.0, 17.0)} == {1.0}
    assert truth.tool("train", 1, 2, 3, 4) == 1.0


def test_it_does_not_matter_who_asks_first() -> None:
    config = TruthConfig(seed=4, engine_spread=0.3, step_noise=0.2, tool_noise=0.5)
    asked = [("e", 0, 1.0), ("e", 3, 99.0), ("t", 5, 0.0)]
    seen = set()
    for order in permutations(asked):
        truth = Truth(config)
        answers = {x: truth.pace(x[1], x[2]) if x[0] == "e" else truth.tool("train", x[1], 0, 0, 0) for x in order}
        seen.add(tuple(answers[x] for x in asked))
    assert len(seen) == 1


def test_another_seed_is_another_truth() -> None:
    a, b = (Truth(TruthConfig(seed=s, engine_spread=0.3)).engine(0) for s in (1, 2))
    assert a != b


def test_engines_spread_around_the_model_by_what_is_configured() -> None:
    truth = Truth(TruthConfig(engine_spread=0.25))
    logs = [log(truth.engine(i)) for i in range(2000)]
    assert fmean(logs) == pytest.approx(0.0, abs=0.03)
    assert stdev(logs) == pytest.approx(0.25, rel=0.06)


def test_noise_stays_for_a_while_and_comes_anew() -> None:
    truth = Truth(TruthConfig(step_noise=0.4, noise_s=5.0))
    assert truth.pace(2, 10.0) == truth.pace(2, 14.9) != truth.pace(2, 15.1)
    assert truth.pace(2, 10.0) != truth.pace(3, 10.0)
    logs = [log(truth.pace(0, 5.0 * i)) for i in range(2000)]
    assert fmean(logs) == pytest.approx(0.0, abs=0.04)
    assert stdev(logs) == pytest.approx(0.4, rel=0.06)


def test_the_slow_engine_is_slow_and_the_others_are_not() -> None:
    truth = Truth(TruthConfig(slow_engine=1, slow_factor=3.0, slowdown=2.0))
    assert [truth.engine(i) for i in range(3)] == [2.0, 6.0, 2.0]
    assert not truth.is_plain
    assert Truth(TruthConfig(slow_engine=1, slow_factor=1.0)).is_plain


def test_tools_are_noisy_call_by_call_around_what_was_told() -> None:
    truth = Truth(TruthConfig(tool_noise=0.5))
    calls = [truth.tool("train", p, s, 0, t) for p in range(20) for s in range(8) for t in range(10)]
    assert len(set(calls)) == len(calls)
    assert median(calls) == pytest.approx(1.0, abs=0.06)
