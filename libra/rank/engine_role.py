"""The rollout role: an engine, fed by the controller, with weights that it pulls itself.

    orders ──> main thread: submit / cut / forget ──> engine.step() ──> TurnsDone
    Install ──> puller thread: pull over its own links ──> main thread: swap between two decode steps ──> Installed

The swap never waits for a turn to end: running turns go on with the new weights, and every token is stamped with the version
that sampled it.
"""

import queue
import threading
import time
from dataclasses import dataclass

import torch

from libra.engine.engine import Engine
from libra.env.registry import vocabulary
from libra.errors import WeightsError
from libra.rank.link import RoleLink
from libra.weights.puller import Puller
from libra.wire import messages as m

STATS_S = 1.0


@dataclass(frozen=True)
class Pulled:
    """A note from the puller thread: a version is here, or the reason why not."""

    order: m.Install
    version: int
    weights: dict[str, torch.Tensor]
    began: float
    reason: str = ""


class EngineRole:
    def __init__(self, link: RoleLink) -> None:
        config, spec = link.config, link.spec
        bucket = config.bucket[spec.bucket]
        words = vocabulary(config.live_env)
        torch.set_num_threads(config.trainer.threads)
        self.link = link
        self.deadline_s = config.deadline.weights_s
        self.engine = Engine(
            model=config.model,
            vocab_size=words.size,
            stop_ids=frozenset(words.stop_ids),
            max_batch=bucket.max_batch,
            kv_tokens=bucket.kv_tokens,
            temperature=config.rollout.temperature,
            max_context_tokens=config.live_env.trajectory_tokens,
            device=torch.device(spec.device),
        )
        self._installs: queue.Queue[m.Install] = queue.Queue(maxsize=1)
        self._puller = Puller(spec.token, spec.incarnation)
        self._stats_due = 0.0
        threading.Thread(target=self._pull, daemon=True).start()

    def run(self) -> None:
        """Until Stop."""
        while True:
            while (order := self.link.next_order(wait=not self.engine.busy)) is not None:
                if isinstance(order, m.Stop):
                    return
                self._take(order)
            self.link.doing = "generating" if self.engine.busy else "idle"
            if self.engine.busy:
                done = self.engine.step()
                if done:
                    self.link.send(m.TurnsDone(done))
            if time.monotonic() >= self._stats_due:
                self._stats_due = time.monotonic() + STATS_S
                self.link.send(self.engine.stats())

    def _take(self, order: object) -> None:
        match order:
            case m.Turn():
                self.engine.submit(order)
            case m.Cut():
                self.engine.cut(order.traj)
            case m.Forget():
                self.engine.forget(order.trajs)
            case m.Install():
                self._installs.put_nowait(order)
            case Pulled():
                self._install(order)
            case _:
                raise TypeError(f"an engine cannot take the order {type(order).__name__}")

    def _install(self, pulled: Pulled) -> None:
        if pulled.reason:
            self.link.send(m.InstallFailed(pulled.order.cmd, pulled.order.version, pulled.reason))
            return
        self.engine.install(pulled.version, pulled.weights)
        self.link.send(m.Installed(pulled.order.cmd, pulled.version, time.monotonic() - pulled.began))

    def _pull(self) -> None:
        """The puller's thread: one installation at a time, as the controller orders them."""
        while True:
            order = self._installs.get()
            began = time.monotonic()
            try:
                version, weights = self._puller.pull(order.version, order.sources, self.deadline_s)
                note = Pulled(order, version, weights, began)
            except WeightsError as e:
                note = Pulled(order, order.version, {}, began, str(e))
            self.link.orders.put(note)
