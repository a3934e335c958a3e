"""One optimiser step as rounds.

    micro-batches, longest first ──> round 0, round 1 handed out ──> every core rank answers round i ──> round i + 2 handed out
                                                         no micro-batch left ──> CloseStep, behind the last round

A round gives every core rank one micro-batch, or a dummy where none is left. Two rounds are out at a time, so that no round
trip to the controller sits between them. The loss is a sum over tokens divided by a count fixed before the first round, so the
step's gradient does not depend on who computed what.
"""

from dataclasses import dataclass, field

from libra.core.commands import MicroBatch, Row

ROUNDS_AHEAD = 2
"""Rounds handed out and not yet answered by every core rank."""


@dataclass(slots=True)
class BatchFigures:
    """What is known of a batch before it is trained; becomes a `BatchConsumed`."""

    batch: int
    reward: float
    groups: int
    groups_trained: int
    trajectories: int
    loss_tokens: int
    lag: int
    wait_s: float
    rows: list[tuple[int, Row]] = field(default_factory=list[tuple[int, Row]])
    """(length in tokens, row) of everything that trains."""
    members: list[int] = field(default_factory=list[int])
    """Every trajectory of the batch: forgotten once the batch is consumed."""


@dataclass(slots=True)
class TrainingStep:
    """The open step. `version` is what it will publish."""

    figures: BatchFigures
    version: int
    ranks: tuple[int, ...]
    queue: list[MicroBatch]
    next_round: int = 0
    close_seq: int = 0
    """Sequence number of the CloseStep, 0 before it is sent."""
    unanswered: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Round command -> ranks that have not answered it."""
    unclosed: list[int] = field(default_factory=list[int])
    loss: float = 0.0
    grad_norm: float = 0.0
    gap: float | None = None

    def take_round(self) -> tuple[MicroBatch | None, ...] | None:
        """The next round's slots, one a core rank; None when no more may be handed out now. The first round always exists."""
        if len(self.unanswered) >= ROUNDS_AHEAD or (self.next_round > 0 and not self.queue):
            return None
        self.next_round += 1
        return tuple(self.queue.pop(0) if self.queue else None for _ in self.ranks)

    @property
    def ready_to_close(self) -> bool:
        return self.close_seq == 0 and self.next_round > 0 and not self.queue

    def answered(self, cmd: int, rank: int) -> bool:
        """Count a rank's answer to a round; True when the round is done on every core rank."""
        waiting = self.unanswered.get(cmd)
        if waiting is None or rank not in waiting:
            return False
        waiting.remove(rank)
        if waiting:
            return False
        del self.unanswered[cmd]
        return True
