"""Rounds: two ahead, dummies where nothing is left, CloseStep right behind the last."""

from libra.core.commands import MicroBatch
from libra.core.training import ROUNDS_AHEAD, BatchFigures, TrainingStep


def step(micro_batches: int, ranks: tuple[int, ...]) -> TrainingStep:
    queue = [MicroBatch(i, 10, ()) for i in range(micro_batches)]
    return TrainingStep(BatchFigures(0, 0.0, 1, 1, 1, 1, 0, 0.0), 1, ranks, queue)


def hand_out(s: TrainingStep, seq: int) -> bool:
    slots = s.take_round(ROUNDS_AHEAD)
    if slots is None:
        return False
    s.unanswered[seq] = list(s.ranks)
    return True


def test_two_rounds_are_out_at_a_time_and_the_next_needs_every_ranks_answer() -> None:
    s = step(7, (1, 2))
    assert [hand_out(s, seq) for seq in (10, 11, 12)] == [True, True, False]
    assert not s.answered(10, 1)
    assert not hand_out(s, 12)
    assert s.answered(10, 2)
    assert hand_out(s, 12)


def test_a_rank_without_a_micro_batch_runs_a_dummy() -> None:
    s = step(3, (1, 2))
    first, second = s.take_round(ROUNDS_AHEAD), s.take_round(ROUNDS_AHEAD)
    assert first is not None
    assert second is not None
    assert [m.id for m in first if m] == [0, 1]
    assert second[1] is None
    assert s.ready_to_close


def test_there_is_at_least_one_round() -> None:
    s = step(0, (1, 2))
    assert not s.ready_to_close
    assert s.take_round(ROUNDS_AHEAD) == (None, None)
    assert s.ready_to_close
    assert s.take_round(ROUNDS_AHEAD) is None


def test_an_answer_counts_once() -> None:
    s = step(2, (1, 2))
    hand_out(s, 5)
    assert not s.answered(5, 1)
    assert not s.answered(5, 1)
    assert not s.answered(99, 1)
    assert s.answered(5, 2)
