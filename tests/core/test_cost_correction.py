"""The online correction: slow, robust to one odd value, converging, and restored as it was."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.core.cost.correction import MAX_LOG, MAX_SURPRISE, Correction

seconds = st.floats(1e-9, 1e9)


def test_an_unobserved_kind_is_not_corrected() -> None:
    assert Correction().factor("decode/tp1") == 1.0


def test_a_steady_bias_is_learned_and_its_error_shown() -> None:
    correction = Correction()
    for _ in range(400):
        assert correction.observe("train", 2.0, 3.0)
    assert correction.factor("train") == pytest.approx(1.5, rel=0.01)
    assert correction.kinds()["train"].evidence == 400
    assert correction.kinds()["train"].log_error < 0.02
    assert correction.factor("decode") == 1.0


def test_one_odd_observation_moves_little() -> None:
    correction = Correction()
    correction.observe("train", 1.0, 1e6)
    assert correction.factor("train") < 1.3


def test_a_drift_is_followed_within_about_the_memory() -> None:
    correction = Correction()
    for _ in range(1000):
        correction.observe("train", 1.0, 1.0)
    for _ in range(150):
        correction.observe("train", 1.0, 2.0)
    assert correction.factor("train") == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("predicted", "observed"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (nan, 1.0), (1.0, inf)])
def test_nonsense_teaches_nothing_but_is_counted(predicted: float, observed: float) -> None:
    correction = Correction()
    assert not correction.observe("train", predicted, observed)
    assert correction.factor("train") == 1.0
    assert correction.kinds()["train"].rejected == 1
    assert correction.kinds()["train"].evidence == 0


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=50))
def test_the_factor_stays_within_its_clamp(pairs: list[tuple[float, float]]) -> None:
    correction = Correction()
    for predicted, observed in pairs:
        correction.observe("train", predicted, observed)
    assert abs(correction.kinds()["train"].log_factor) <= MAX_LOG
    assert 1 / 64.1 < correction.factor("train") < 64.1
    assert correction.kinds()["train"].log_error <= MAX_SURPRISE


def test_a_machine_ten_times_slower_than_its_model_is_learned() -> None:
    correction = Correction()
    for _ in range(400):
        correction.observe("wide", 0.01, 0.1)
    kind = correction.kinds()["wide"]
    assert kind.factor == pytest.approx(10.0, rel=0.02)
    assert kind.log_error < 0.02 < 1.0 < kind.log_error_before


def test_a_restored_correction_goes_on_as_if_never_stopped() -> None:
    one = Correction()
    for i in range(20):
        one.observe("train", 1.0, 1.0 + i / 10)
    other = Correction(kinds=one.kinds())
    one.observe("train", 1.0, 2.0)
    other.observe("train", 1.0, 2.0)
    assert other.kinds() == one.kinds()
    assert other.factor("train") == one.factor("train")
