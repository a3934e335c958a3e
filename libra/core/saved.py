"""What of the core goes into a checkpoint, and what a core that goes on from one begins with.

    Core.saved() ──> SavedCore ──(core.msgpack)──> Core(config, saved=...): the batches after it, as if nothing had happened

Taken at a step boundary: between two batches the learner is a version and a count. Group n belongs to batch n // groups of
a batch and asks prompt n, so the count alone says which prompts have been reached and not trained: they are opened anew, in
their order, and none is skipped. Their tokens so far are what a cut costs.
"""

from msgspec import Struct

from libra.core.learned import Learned

FORMAT = 1
"""Version of this format."""


class SavedBalance(Struct, frozen=True, array_like=True):
    """What the rule of `balance` has observed, as of an allocation of so many ranks."""

    rollout: int
    gradient: int
    train_s: float | None
    rollout_s: float | None


class Best(Struct, frozen=True, array_like=True):
    """The checkpoint with the best held-out reward."""

    step: int
    reward: float


class SavedCore(Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    seconds: float
    """Of the run's clock."""
    step: int
    """Batches consumed."""
    version: int
    newest_at: tuple[int, ...]
    """The newest version once i batches were consumed."""
    next_traj: int
    next_group: int
    learned: Learned
    balance: SavedBalance
    checkpoints: tuple[int, ...] = ()
    """Those on disk, ascending; told by the disk when a run is resumed."""
    best: Best | None = None
