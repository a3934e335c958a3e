"""The gradient role: a member of a replica that sums gradients of micro-batches and lends the sum to the core.

    FormMembers ──> process group ──> Install ──> [ Accumulate ... ──> OfferShare ]  with every version again

    orders ──> main thread: rounds, with the collectives of the replica's own group ──> RoundFinished | RoundRefused
    Install ──> puller thread: this member's ranges only ──> main thread: between two rounds ──> Installed
    OfferShare ──> main thread: copy to the host buffer ──> ShareOffered; core ranks pull it in their own time

The members of a replica may be given different versions by their pulls, where a newer one was published meanwhile; each
says in Installed what it holds, and the controller orders again until all hold the same. A round on the wrong version is
refused by all members alike.
"""

import time

import torch

from libra.env.registry import vocabulary
from libra.errors import RefusedError, RoleError
from libra.rank.device import finish, role_device
from libra.rank.group import join_group
from libra.rank.installer import Installer, Pulled
from libra.rank.link import RoleLink
from libra.train.model import preload
from libra.train.replica import GradientReplica
from libra.weights.publisher import Publisher
from libra.weights.puller import Puller
from libra.wire import messages as m


class GradientRole:
    """`dtype`: of weights and gradients; float64 in tests of exactness."""

    def __init__(self, link: RoleLink, dtype: torch.dtype = torch.float32) -> None:
        self.link = link
        self.config = link.config
        self.device = role_device(link.spec.device)
        self.dtype = dtype
        torch.set_num_threads(self.config.trainer.threads)
        preload(self.config.model)
        self.publisher = Publisher(token=link.spec.token, incarnation=link.spec.incarnation)
        self._installer = Installer(link, self._pull)
        self._replica: GradientReplica | None = None

    @property
    def replica(self) -> GradientReplica:
        if self._replica is None:
            raise RoleError("an order for a gradient replica came before its process group was formed")
        return self._replica

    def run(self) -> None:
        """Until Stop."""
        self.link.serve(self._take)

    def _take(self, order: object) -> None:
        match order:
            case m.FormMembers():
                self.link.doing = m.FORMING
                self._form(order)
            case m.Install():
                self._install(order)
            case Pulled():
                self.link.doing = "installing"
                self._installer.end(order, self.replica.install)
            case m.Accumulate():
                self.link.doing = "round"
                self._accumulate(order)
            case m.OfferShare():
                self.link.doing = "share"
                self._offer(order)
            case _:
                raise TypeError(f"a gradient replica cannot take the order {type(order).__name__}")

    def _form(self, order: m.FormMembers) -> None:
        join_group(order, self.device, self.config.deadline.group_s)
        words = vocabulary(self.config.live_env, self.config.model)
        self._replica = GradientReplica(self.config, words.size, order.index, order.size, self.device, dtype=self.dtype)
        self.link.send(m.Formed(order.cmd))

    def _install(self, order: m.Install) -> None:
        """A member that holds the version, or a newer one, says so at once: the order was for the others."""
        if self.replica.version >= order.version:
            self.link.send(m.Installed(order.cmd, self.replica.version, 0.0))
        else:
            self._installer.begin(order)

    def _pull(self, puller: Puller, order: m.Install) -> tuple[int, list[torch.Tensor]]:
        ranges = self.replica.sharded.ranges()
        return puller.pull_ranges(order.version, order.sources, ranges, self.config.deadline.weights_s)

    def _accumulate(self, order: m.Accumulate) -> None:
        began = time.monotonic()
        try:
            self.replica.accumulate(order.step, order.version, order.loss_tokens, order.samples)
        except RefusedError as e:
            self.link.send(m.RoundRefused(order.cmd, str(e)))
        else:
            finish(self.device)
            self.link.send(m.RoundFinished(order.cmd, time.monotonic() - began))

    def _offer(self, order: m.OfferShare) -> None:
        try:
            pieces, note = self.replica.share(order.step)
        except RefusedError as e:
            self.link.send(m.RoundRefused(order.cmd, str(e)))
            return
        # The step names the share: it is offered once, and later ones belong to later steps.
        self.publisher.publish(order.step, pieces)
        self.replica.drop()
        self.link.send(m.ShareOffered(order.cmd, self.publisher.address, order.step, note))
