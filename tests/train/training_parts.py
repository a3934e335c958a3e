"""A small odd-sized model, trajectories for it, and the plain single-process step that sharded ones must equal."""

import random

import torch

from libra.config.schema import Config, ModelConfig, RolloutConfig, RunConfig, TrainerConfig
from libra.train.loss import grpo
from libra.train.model import build
from libra.wire.messages import Sample

VOCABULARY = 13
CPU = torch.device("cpu")


def config(*, tied: bool = True, architecture: str = "qwen2", **trainer: float | str) -> Config:
    """A model and a trainer for tests of exactness.

    `eps` is large, so that Adam does not blow up the rounding of gradients that are nearly 0.

    Rows of 13, 10, 8 and 4: nothing divides by 3, and the last rank of 3 holds nothing of the key projections.
    """
    return Config(
        run=RunConfig(seed=3),
        model=ModelConfig(
            architecture=architecture,  # type: ignore[arg-type]
            hidden=8,
            layers=2,
            heads=2,
            kv_heads=1,
            ffn=10,
            tied_embeddings=tied,
            initializer_range=0.3,
        ),
        rollout=RolloutConfig(temperature=0.8),
        trainer=TrainerConfig(**{"lr": 0.02, "lr_warmup_steps": 2, "max_grad_norm": 0.3, "eps": 1e-3, **trainer}),  # type: ignore[arg-type]
    )


def sample(traj: int, loss_tokens: int, *, version: int = 0) -> Sample:
    """A trajectory with that many sampled tokens, in two runs where there are enough, among given ones."""
    draw = random.Random(traj)
    head = (loss_tokens + 1) // 2
    sampled = [0] * draw.randint(1, 6) + [1] * head + [0] * draw.randint(1, 3) + [1] * (loss_tokens - head)
    n = len(sampled)
    return Sample(
        traj=traj,
        tokens=[draw.randrange(VOCABULARY) for _ in range(n)],
        sampled=bytes(sampled),
        logprobs=[draw.uniform(-4.0, -1.0) for _ in range(n)],
        versions=[version] * n,
        advantage=draw.uniform(-2.0, 2.0),
    )


def loss_tokens(samples: list[Sample]) -> int:
    return sum(sum(s.sampled) for s in samples)


class Reference:
    """The same training in one process with nothing but transformers and torch: a row at a time, no packing, no sharding."""

    def __init__(self, config: Config, dtype: torch.dtype, vocabulary: int = VOCABULARY) -> None:
        self.config = config
        self.network = build(config.model, vocabulary, config.run.seed).to(dtype)  # type: ignore[arg-type]
        t = config.trainer
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), betas=(t.beta1, t.beta2), eps=t.eps, weight_decay=t.weight_decay
        )

    def logprobs(self, s: Sample) -> torch.Tensor:
        """Of all tokens but the first."""
        ids = torch.tensor([s.tokens])
        logits = self.network(input_ids=ids).logits[0, :-1] / self.config.rollout.temperature
        return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]

    def loss_sum(self, samples: list[Sample]) -> torch.Tensor:
        total = torch.zeros((), dtype=self.network.dtype)
        for s in samples:
            p, keep = self.logprobs(s), torch.tensor(list(s.sampled[1:]), dtype=torch.bool)
            b = torch.tensor(s.logprobs[1:], dtype=p.dtype)
            total = (
                total
                + grpo(p, p.detach(), b, torch.full_like(p, s.advantage), self.config.trainer, mask=keep).loss.sum()
            )
        return total

    def gradient(self, samples: list[Sample], divisor: int) -> dict[str, torch.Tensor]:
        """Of the plain sum over tokens / divisor. (Divided before the backward: transformers' norms round to float32 in it.)"""
        names, parameters = zip(*self.network.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(self.loss_sum(samples) / divisor, parameters), strict=True))

    def step(self, step: int, samples: list[Sample]) -> tuple[float, float]:
        """Loss and gradient norm of one optimiser step."""
        t = self.config.trainer
        self.optimizer.param_groups[0]["lr"] = t.lr * min(1.0, (step + 1) / t.lr_warmup_steps)
        self.optimizer.zero_grad()
        loss = self.loss_sum(samples) / loss_tokens(samples)
        loss.backward()
        parameters = list(self.network.parameters())
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        for p in parameters:
            assert p.grad is not None
            p.grad *= min(1.0, t.max_grad_norm / norm.item())
        self.optimizer.step()
        return loss.item(), norm.item()

    def state(self) -> dict[str, torch.Tensor]:
        return {n: p.detach() for n, p in self.network.named_parameters()}


def worst_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[n] - b[n]).abs().max().item() for n in a)
