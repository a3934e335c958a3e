"""One optimiser step on a summed gradient: rounds of backwards, then one decision that all core ranks take alike.

    open(divisor, lr) -> add(loss, ...) >= 1 times -> close(shares) -> Closed

The gradient at `close` is the sum over all rounds of all ranks, and over the shares of gradient replicas, divided by
`divisor`, which was fixed at `open`. The number of rounds must be the same on every rank (the collectives are); what is
in them need not be. `close` exchanges one small vector, from which every rank computes the same global loss, norm and
verdict in the same order of additions: a NaN anywhere stops the step everywhere.

The optimiser works on the local pieces as plain tensors: AdamW is elementwise, and this spares it DTensor dispatch.

Called by `libra.train.trainer` and `libra.train.warm_start`.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
import torch.distributed as dist

from libra.errors import RoleError
from libra.train.gradient_sum import NAMED_AT_MOST, Gap, GradientSum, Share
from libra.train.sharded import ShardedPolicy, local_piece


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
        self._sum = GradientSum(sharded)
        # A rank may hold an empty piece; the optimiser need not know.
        self._local = [local_piece(p) for p in sharded.parameters.values()]
        self._optimizer = (
            torch.optim.AdamW(
                [t for t in self._local if t.numel()], betas=betas, eps=eps, weight_decay=weight_decay, fused=True
            )
            if any(t.numel() for t in self._local)
            else None
        )
        self._max_grad_norm = max_grad_norm

    def open(self, divisor: float, lr: float) -> None:
        """Begins a step whose loss is a sum divided by `divisor` (tokens, > 0)."""
        self._sum.open(divisor)
        for group in self._optimizer.param_groups if self._optimizer else ():
            group["lr"] = lr

    def add(self, loss: torch.Tensor, culprits: Sequence[int] = (), gap: Gap | None = None) -> None:
        """One round: the backward of a scalar sum over this rank's tokens. A collective."""
        self._sum.add(loss, culprits, gap)

    def moments(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """AdamW's first and second moments of this rank's pieces that are not empty, 1-D, live; zeros before the first step."""
        if self._optimizer is None:
            return [], []
        pieces = [t for t in self._local if t.numel()]
        for tensor in pieces:
            state = self._optimizer.state[tensor]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=tensor.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(tensor), torch.zeros_like(tensor)
        first, second = ([self._optimizer.state[t][key].view(-1) for t in pieces] for key in ("exp_avg", "exp_avg_sq"))
        return first, second

    @property
    def steps(self) -> int:
        """Steps that AdamW has taken; 0 on a rank without a piece."""
        states = list(self._optimizer.state.values()) if self._optimizer is not None else []
        return int(states[0]["step"].item()) if states else 0

    @steps.setter
    def steps(self, count: int) -> None:
        for state in self._optimizer.state.values() if self._optimizer is not None else ():
            state["step"].fill_(count)

    @property
    def is_open(self) -> bool:
        return self._sum.divisor > 0

    @torch.no_grad()  # also spares `to_local` its autograd
    def close(self, shares: Sequence[Share] = ()) -> Closed:
        """Adds `shares` in their order, clips by the global norm and steps, or, where anything is not finite, leaves the
        weights alone. A collective; every core rank brings its parts of the same shares.

        RoleError where the ranks disagree about the number of rounds or the divisor, or there was no round.
        """
        if not self._sum.rounds:
            raise RoleError(
                f"a step closed after {self._sum.rounds} rounds; expected an open step with at least 1 (dummies count)"
            )
        for share in shares:
            self._sum.add_share(share)
        gradients = self._sum.gradients()
        table = self._exchange(gradients)
        divisor = self._sum.divisor
        if any(row[:2] != table[0][:2] for row in table):
            raise RoleError(f"core ranks closed different steps: (rounds, divisor) = {[row[:2] for row in table]}")
        loss = sum(row[2] for row in table) / divisor
        norm = math.sqrt(sum(row[3] for row in table))
        culprits = sorted({int(x) for row in table for x in row[10:] if x >= 0})
        gap = reduce(Gap.plus, (Gap(*row[4:10]) for row in table))
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self._step(gradients, norm)
        self._sum.drop()
        return Closed(finite, loss, norm, culprits, gap)

    def _exchange(self, gradients: list[torch.Tensor]) -> list[list[float]]:
        """One row a rank: rounds, divisor, loss sum, squared norm, gap (6), culprits."""
        s = self._sum
        norms = torch.stack(torch._foreach_norm(gradients)).to(torch.float64)  # type: ignore[arg-type]
        named = (s.culprits + [-1] * NAMED_AT_MOST)[:NAMED_AT_MOST]
        mine = torch.tensor([s.rounds, s.divisor, 0.0, 0.0, *s.gap, *named], dtype=torch.float64)
        mine = mine.to(self._sharded.device)
        mine[2] = s.loss
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
        for tensor in self._local:
            tensor.grad = None
