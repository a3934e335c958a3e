"""The rollout role: an engine, fed by the controller, with weights that it pulls itself.

    orders ──> main thread: submit / cut / forget ──> engine.step() ──> TurnsDone
    Install ──> puller thread (`libra.rank.installer`) ──> main thread: swap between two decode steps ──> Installed

The swap never waits for a turn to end: running turns go on with the new weights, and every token is stamped with the version
that sampled it.
"""

import time

import torch

from libra.engine.engine import Engine
from libra.env.registry import vocabulary
from libra.rank.device import role_device
from libra.rank.installer import Installer, Pulled
from libra.rank.link import RoleLink
from libra.weights.puller import Puller
from libra.wire import messages as m

STATS_S = 1.0


class EngineRole:
    def __init__(self, link: RoleLink) -> None:
        config, spec = link.config, link.spec
        bucket = config.bucket[spec.bucket]
        words = vocabulary(config.live_env, config.model)
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
            device=role_device(spec.device),
        )
        self._installer = Installer(link, self._pull)
        self._stats_due = 0.0

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
                self._installer.begin(order)
            case Pulled():
                self._installer.end(order, self.engine.install)
            case _:
                raise TypeError(f"an engine cannot take the order {type(order).__name__}")

    def _pull(self, puller: Puller, order: m.Install) -> tuple[int, dict[str, torch.Tensor]]:
        return puller.pull(order.version, order.sources, self.deadline_s)
