"""Micro-batches as tensors: rows packed one after the other, and a flat list of the tokens that carry loss.

Called by `libra.train.trainer` (trajectories) and `libra.train.warm_start` (demonstrations). Only loss tokens are
listed, so no given token can enter a loss or its denominator: there is nothing to mask.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from libra.errors import RoleError
from libra.train.packing import Packing, pack
from libra.wire.messages import Sample


class Tokens(NamedTuple):
    """One micro-batch. `n` counts its loss tokens.

    The token at position i is predicted from position i - 1: `select` points at the predictor, `targets` is the token.
    """

    ids: torch.Tensor
    """(t) int64: all tokens of all rows."""
    packing: Packing
    select: torch.Tensor
    """(n) int64, indices into ids."""
    targets: torch.Tensor
    """(n) int64."""
    row: torch.Tensor
    """(n) int64: the row that each loss token belongs to."""

    def to(self, device: torch.device) -> "Tokens":
        return Tokens(
            self.ids.to(device),
            self.packing.to(device),
            self.select.to(device),
            self.targets.to(device),
            self.row.to(device),
        )

    @property
    def forward(self) -> tuple[torch.Tensor, Packing, torch.Tensor, torch.Tensor]:
        """The arguments of `Policy.forward`."""
        return self.ids, self.packing, self.select, self.targets


class Targets(NamedTuple):
    """What the loss needs beside log-probabilities, one entry for each loss token."""

    behaviour: torch.Tensor
    """(n) log-probability under the policy that sampled the token."""
    versions: torch.Tensor
    """(n) int64 version of that policy."""
    began: torch.Tensor
    """(n) int64 version that sampled the first token of the same turn. Where it equals `versions`, the token's whole context
    was computed by that one version: prefixes of other versions are computed again when a turn begins, but a running turn
    keeps its keys and values when weights change under it."""
    advantage: torch.Tensor
    """(n)."""


def collate(rows: Sequence[Sequence[int]], loss: Sequence[Sequence[bool] | bytes], device: torch.device) -> Tokens:
    """Packs `rows` of token ids; `loss[r][i]` says whether token i of row r carries loss.

    Raises RoleError where a mask does not fit its row, or a first token (which nothing predicts) carries loss.
    """
    for r, (ids, mask) in enumerate(zip(rows, loss, strict=True)):
        if len(ids) != len(mask) or not ids:
            raise RoleError(f"row {r} has {len(ids)} tokens and a mask of {len(mask)}; expected equal and at least 1")
        if mask[0]:
            raise RoleError(
                f"the first token of row {r} is marked as sampled; expected a given token, it has no context"
            )
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    mask = torch.tensor([bool(m) for row in loss for m in row])
    row = torch.tensor([r for r, tokens in enumerate(rows) for _ in tokens])
    at = mask.nonzero().flatten()
    packing = pack([len(tokens) for tokens in rows])
    return Tokens(ids, packing, select=at - 1, targets=ids[at], row=row[at]).to(device)


def targets(samples: Sequence[Sample], device: torch.device, dtype: torch.dtype) -> Targets:
    """The loss's side of `collate([s.tokens ...], [s.sampled ...])`, in the same order."""
    for s in samples:
        if not len(s.tokens) == len(s.sampled) == len(s.logprobs) == len(s.versions):
            raise RoleError(
                f"trajectory {s.traj} has {len(s.tokens)} tokens but {len(s.sampled)} sampled marks, "
                f"{len(s.logprobs)} log-probabilities and {len(s.versions)} versions; expected one each for every token"
            )
    flat: list[tuple[float, int, int, float]] = []
    for s in samples:
        began, inside = -1, False
        for i, sampled in enumerate(s.sampled):
            if sampled:
                began = began if inside else s.versions[i]
                flat.append((s.logprobs[i], s.versions[i], began, s.advantage))
            inside = bool(sampled)
    behaviour, versions, begun, advantage = zip(*flat, strict=True) if flat else ((), (), (), ())
    return Targets(
        behaviour=torch.tensor(behaviour, dtype=dtype, device=device),
        versions=torch.tensor(versions, dtype=torch.int64, device=device),
        began=torch.tensor(begun, dtype=torch.int64, device=device),
        advantage=torch.tensor(advantage, dtype=dtype, device=device),
    )


def dummy(device: torch.device) -> Tokens:
    """One constant valid token with one position to predict: what a rank runs when it has nothing to do in a round."""
    one = torch.zeros(1, dtype=torch.int64)
    return Tokens(one, pack([1]), select=one, targets=one, row=one).to(device)
