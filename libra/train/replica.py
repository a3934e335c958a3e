"""A member of a gradient replica: weights of exactly one version and a sum of gradients, no optimiser.

    install(version) -> accumulate(step) ... -> share(step)        (its pieces are then served to the core ranks)

The default process group holds exactly the replica's members, also where there is only one. All members get the same
calls in the same order, except that `install` comes when each one's own pull is done. So a round of several begins with a
vote: one that may not take it says so, and then all refuse alike. A member never waits in a collective for one that refused.

The sum is in the core's reduce dtype and already divided by the step's count of loss tokens: the core adds it as it is.
Called by `libra.rank.gradient_role`, in the thread that issues collectives.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from libra.config.schema import Config
from libra.errors import RefusedError
from libra.train.gradient_sum import GradientSum
from libra.train.policy_round import policy_loss
from libra.train.sharded import FSDP_GROUP_BYTES, ShardedPolicy
from libra.weights.layout import Shard
from libra.wire.messages import Sample, ShareNote

NONE = -1
"""As a version: no weights yet. As a step: no sum."""


class GradientReplica:
    """Member `index` of `size`. `vocabulary` counts token ids."""

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
        self.version = NONE
        """Of the weights held."""
        self._sum = GradientSum(self.sharded)
        self._step = NONE
        self._shared = False

    def install(self, version: int, parts: Sequence[torch.Tensor]) -> None:
        """Takes the weights of `version`, in the order of `sharded.ranges()`. A sum made with others is dropped."""
        self.sharded.load_ranges(parts)
        self.version = version
        self._sum.drop()
        self._step, self._shared = NONE, False

    def accumulate(self, step: int, version: int, loss_tokens: int, samples: list[Sample]) -> None:
        """Adds one round of `step`, whose loss tokens over all ranks and rounds number `loss_tokens`. A collective.

        RefusedError, on all members alike, where one of them does not hold exactly `version`, has another step open, or
        has shared this one.
        """
        self._vote(self._objection(step, version))
        if self._step == NONE:
            self._sum.open(loss_tokens)
            self._step = step
        self._sum.add(*policy_loss(self.sharded, samples, self.config.trainer, version))

    def share(self, step: int) -> tuple[list[Shard], ShareNote]:
        """The pieces of the gradient of `step`, live until `drop`, and what goes with it. Nothing more is added to it.

        RefusedError where there is no sum of this step, or it was shared. Not a collective.
        """
        if self._step != step or self._shared:
            raise RefusedError(f"no share of step {step}: {self._state()}")
        self._shared = True
        return self.sharded.gradients(), self._sum.note()

    def drop(self) -> None:
        """Frees the gradient that was shared: it has been copied."""
        self._sum.drop()

    def _objection(self, step: int, version: int) -> str:
        if version != self.version:
            return f"no round with version {version}: {self._state()}"
        if self._step not in (NONE, step) or self._shared:
            return f"no round of step {step}: {self._state()}"
        return ""

    def _state(self) -> str:
        held = f"version {self.version} is held" if self.version != NONE else "no weights are held"
        if self._step == NONE:
            return f"{held}, no step is open"
        return f"{held}, step {self._step} is {'shared already' if self._shared else 'open'}"

    def _vote(self, objection: str) -> None:
        """RefusedError if one member objects. A collective where there are several."""
        objections = torch.tensor(int(objection != ""), device=self.sharded.device)
        if self.sharded.size > 1:
            dist.all_reduce(objections)
        if objections.item():
            raise RefusedError(objection or "another member of this replica refuses the round")
