"""The trainer role: one core rank. Orders come in one sequence for all core ranks, so their collectives meet.

    FormMembers ──> process group ──> StartWarm ──> [ Open ──> RunRound ... ──> Close ──> publish ]  again and again
    Save ──> copy; a thread writes ──> Saved │ SaveFailed        Load, in place of StartWarm ──> publish
    FetchShare ──> a thread of its own, at once ──> staging ──> ShareFetched | ShareLost        Close takes what it lists

Nothing in here waits for a rank outside the core: orders come through a queue, weights are left in a host buffer that
others fetch in their own time, and shares of gradient replicas lie in staging before they are called for.
"""

import time
from pathlib import Path

import torch

from libra.env.protocol import Demonstration
from libra.env.registry import environment
from libra.errors import RoleError
from libra.rank.device import finish, role_device
from libra.rank.group import join_group
from libra.rank.link import RoleLink
from libra.train.model import preload
from libra.train.saving import Saving
from libra.train.staging import Staging
from libra.train.trainer import Trainer
from libra.train.warm_start import warm_start
from libra.weights.publisher import Publisher
from libra.wire import messages as m


class TrainerRole:
    """`dtype`: of weights, gradients and moments; float64 in tests of exactness."""

    def __init__(self, link: RoleLink, dtype: torch.dtype = torch.float32) -> None:
        self.link = link
        self.config = link.config
        self.device = role_device(link.spec.device)
        self.dtype = dtype
        self.world = environment(self.config.live_env, self.config.model)
        torch.set_num_threads(self.config.trainer.threads)
        preload(self.config.model)
        self.publisher = Publisher(token=link.spec.token, incarnation=link.spec.incarnation)
        self._trainer: Trainer | None = None
        self._staging: Staging | None = None
        self._saving: Saving | None = None

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise RoleError("an order to train came before the core's process group was formed")
        return self._trainer

    @property
    def staging(self) -> Staging:
        if self._staging is None:
            raise RoleError("an order to close a step came before the core's process group was formed")
        return self._staging

    @property
    def saving(self) -> Saving:
        if self._saving is None:
            raise RoleError("an order to save or load came before the core's process group was formed")
        return self._saving

    def run(self) -> None:
        """Until Stop."""
        self.link.serve(self._take)

    def _take(self, order: object) -> None:
        match order:
            case m.FormMembers():
                self.link.doing = m.FORMING
                self._form(order)
            case m.StartWarm():
                self.link.doing = "warm start"
                self._warm(order)
            case m.Open():
                self.trainer.open(order.step, order.loss_tokens, order.batch)
            case m.RunRound():
                self.link.doing = "round"
                began = time.monotonic()
                self.trainer.round(order.samples)
                finish(self.device)
                self.link.send(m.RoundFinished(order.cmd, time.monotonic() - began))
            case m.Close():
                self.link.doing = "step"
                self._close(order)
            case m.Save():
                self.link.doing = "copy"
                self.saving.save(order)
            case m.Load():
                self.link.doing = "load"
                self._load(order)
            case _:
                raise TypeError(f"a trainer cannot take the order {type(order).__name__}")

    def _form(self, order: m.FormMembers) -> None:
        join_group(order, self.device, self.config.deadline.group_s)
        trainer = Trainer(
            self.config, self.world.vocabulary.size, order.index, order.size, self.device, dtype=self.dtype
        )
        spec = self.link.spec
        self._staging = Staging(trainer.sharded.ranges(), self.dtype, spec.token, spec.incarnation, self.link.send)
        self.link.at_once[m.FetchShare] = self._staging.fetch  # it shall overlap with the rounds that wait in the queue
        self._saving = Saving(trainer.sharded, trainer.summed, self.link.send)
        self._trainer = trainer
        self.link.send(m.Formed(order.cmd))

    def _warm(self, order: m.StartWarm) -> None:
        began = time.monotonic()

        def progress(step: int, steps: int, loss: float) -> None:
            self.link.progress += 1
            self.link.send(m.WarmProgress(step, steps, loss))

        warm, seed = self.config.warm_start, self.config.run.seed

        def demonstrations(n: int) -> list[Demonstration]:
            return self.world.demonstrations(seed, n, warm.give_up, warm.malformed)

        result = warm_start(self.trainer.sharded, self.config, self.world.vocabulary.size, demonstrations, progress)
        self._publish(0)
        self.link.send(m.Warmed(order.cmd, result.cached, result.loss, time.monotonic() - began))

    def _load(self, order: m.Load) -> None:
        began = time.monotonic()
        self.saving.load(Path(order.directory))
        self._publish(order.version)
        self.link.send(m.Loaded(order.cmd, time.monotonic() - began))

    def _close(self, order: m.Close) -> None:
        began = time.monotonic()
        result = self.trainer.close(self.staging.take(order.step, order.shares))
        finish(self.device)
        seconds = time.monotonic() - began
        if result.finite:
            self._publish(order.version)
        self.link.send(
            m.StepFinished(
                order.cmd,
                result.finite,
                result.loss,
                result.grad_norm,
                seconds,
                result.gap,
                result.detail,
            )
        )

    def _publish(self, version: int) -> None:
        self.publisher.publish(version, self.trainer.shards())
        self.link.send(m.Held(version, self.publisher.address))
