"""One micro-batch of the policy update as a loss: the same for a core rank and for a gradient replica.

Called by `libra.train.trainer` and `libra.train.replica`, in the thread that issues collectives.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from libra.config.schema import TrainerConfig
from libra.train import loss
from libra.train.batch import Targets, collate, dummy, targets
from libra.train.gradient_sum import Gap
from libra.train.sharded import ShardedPolicy
from libra.wire.messages import Sample


class RoundLoss(NamedTuple):
    """The arguments of `GradientSum.add`."""

    total: torch.Tensor
    """Scalar with a gradient: the sum over this rank's loss tokens."""
    culprits: list[int]
    """Trajectories whose loss is not finite."""
    gap: Gap


def policy_loss(sharded: ShardedPolicy, samples: Sequence[Sample], trainer: TrainerConfig, version: int) -> RoundLoss:
    """The forward pass of this rank's micro-batch; no loss token: a dummy that runs the same collectives.

    `version` is that of the weights held now: the gap counts tokens that it sampled in turns that it began apart from the rest.
    """
    if not any(any(s.sampled) for s in samples):
        return RoundLoss((sharded.policy(*dummy(sharded.device).forward) * 0).sum(), [], Gap())
    batch = collate([s.tokens for s in samples], [s.sampled for s in samples], sharded.device)
    goal = targets(samples, sharded.device, sharded.dtype)
    logprob = sharded.policy(*batch.forward)
    each = loss.grpo(logprob, logprob.detach(), goal.behaviour, goal.advantage, trainer).loss
    total = each.sum()
    culprits: list[int] = []
    if not torch.isfinite(total):
        rows = batch.row[~torch.isfinite(each.detach())].unique().tolist()
        culprits = [samples[row].traj for row in rows]
    return RoundLoss(total, culprits, _gap(logprob.detach(), goal, version))


def _gap(logprob: torch.Tensor, goal: Targets, version: int) -> Gap:
    gap = (logprob - goal.behaviour).abs()
    same = (goal.versions == version) & (goal.began == version)
    figures: list[float] = []
    for part in (gap[same], gap[~same]):
        figures += [part.sum().item(), part.numel(), part.max().item()] if part.numel() else [0.0, 0.0, 0.0]
    return Gap(*figures)
