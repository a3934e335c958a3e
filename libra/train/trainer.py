"""The training side of a core rank: orders in, an optimiser step out.

    open(step) -> round(samples) ... -> close(shares) -> StepResult        (then shards() are published)

One trainer a core rank; the default process group holds exactly the core ranks. Every call but `shards` runs
collectives, so all ranks get the same calls in the same order (the controller dictates it) and one thread makes them.
Nothing here waits for anyone outside the core: the group's time-out is the deadline of every wait.

The gradient of a step is the plain sum over all micro-batches, whoever took which (a core rank in a round, or a gradient
replica whose share `close` is given), divided by the loss-token count given at `open`. A rank without work in a round
runs a dummy. Called by `libra.rank.trainer_role`.
"""

from collections.abc import Sequence

import torch
from msgspec import Struct

from libra.config.schema import Config
from libra.core.events import LogprobGap
from libra.errors import RoleError
from libra.train.gradient_sum import Share
from libra.train.policy_round import policy_loss
from libra.train.sharded import FSDP_GROUP_BYTES, ShardedPolicy
from libra.train.summed_step import SummedStep
from libra.weights.layout import Shard
from libra.wire.messages import Sample


class StepResult(Struct, frozen=True):
    """What `close` decided; equal on all core ranks."""

    finite: bool
    """False: no rank took the optimiser step, the weights are as before."""
    loss: float
    """Sum over all loss tokens / loss_tokens."""
    grad_norm: float
    """Global norm before clipping."""
    detail: str
    """Where not finite: step, batch and, where known, the trajectories. Else empty."""
    gap: LogprobGap = LogprobGap()


class Trainer:
    """Core rank `index` of `size`. `vocabulary` counts token ids. The initial weights depend on `config.run.seed` alone."""

    def __init__(
        self,
        config: Config,
        vocabulary: int,
        index: int,
        size: int,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        group_bytes: int = FSDP_GROUP_BYTES,
    ) -> None:
        self.config = config
        self.sharded = ShardedPolicy(config, vocabulary, index, size, device, dtype=dtype, group_bytes=group_bytes)
        c = config.trainer
        self.summed = SummedStep(
            self.sharded,
            betas=(c.beta1, c.beta2),
            eps=c.eps,
            weight_decay=c.weight_decay,
            max_grad_norm=c.max_grad_norm,
        )
        self._where = ""
        self._version = -1

    def open(
        self,
        step: int,
        loss_tokens: int,
        batch: int | None = None,
        lr_scale: float | None = None,
        version: int | None = None,
    ) -> None:
        """Begins optimiser step `step` on batch `batch`, whose loss tokens over all ranks and rounds number `loss_tokens`.

        `lr_scale` multiplies the learning rate; None: min(1, (step + 1) / lr_warmup_steps). `version` is that of the
        weights held now; None: `step` (each taken step makes the next version).
        """
        c = self.config.trainer
        if lr_scale is None:
            lr_scale = min(1.0, (step + 1) / c.lr_warmup_steps) if c.lr_warmup_steps else 1.0
        self._where = f"step {step}" if batch is None else f"step {step}, batch {batch}"
        self._version = step if version is None else version
        self.summed.open(loss_tokens, c.lr * lr_scale)

    def round(self, samples: list[Sample]) -> None:
        """Forward and backward of this rank's micro-batch; none: a dummy that runs the same collectives."""
        if not self.summed.is_open:
            raise RoleError("a round without an open step; expected open first")
        self.summed.add(*policy_loss(self.sharded, samples, self.config.trainer, self._version))

    def close(self, shares: Sequence[Share] = ()) -> StepResult:
        """Adds `shares` in their order, clips by the global norm and steps, or refuses on every rank alike because something
        is not finite. Every core rank brings its parts of the same shares, in the same order."""
        closed = self.summed.close(shares)
        detail = ""
        if not closed.finite:
            named = f"; trajectories with a non-finite loss: {closed.culprits}" if closed.culprits else ""
            detail = (
                f"{self._where}: loss {closed.loss:.6g}, gradient norm {closed.grad_norm:.6g}, no step taken{named}"
            )
        return StepResult(
            finite=closed.finite,
            loss=closed.loss,
            grad_norm=closed.grad_norm,
            detail=detail,
            gap=closed.gap.figures(),
        )

    def shards(self) -> list[Shard]:
        """This rank's pieces for publication: live storage, so copy them before the next `close`. Not a collective."""
        return self.sharded.shards()
