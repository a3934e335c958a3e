"""One optimiser step as a plain sum: rounds of backwards, then one decision that all core ranks take alike.

    open(divisor, lr) -> add(loss, ...) >= 1 times -> close() -> Closed

Each round's backward reduce-scatters at once into sharded sums, so the gradient at `close` is the sum over all rounds of
all ranks divided by `divisor`, which was fixed at `open`. The number of rounds must be the same on every rank (the
collectives are); what is in them need not be. `close` exchanges one small vector, from which every rank computes the
same global loss, norm and verdict in the same order of additions: a NaN anywhere stops the step everywhere.

The optimiser works on the local pieces as plain tensors: AdamW is elementwise, and this spares it DTensor dispatch.

Called by `libra.train.trainer` and `libra.train.warm_start`.
"""

import math
from typing import NamedTuple

import torch
import torch.distributed as dist

from libra.errors import RoleError
from libra.train.sharded import ShardedPolicy, local_piece

NAMED_AT_MOST = 4
"""Trajectories with a non-finite loss that one rank names."""


class Gap(NamedTuple):
    """How far the trainer's log-probabilities lie from those stored by engines that held the same weights."""

    total: float = 0.0
    """Sum of absolute differences."""
    tokens: float = 0.0
    worst: float = 0.0


class Closed(NamedTuple):
    """The verdict on one step; equal on all core ranks."""

    finite: bool
    loss: float
    """Global sum / divisor."""
    grad_norm: float
    """Global, before clipping."""
    culprits: list[int]
    """Trajectories whose loss was not finite, where known."""
    gap: Gap


class SummedStep:
    """AdamW over a sharded policy, a step at a time."""

    def __init__(
        self,
        sharded: ShardedPolicy,
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_grad_norm: float,
    ) -> None:
        self._sharded = sharded
        self._parameters = list(sharded.parameters.values())
        # A rank may hold an empty piece; the optimiser need not know.
        self._local = [local_piece(p) for p in self._parameters]
        self._optimizer = (
            torch.optim.AdamW(
                [t for t in self._local if t.numel()], betas=betas, eps=eps, weight_decay=weight_decay, fused=True
            )
            if any(t.numel() for t in self._local)
            else None
        )
        self._max_grad_norm = max_grad_norm
        self._divisor = 0.0
        self._rounds = 0

    @property
    def is_open(self) -> bool:
        return self._divisor > 0

    def open(self, divisor: float, lr: float) -> None:
        """Begins a step whose loss is a sum divided by `divisor` (tokens, > 0)."""
        if self.is_open:
            raise RoleError("a step is opened while another is open; expected close first")
        if not divisor > 0:
            raise RoleError(
                f"a step of {divisor} loss tokens; expected at least 1 (an empty batch is skipped, not trained)"
            )
        self._divisor = float(divisor)
        self._rounds = 0
        self._loss = torch.zeros((), dtype=torch.float64, device=self._sharded.device)
        self._culprits: list[int] = []
        self._gap = Gap()
        for group in self._optimizer.param_groups if self._optimizer else ():
            group["lr"] = lr
        self._drop_gradients()

    def add(self, loss: torch.Tensor, *, culprits: list[int] | None = None, gap: Gap | None = None) -> None:
        """One round: the backward of a scalar sum over this rank's tokens. A collective."""
        if not self.is_open:
            raise RoleError("a round without an open step; expected open first")
        (loss / self._divisor).backward()
        self._rounds += 1
        self._loss += loss.detach()
        self._culprits += culprits or []
        if gap is not None:
            self._gap = Gap(self._gap.total + gap.total, self._gap.tokens + gap.tokens, max(self._gap.worst, gap.worst))

    @torch.no_grad()  # also spares `to_local` its autograd
    def close(self) -> Closed:
        """Clips by the global norm and steps, or, where anything is not finite, leaves the weights alone. A collective.

        RoleError where the ranks disagree about the number of rounds or the divisor, or there was no round.
        """
        if not self.is_open or not self._rounds:
            raise RoleError(
                f"a step closed after {self._rounds} rounds; expected an open step with at least 1 (dummies count)"
            )
        gradients = [p.grad.to_local() for p in self._parameters]  # type: ignore[union-attr]
        table = self._exchange(gradients)
        divisor, self._divisor = self._divisor, 0.0
        if any(row[:2] != table[0][:2] for row in table):
            raise RoleError(f"core ranks closed different steps: (rounds, divisor) = {[row[:2] for row in table]}")
        loss = sum(row[2] for row in table) / divisor
        norm = math.sqrt(sum(row[3] for row in table))
        culprits = sorted({int(x) for row in table for x in row[7:] if x >= 0})
        gap = Gap(sum(row[4] for row in table), sum(row[5] for row in table), max(row[6] for row in table))
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self._step(gradients, norm)
        self._drop_gradients()
        return Closed(finite, loss, norm, culprits, gap)

    def _exchange(self, gradients: list[torch.Tensor]) -> list[list[float]]:
        """One row a rank: rounds, divisor, loss sum, squared norm, gap (3), culprits."""
        norms = torch.stack(torch._foreach_norm(gradients)).to(torch.float64)  # type: ignore[arg-type]
        named = (self._culprits + [-1] * NAMED_AT_MOST)[:NAMED_AT_MOST]
        mine = torch.tensor([self._rounds, self._divisor, 0.0, 0.0, *self._gap, *named], dtype=torch.float64)
        mine = mine.to(self._sharded.device)
        mine[2] = self._loss
        mine[3] = norms.square().sum()
        table = [torch.empty_like(mine) for _ in range(self._sharded.size)]
        dist.all_gather(table, mine)
        return [row.tolist() for row in table]

    def _step(self, gradients: list[torch.Tensor], norm: float) -> None:
        if self._optimizer is None:
            return
        if norm > self._max_grad_norm:
            torch._foreach_mul_(gradients, self._max_grad_norm / norm)  # type: ignore[attr-defined]
        for tensor, gradient in zip(self._local, gradients, strict=True):
            tensor.grad = gradient if tensor.numel() else None
        self._optimizer.step()

    def _drop_gradients(self) -> None:
        for tensor, parameter in zip(self._local, self._parameters, strict=True):
            tensor.grad = parameter.grad = None
