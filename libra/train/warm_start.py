"""The supervised start: some steps of cross-entropy on scripted demonstrations before the first rollout, cached by content.

    all core ranks have the file? --yes--> each takes its pieces out of it
        └──no--> steps of `batch` demonstrations, the learning rate falling linearly to zero; rank 0 keeps the result

Every core rank calls `warm_start` with the same arguments and walks the same shuffled demonstrations; a batch is sorted
by length, dealt out over the ranks, so that all have about the same work, and computed as one round. So the result
depends on the number of ranks only by rounding. Called by `libra.rank.trainer_role`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from libra.config.schema import Config
from libra.errors import NonFiniteError
from libra.train import warm_cache
from libra.train.batch import collate, dummy
from libra.train.loss import cross_entropy
from libra.train.sharded import ShardedPolicy
from libra.train.summed_step import SummedStep

Demonstration = tuple[list[int], list[bool]]
"""Token ids, and for each whether the policy would have sampled it (carries loss)."""
KEY_DEMONSTRATIONS = 64
"""How many demonstrations go into the cache's key."""
PROGRESS_S = 1.0
BETAS = (0.9, 0.999)
EPS = 1e-8


class WarmStartResult(NamedTuple):
    cached: bool
    loss: float
    """Mean cross-entropy of a loss token over the last tenth of the steps, also where cached; nan without steps."""
    seconds: float


def warm_start(
    sharded: ShardedPolicy,
    config: Config,
    vocabulary: int,
    demonstrations: Callable[[int], Sequence[Demonstration]],
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> WarmStartResult:
    """Gives all core ranks the warm-started weights. A collective; raises NonFiniteError where a step is not finite.

    `demonstrations(n)` gives n of them, the same on every rank and at every call. `progress(step, steps, loss)` is called
    about once a second on every rank.
    """
    began = time.monotonic()
    if config.warm_start.steps == 0:
        return WarmStartResult(False, float("nan"), 0.0)
    path = warm_cache.cache_path(config, vocabulary, demonstrations(KEY_DEMONSTRATIONS))
    hit = warm_cache.read(path)
    if _all_agree(hit is not None, sharded):
        assert hit is not None
        state, loss = hit
        sharded.load_full_state(state)
        return WarmStartResult(True, loss, time.monotonic() - began)
    loss = _train(sharded, config, demonstrations(config.warm_start.demonstrations), progress)
    state = sharded.full_state()
    if sharded.index == 0:
        warm_cache.write(path, state, loss)
    return WarmStartResult(False, loss, time.monotonic() - began)


def _all_agree(mine: bool, sharded: ShardedPolicy) -> bool:
    """Whether every core rank says yes. A collective."""
    votes = torch.tensor(int(mine), device=sharded.device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())


def _train(
    sharded: ShardedPolicy,
    config: Config,
    demonstrations: Sequence[Demonstration],
    progress: Callable[[int, int, float], None],
) -> float:
    warm = config.warm_start
    summed = SummedStep(sharded, betas=BETAS, eps=EPS, weight_decay=0.0, max_grad_norm=config.trainer.max_grad_norm)
    losses: list[float] = []
    told = time.monotonic()
    batches = shuffled_batches(len(demonstrations), warm.batch, config.run.seed)
    for step in range(warm.steps):
        batch = [demonstrations[i] for i in next(batches)]
        summed.open(sum(sum(mask) for _, mask in batch), warm.lr * (1 - step / warm.steps))
        mine = deal(batch, sharded.index, sharded.size)
        if mine:
            tokens = collate([ids for ids, _ in mine], [mask for _, mask in mine], sharded.device)
            summed.add(cross_entropy(sharded.policy(*tokens.forward)).loss.sum())
        else:
            summed.add((sharded.policy(*dummy(sharded.device).forward) * 0).sum())
        closed = summed.close()
        if not closed.finite:
            raise NonFiniteError(
                f"warm start, step {step} of {warm.steps}: loss {closed.loss}, gradient norm {closed.grad_norm}; "
                f"expected finite values; lower warm_start.lr ({warm.lr})"
            )
        losses.append(closed.loss)
        if (now := time.monotonic()) - told >= PROGRESS_S or step + 1 == warm.steps:
            told = now
            progress(step + 1, warm.steps, closed.loss)
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)


def shuffled_batches(count: int, size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of indices: a fresh permutation each epoch, batches may straddle two. Depends on the arguments alone."""
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    while True:
        while len(order) < size:
            order += torch.randperm(count, generator=generator).tolist()
        yield order[:size]
        del order[:size]


def deal(batch: Sequence[Demonstration], index: int, size: int) -> Sequence[Demonstration]:
    """Rank `index`'s part of a batch: every `size`-th by length; empty where there is none with a loss token."""
    mine = sorted(batch, key=lambda demo: -len(demo[0]))[index::size]
    return mine if any(any(mask) for _, mask in mine) else []
