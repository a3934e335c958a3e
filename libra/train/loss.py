"""Token losses of the policy update and of the warm start. Pure functions; the caller sums and divides.

Every function returns one value a token. The step's loss is their plain sum over all tokens of all workers, divided by a
count that was fixed before any work was handed out; never a mean of means. A masked token is taken out with `where`
*before* anything is computed from it, so that a NaN in it reaches neither the loss nor a gradient (NaN x 0 is NaN).

Notation, for one token: p = current log-probability, q = proximal one, b = that of the policy which sampled the token
(stored with it, never recomputed), A = advantage.
"""

import math
from typing import NamedTuple

import torch

from libra.config.schema import TrainerConfig


class TokenLoss(NamedTuple):
    loss: torch.Tensor
    """(n) loss of each token, 0 where it does not count."""
    counted: torch.Tensor
    """(n) bool: the tokens that carry loss. With a ratio band the denominator is the sum of these over all workers."""


def in_band(log_ratio: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """(n) bool: low <= exp(log_ratio) <= high, decided on logarithms so that nothing overflows. NaN is outside."""
    floor = math.log(low) if low > 0 else -math.inf
    return (log_ratio >= floor) & (log_ratio <= math.log(high))


def importance_weight(proximal: torch.Tensor, behaviour: torch.Tensor, cap: float) -> torch.Tensor:
    """w = min(exp(q - b), cap), without gradient: truncated importance sampling (Ionides 2008, JCGS 17(2)).

    It corrects for tokens sampled by older weights, and for the numerical difference between engine and trainer; the
    truncation trades a little bias for bounded variance.
    """
    return (proximal - behaviour).detach().clamp(max=math.log(cap)).exp()


def grpo(
    logprob: torch.Tensor,
    proximal: torch.Tensor,
    behaviour: torch.Tensor,
    advantage: torch.Tensor,
    trainer: TrainerConfig,
    *,
    mask: torch.Tensor | None = None,
    band: tuple[float, float] | None = None,
) -> TokenLoss:
    """Clipped policy-gradient loss of each token; all tensors (n), only `logprob` carries a gradient.

        r    = exp(p - q)
        w    = min(exp(q - b), importance_cap)
        A>=0 : loss = -w A min(r, 1 + clip_high)
        A< 0 : loss = -w A min(max(r, 1 - clip_low), negative_cap)

    - Group-relative advantages and the clipped surrogate: GRPO, arXiv 2402.03300 (its mean over each answer is
      replaced by the token-level sum of DAPO, arXiv 2503.14476, which also has the higher upper clip).
    - The clip is around the proximal policy q, the weight w leads from the sampling policy b to q: decoupled PPO, Hilton
      et al., arXiv 2110.00641; in asynchronous RL of language models: AReaL, arXiv 2505.24298.
    - For A < 0 the clipped surrogate grows without bound in r; `negative_cap` bounds it: dual clip, arXiv 1912.09729.

    Trainer takes one optimiser step a batch, with q = p detached: then r is 1, the clip is inert, and the gradient is
    that of -w A p. The weight w and its cap alone answer for staleness. The functions take any q all the same.

    The two cases are one clamp of p - q between bounds that depend on the sign of A; the clamp stands before the
    exponential, so a huge ratio gives neither an overflow nor a gradient. `mask` (n, bool) takes tokens out. `band` takes
    out those whose ratio exp(q - b) lies outside [low, high] (masked importance sampling): they then leave the
    denominator too, so the caller must divide by the sum of `counted`.
    """
    keep = torch.ones_like(logprob, dtype=torch.bool) if mask is None else mask
    if band is not None:
        keep = keep & in_band((proximal - behaviour).detach(), *band)
    zero = logprob.new_zeros(())
    p, q, b, a = (torch.where(keep, x, zero) for x in (logprob, proximal.detach(), behaviour, advantage))
    floor = math.log1p(-trainer.clip_low) if trainer.clip_low < 1 else -math.inf
    gain = a >= 0
    lowest = torch.where(gain, zero - math.inf, zero + floor)
    highest = torch.where(gain, zero + math.log1p(trainer.clip_high), zero + math.log(trainer.negative_cap))
    ratio = torch.clamp(p - q, lowest, highest).exp()
    return TokenLoss(torch.where(keep, -importance_weight(q, b, trainer.importance_cap) * a * ratio, zero), keep)


def cross_entropy(logprob: torch.Tensor, mask: torch.Tensor | None = None) -> TokenLoss:
    """-p of each token: supervised learning of demonstrations."""
    keep = torch.ones_like(logprob, dtype=torch.bool) if mask is None else mask
    return TokenLoss(torch.where(keep, -logprob, logprob.new_zeros(())), keep)
