"""Advantages and micro-batches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.core.batch import advantages, pack
from libra.core.commands import Row


def test_advantages_are_rewards_in_standard_deviations_from_the_group_mean() -> None:
    got = advantages([1.0, 0.0, 0.0, 0.0], "group_std")
    std = math.sqrt(3) / 4
    assert got == pytest.approx([0.75 / std, -0.25 / std, -0.25 / std, -0.25 / std])
    assert advantages([1.0, 0.0, 0.0, 0.0], "group_mean") == pytest.approx([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_equal_rewards_carry_no_signal(reward: float) -> None:
    assert advantages([reward] * 8, "group_std") is None


rows = st.lists(st.integers(1, 120), max_size=60).map(lambda ls: [(n, Row(i, 0.5)) for i, n in enumerate(ls)])


@given(rows=rows, budget=st.integers(1, 500), workers=st.integers(1, 4))
def test_every_row_is_in_exactly_one_micro_batch_within_the_budget(
    rows: list[tuple[int, Row]], budget: int, workers: int
) -> None:
    length = {row.traj: n for n, row in rows}
    batches = pack(rows, budget, workers)
    assert sorted(row.traj for b in batches for row in b.rows) == sorted(length)
    assert [b.id for b in batches] == list(range(len(batches)))
    for batch in batches:
        lengths = [length[row.traj] for row in batch.rows]
        assert batch.tokens == sum(lengths)
        assert sum(lengths) <= budget or len(lengths) == 1
    longest = [max(length[row.traj] for row in b.rows) for b in batches]
    assert longest == sorted(longest, reverse=True), "longest first"


def test_equal_rows_are_dealt_evenly_over_the_workers() -> None:
    equal = [(50, Row(i, 1.0)) for i in range(80)]
    for workers in (1, 2, 3):
        batches = pack(equal, 2048, workers)
        assert len(batches) % workers == 0
        assert max(b.tokens for b in batches) - min(b.tokens for b in batches) <= 50 * workers
