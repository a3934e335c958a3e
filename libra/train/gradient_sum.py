"""The gradient of one step as a plain sum: over rounds, over ranks, over whoever lends a hand.

    open(divisor) -> add(loss, ...) for each round -> [add_share(share) ...] -> gradients(), note() -> drop()

Each round's backward reduce-scatters at once into the pieces beside the parameters (`.grad`, in the reduce dtype), already
divided by a count that was fixed before any work was handed out. So a core rank and a gradient replica hold the same
kind of thing, and one is added to the other element by element: `SummedStep` closes a step with it, `GradientReplica`
offers it as a share. Rounds are collectives; all ranks of the group run the same number of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from libra.core.events import LogprobGap
from libra.errors import RoleError
from libra.train.sharded import ShardedPolicy, local_piece
from libra.wire.messages import ShareNote

NAMED_AT_MOST = 4
"""Trajectories with a non-finite loss that one rank names."""


class Gap(NamedTuple):
    """How far the trainer's log-probabilities lie from those that engines stored: sums of absolute differences, numbers of
    tokens, the worst difference. First of tokens that engines sampled with the same weights, then of the rest."""

    total: float = 0.0
    tokens: float = 0.0
    worst: float = 0.0
    rest_total: float = 0.0
    rest_tokens: float = 0.0
    rest_worst: float = 0.0

    def plus(self, x: "Gap") -> "Gap":
        return Gap(
            self.total + x.total,
            self.tokens + x.tokens,
            max(self.worst, x.worst),
            self.rest_total + x.rest_total,
            self.rest_tokens + x.rest_tokens,
            max(self.rest_worst, x.rest_worst),
        )

    def figures(self) -> LogprobGap:
        same, rest = self.tokens > 0, self.rest_tokens > 0
        return LogprobGap(
            mean=self.total / self.tokens if same else None,
            worst=self.worst if same else None,
            rest_mean=self.rest_total / self.rest_tokens if rest else None,
            rest_worst=self.rest_worst if rest else None,
        )


class Share(NamedTuple):
    """What a gradient replica summed, as far as it concerns one core rank."""

    parts: list[torch.Tensor]
    """1-D, on the host: one for each of this rank's pieces that is not empty, in the model's order."""
    notes: list[ShareNote]
    """One for each rank of the replica, on one core rank only; else none."""


class GradientSum:
    """`divisor` > 0 while a step is open."""

    def __init__(self, sharded: ShardedPolicy) -> None:
        self._sharded = sharded
        self._parameters = list(sharded.parameters.values())
        self.divisor = 0.0
        self.rounds = 0

    def open(self, divisor: float) -> None:
        """Begins the sum of a step with `divisor` loss tokens (> 0) in all, whoever computes them."""
        if self.divisor:
            raise RoleError("a step is opened while another is open; expected close first")
        if not divisor > 0:
            raise RoleError(
                f"a step of {divisor} loss tokens; expected at least 1 (an empty batch is skipped, not trained)"
            )
        self.drop()
        self.divisor = float(divisor)
        self.loss = torch.zeros((), dtype=torch.float64, device=self._sharded.device)
        """Sum over this rank's tokens, before the division."""
        self.culprits: list[int] = []
        self.gap = Gap()

    def add(self, loss: torch.Tensor, culprits: Sequence[int] = (), gap: Gap | None = None) -> None:
        """One round: the backward of a scalar sum over this rank's tokens. A collective."""
        if not self.divisor:
            raise RoleError("a round without an open step; expected open first")
        (loss / self.divisor).backward()
        self.rounds += 1
        self.loss += loss.detach()
        self.culprits += culprits
        if gap is not None:
            self.gap = self.gap.plus(gap)

    @torch.no_grad()
    def add_share(self, share: Share) -> None:
        """Adds what a replica summed over its own rounds. Not a collective."""
        pieces = [piece for piece in self.gradients() if piece.numel()]
        for piece, part in zip(pieces, share.parts, strict=True):
            piece.add_(part.view_as(piece).to(piece.device))
        for note in share.notes:
            self.loss += note.loss
            self.culprits += note.culprits
            self.gap = self.gap.plus(Gap(*note.gap))

    def gradients(self) -> list[torch.Tensor]:
        """This rank's pieces of the sum, live, in the order of the parameters; there must have been a round."""
        return [local_piece(p.grad) for p in self._parameters]  # type: ignore[arg-type]

    def note(self) -> ShareNote:
        """What goes with the gradient where it is offered as a share."""
        return ShareNote(self.loss.item(), [*self.gap], self.culprits[:NAMED_AT_MOST])

    def drop(self) -> None:
        """Ends the step and frees its gradient."""
        self.divisor, self.rounds = 0.0, 0
        for parameter in self._parameters:
            parameter.grad = None
