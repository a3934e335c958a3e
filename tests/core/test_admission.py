"""Slots and the version floor that bounds the lag."""

import pytest

from libra.core.admission import Admission
from libra.errors import CoreError


def take_all(admission: Admission) -> list[int]:
    slots = []
    while (slot := admission.next_slot(True)) is not None:
        slots.append(slot)
    return slots


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_admission_runs_ahead_by_the_lag_and_no_further(lag: int) -> None:
    admission = Admission(lag, groups=2, batches=10, strict_order=False)
    assert take_all(admission) == [s for s in range(lag + 1) for _ in range(2)]
    admission.consume(newest=1)
    assert take_all(admission) == [lag + 1, lag + 1]


def test_a_young_group_cannot_take_the_place_of_an_old_one() -> None:
    """Slots are reserved at admission; completing early does not move a group into an earlier batch."""
    admission = Admission(2, groups=1, batches=10, strict_order=False)
    assert take_all(admission) == [0, 1, 2]
    admission.consume(newest=1)
    assert take_all(admission) == [3], "slot 1 stays with its group, however long that takes"


def test_the_floor_of_a_slot_is_the_version_that_was_newest_lag_batches_before() -> None:
    admission = Admission(2, groups=1, batches=10, strict_order=False)
    for newest in (1, 1, 2, 3):  # the second batch was skipped: its version did not change
        admission.consume(newest)
    assert [admission.floor(slot) for slot in (4, 5, 6)] == [1, 2, 3]


def test_skipped_batches_open_new_slots() -> None:
    admission = Admission(1, groups=1, batches=100, strict_order=False)
    for _ in range(50):
        take_all(admission)
        admission.consume(newest=0)
    assert take_all(admission) == [51]


def test_strict_order_opens_a_batch_only_when_all_before_it_are_complete() -> None:
    admission = Admission(1, groups=2, batches=10, strict_order=True)
    assert [admission.next_slot(True), admission.next_slot(False)] == [0, 0]
    assert admission.next_slot(False) is None
    assert admission.next_slot(True) == 1


def test_the_run_has_no_slot_beyond_its_last_batch() -> None:
    admission = Admission(5, groups=1, batches=2, strict_order=False)
    assert take_all(admission) == [0, 1]
    admission.consume(1)
    admission.consume(2)
    assert admission.exhausted
    with pytest.raises(CoreError, match="only 2"):
        admission.consume(3)
