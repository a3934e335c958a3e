"""One optimiser step: its micro-batches, who computes which, and when it may be closed.

    micro-batches, longest first ─┬─> core rounds: one micro-batch a core rank, two rounds out at a time
                                  └─> gradient replicas: one order at a time each ─> their sum ─> a share, staged at the core
    nothing left, every share held by every core rank or discarded ──> CloseStep(shares), behind the last round

A round gives every core rank one micro-batch, or a dummy where none is left. Two rounds are out at a time, so that no round
trip to the controller sits between them. The loss is a sum over tokens divided by a count fixed before the first round, so the
step's gradient does not depend on who computed what. A micro-batch is in exactly one place: in the queue, in a round, or in
the work of one replica; that of a replica goes back to the queue if its share is discarded.
"""

from dataclasses import dataclass, field
from typing import Literal

from libra.core.commands import MicroBatch, Row
from libra.core.events import LogprobGap
from libra.core.fleet import Unit

ROUNDS_AHEAD = 2
"""Rounds handed out and not yet answered by every core rank."""
Slots = tuple[MicroBatch | None, ...]
ShareState = Literal["taking", "working", "offering", "fetching", "held", "discarded"]


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
    reward_stages: dict[str, float] = field(default_factory=dict[str, float])
    members: list[int] = field(default_factory=list[int])
    """Every trajectory of the batch: forgotten once the batch is consumed."""


@dataclass(slots=True)
class Share:
    """What one replica does for one step.

    taking ─> (working <─> taking) ─> offering ─> fetching ─> held
       └───────────┴───────────────────┴───────────┴──> discarded: its micro-batches are in the queue again
    """

    replica: Unit
    state: ShareState = "taking"
    work: list[MicroBatch] = field(default_factory=list[MicroBatch])
    """All that it has taken; the last order's are not computed yet while it is working."""
    command: int = 0
    """The order under way; 0 when none."""
    awaited: list[int] = field(default_factory=list[int])
    """Ranks that have not answered it: the replica's, or the core's that fetch."""
    since: float = 0.0
    longest_tokens: int = 0
    """Of the slots of the order under way."""

    @property
    def settled(self) -> bool:
        return self.state in ("held", "discarded")


@dataclass(slots=True)
class TrainingStep:
    """The open step. `version` is what it will publish."""

    figures: BatchFigures
    version: int
    ranks: tuple[int, ...]
    queue: list[MicroBatch]
    began: float = 0.0
    next_round: int = 0
    close_seq: int = 0
    """Sequence number of the CloseStep, 0 before it is sent."""
    unanswered: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Round command -> core ranks that have not answered it."""
    round_tokens: dict[int, int] = field(default_factory=dict[int, int])
    """Round command -> tokens of its longest slot."""
    shares: dict[int, Share] = field(default_factory=dict[int, Share])
    """By replica, at most one each: a replica whose share is settled takes no further part in this step."""
    waits: bool = False
    """The core has computed all that it can, and waits for shares; a deadline runs."""
    unclosed: list[int] = field(default_factory=list[int])
    loss: float = 0.0
    grad_norm: float = 0.0
    gap: LogprobGap = field(default_factory=LogprobGap)

    # --- the core

    def take_round(self, most: int) -> Slots | None:
        """The next round's slots, one a core rank; None while `most` are out or none is left. There is always a first round."""
        if len(self.unanswered) >= most or (self.next_round > 0 and not self.queue):
            return None
        self.next_round += 1
        return self.take(len(self.ranks))

    def take(self, slots: int) -> Slots:
        """The longest micro-batches that are left, one a slot, and dummies after the last one."""
        taken = self.queue[:slots]
        del self.queue[:slots]
        return (*taken, *(None for _ in range(slots - len(taken))))

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

    @property
    def closing(self) -> bool:
        return self.close_seq > 0

    @property
    def computed(self) -> bool:
        """No micro-batch waits and the core has answered all of its rounds."""
        return self.next_round > 0 and not self.queue and not self.unanswered

    @property
    def ready_to_close(self) -> bool:
        """Nothing is left to hand out, and each share is settled."""
        handed_out = not self.closing and self.next_round > 0 and not self.queue
        return handed_out and all(share.settled for share in self.shares.values())

    # --- shares

    def share_of(self, cmd: int, rank: int) -> Share | None:
        """The share whose order `cmd` the rank may answer."""
        for share in self.shares.values():
            if share.command == cmd and rank in share.awaited:
                return share
        return None

    def discard(self, share: Share) -> None:
        """Its micro-batches are computed by others; what the replica has of them counts for nothing."""
        share.state = "discarded"
        share.command = 0
        share.awaited.clear()
        self.queue = sorted([*self.queue, *share.work], key=lambda b: (-b.tokens, b.id))
        share.work = []

    def held(self) -> tuple[int, ...]:
        """Replicas whose shares every core rank holds, in the order in which they are added."""
        return tuple(sorted(id for id, share in self.shares.items() if share.state == "held" and share.work))
