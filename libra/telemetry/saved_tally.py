"""What of a run's tally goes into a checkpoint: see `libra.telemetry.summary`."""

from msgspec import Struct

from libra.telemetry.paths import Straggler


class HeldOutPoint(Struct, frozen=True, array_like=True):
    """One evaluation beside training."""

    batch: int
    """Batches consumed when it began."""
    version: int
    newest: int
    """Versions that sampled for it."""
    reward: float
    failed: int


class SavedTally(Struct, frozen=True, kw_only=True):
    """What a resumed run's tally goes on from: all but the trajectories in flight, of which there is the number."""

    rewards: list[float | None]
    """None for NaN: a batch without a reward."""
    heldout: dict[str, float]
    points: tuple[HeldOutPoint, ...]
    numbers: dict[str, float]
    turns: dict[int, int]
    dropped: dict[int, int]
    ended: dict[str, int]
    moves: dict[str, int]
    moves_by: dict[str, int]
    stage_s: dict[str, float]
    turns_by_bucket: dict[str, int]
    longest: list[tuple[float, int, Straggler]]
    best: tuple[int, float] | None
    in_flight: int


COUNTED = (
    "version", "tokens_sampled", "lag", "_failed", "_discarded", "_dropped_groups", "_skipped", "_late", "_lag_sum",
    "_lag_max", "_trained", "_tail_wait_s", "_moves_failed", "_last_turn", "_resumed", "_cut_off", "_saves",
    "_saves_failed", "_copy_s",
)  # fmt: skip
"""Numbers of a tally that are carried over as they are."""
