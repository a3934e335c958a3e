"""The rollout role on vLLM: one rank of an engine. The first rank leads; the others do what it tells them, step by step.

    FormMembers ──> group of exactly this engine's ranks ──> vLLM's engine made and warmed up ──> Formed

    turns, cuts ──> leader: collects them ── tick ──> all ranks: vote? submit, cut, step ──> leader: TurnsDone
    Install ──> each rank: puller thread, its own ranges ──> kept until *all* ranks have them (a vote) ──> Installed

Weights are installed by all ranks before the same step. The leader calls for a vote before each step from the time on at which
it has its own; a rank whose pull found a newer version makes the others pull that one. No step waits for a pull. While
nothing runs the leader ticks every `IDLE_S` (`libra.rank.link`), which shows all ranks that the others live.

A rank that is left alone in a collective waits some seconds for its own end: the core ends all of an engine when one rank
ends, and the reason that people read should be that one's.
"""

import json
import tempfile
import time
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import msgspec
import torch

from libra.config.pretrained import config_json
from libra.config.schema import Config
from libra.engine.model import Decoder
from libra.engine.vllm import device as vendor
from libra.engine.vllm.engine import VllmEngine
from libra.engine.vllm.lockstep import Lockstep
from libra.engine.vllm.settings import VllmShape
from libra.env.registry import vocabulary
from libra.errors import PeerError, RoleError
from libra.rank.device import role_device
from libra.rank.group import join_group
from libra.rank.installer import Installer, Pulled
from libra.rank.link import IDLE_S, RoleLink
from libra.weights.puller import Puller
from libra.wire import messages as m

STATS_S = 1.0
ALONE_S = 5.0
"""A rank that lost the others ends by itself after this, if nobody ends it before."""
PENDING_S = 0.01
"""The leader of an idle engine asks so often whether the others have their weights."""
NOTHING, FAILED = -2, -1
"""Votes beside a version: no weights yet; they could not be pulled."""
Parts = list[torch.Tensor]


def preload() -> None:
    """Import what making an engine would import, so that a spare child has done so."""
    vendor.late_imports()


def shape_of(config: Config, bucket_index: int) -> VllmShape:
    """The engines of one bucket, as vLLM is told them."""
    bucket, words = config.bucket[bucket_index], vocabulary(config.live_env, config.model)
    return VllmShape(
        model=config.model,
        vocab_size=words.size,
        stop_ids=frozenset(words.stop_ids),
        tp=bucket.tp,
        max_batch=bucket.max_batch,
        kv_tokens=bucket.kv_tokens,
        temperature=config.rollout.temperature,
        max_context_tokens=config.live_env.trajectory_tokens,
        vllm=config.vllm,
    )


def make_engine(shape: VllmShape, index: int, device: torch.device, name: str) -> VllmEngine:
    """Rank `index` of the engine `name` (one name an engine and machine). Its group stands already."""
    vendor.bind(device, index, name)
    shapes = Decoder(shape.model, shape.vocab_size, 1, torch.device("meta"), torch.float32).shapes()
    with tempfile.TemporaryDirectory(prefix="libra-model-") as directory:
        (Path(directory) / "config.json").write_text(json.dumps(config_json(shape.model, shape.vocab_size)))
        return VllmEngine(shape, shapes, directory, index, device)


