"""The draw: from logits and keyed uniforms to tokens and their log-probabilities, for a whole batch at once."""

import torch
from torch import Tensor


def draw(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling from softmax(logits / temperature).

    `logits` [rows, vocabulary] of any float dtype, `uniforms` [rows] float64 in [0, 1), on one device. The token is the
    first index whose float64 cumulative weight exceeds u x total. Returns tokens [rows] (int64) and the unfiltered
    log-probabilities [rows] (float64), NaN where a row's logits are not finite enough to normalise.
    """
    scaled = logits.double()
    if temperature != 1.0:
        scaled = scaled / temperature
    shifted = scaled - scaled.amax(-1, keepdim=True)
    cumulative = shifted.exp().cumsum(-1)
    total = cumulative[:, -1:]
    # u x total can round up to the total itself, which nothing exceeds: the last word with any weight is meant then.
    threshold = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=logits.shape[-1] - 1)
    logprobs = shifted.gather(-1, tokens) - total.log()
    return tokens[:, 0], logprobs[:, 0]