class VllmRole:
    def __init__(self, link: RoleLink) -> None:
        self.link = link
        self.config = link.config
        self.device = role_device(link.spec.device)
        torch.set_num_threads(self.config.trainer.threads)
        self._engine: VllmEngine | None = None
        self._lockstep: Lockstep | None = None
        self._installer: Installer[Parts] = Installer(link, self._pull)
        self._pulled: Pulled[Parts] | None = None
        """Weights that wait until all ranks have theirs, or the reason why there are none."""
        self._pull_until = 0.0
        self._turns: list[m.Turn] = []
        self._cuts: list[int] = []
        self._stats_due = 0.0

    @property
    def engine(self) -> VllmEngine:
        if self._engine is None:
            raise RoleError("an order for a vLLM engine came before its process group was formed")
        return self._engine

    def run(self) -> None:
        """Until Stop."""
        try:
            while self._take_orders():
                if self._lockstep is not None:
                    self._tick(self._lockstep)
        except (PeerError, RuntimeError) as e:
            if self._lockstep is None or self._lockstep.size == 1:
                raise
            self.link.doing = "left alone"
            time.sleep(ALONE_S)
            raise RoleError(f"a rank of this engine is gone, or a collective failed: {e}") from e

    # --- orders of this rank

    def _take_orders(self) -> bool:
        """All that are there; the leader of an idle engine waits for one. False: end."""
        lockstep = self._lockstep
        follows = lockstep is not None and not lockstep.leads
        wait = not follows and not (lockstep is not None and self.engine.busy)
        longest_s = PENDING_S if self._pulled is not None else IDLE_S
        while (order := self.link.next_order(wait, longest_s)) is not None:
            if isinstance(order, m.Stop):
                return False
            self._take(order)
            wait = False
        return True

    def _take(self, order: object) -> None:
        match order:
            case m.Turn():
                self._turns.append(order)
            case m.Cut():
                self._cuts.append(order.traj)
            case m.Forget():
                self.engine.forget(order.trajs)
            case m.FormMembers():
                self.link.doing = m.FORMING
                self._form(order)
            case m.Install():
                self._pulled = None
                self._pull_until = time.monotonic() + self.config.deadline.weights_s
                self._installer.begin(order)
            case Pulled():
                self._pulled = order
            case _:
                raise TypeError(f"an engine cannot take the order {type(order).__name__}")

    def _form(self, order: m.FormMembers) -> None:
        timeout_s = self.config.deadline.group_s
        store = join_group(order, self.device, timeout_s)
        name = blake2b(order.prefix.encode(), digest_size=8).hexdigest()
        shape = shape_of(self.config, self.link.spec.bucket)
        self._engine = make_engine(shape, order.index, self.device, name)
        self._lockstep = Lockstep(store, order.index, order.size, timeout_s)
        self.link.send(m.Formed(order.cmd))

    def _pull(self, puller: Puller, order: m.Install) -> tuple[int, Parts]:
        left_s = max(0.0, self._pull_until - time.monotonic())
        return puller.pull_ranges(order.version, order.sources, self.engine.ranges, left_s)

    # --- what all ranks do together

    def _tick(self, lockstep: Lockstep) -> None:
        engine = self.engine
        if lockstep.leads:
            turns, cuts, self._turns, self._cuts = self._turns, self._cuts, [], []
            tick = lockstep.tell(turns, cuts, self._pulled is not None)
        else:
            tick = lockstep.hear()
        if tick.vote:
            self._vote(lockstep)
        for turn in tick.turns:
            engine.submit(turn)
        for traj in tick.cuts:
            engine.cut(traj)
        self.link.doing = "generating" if engine.busy else "idle"
        if engine.busy:
            done = engine.step()
            lockstep.sampled(engine.sampled)
            if done and lockstep.leads:
                self.link.send(m.TurnsDone(done))
        if lockstep.leads and time.monotonic() >= self._stats_due:
            self._stats_due = time.monotonic() + STATS_S
            self.link.send(engine.stats())

    def _vote(self, lockstep: Lockstep) -> None:
        """Install where all ranks hold the same version; give up where one failed; else go on, and vote again."""
        pulled = self._pulled
        mine = NOTHING if pulled is None else FAILED if pulled.weights is None else pulled.version
        votes = lockstep.vote(mine)
        if pulled is None or NOTHING in votes:
            return
        newest = max(votes)
        if FAILED in votes:
            self._pulled = None
            reason = pulled.reason or f"rank {votes.index(FAILED)} of this engine could not pull its part"
            self._installer.end(replace(pulled, weights=None, reason=reason), self.engine.install)
        elif pulled.version < newest:
            self._pulled = None
            self._installer.begin(msgspec.structs.replace(pulled.order, version=newest))
        elif min(votes) == newest:
            self._pulled = None
            self.link.doing = "installing"
            self._installer.end(pulled, self.engine.install)
