"""Core, publication and engine on one accelerator, against the same on the CPU."""

import pytest
import torch

from libra.config.schema import ModelConfig
from libra.engine.engine import Engine
from libra.rank.device import finish
from libra.train.trainer import Trainer
from libra.weights.publisher import Publisher
from libra.weights.puller import Puller
from libra.wire.messages import Sample, Turn
from tests.train.training_parts import CPU, VOCABULARY, config, loss_tokens, sample, worst_difference

pytestmark = pytest.mark.gpu

CONFIG = config()
TOLERANCE = 1e-4
"""In float32, of values of about 1: devices add in another order."""


def trained(device, steps=3):
    """A core of one rank after some steps: its weights, and what each step said."""
    trainer = Trainer(CONFIG, VOCABULARY, 0, 1, device)
    said = []
    for step in range(steps):
        batch = [sample(10 * step + i, n) for i, n in enumerate((5, 1, 9, 3))]
        trainer.open(step, loss_tokens(batch))
        for part in (batch[:2], batch[2:], []):
            trainer.round(part)
        result = trainer.close()
        finish(device)
        assert result.finite
        said += [result.loss, result.grad_norm]
    return trainer, said


def engine_on(device, model: ModelConfig = CONFIG.model):
    return Engine(
        model,
        VOCABULARY,
        frozenset({0}),
        max_batch=8,
        kv_tokens=2048,
        temperature=CONFIG.rollout.temperature,
        max_context_tokens=128,
        device=device,
    )


def generate(engine, turns=12, tokens=20):
    for traj in range(turns):
        engine.submit(Turn(traj, traj, [1 + traj % (VOCABULARY - 1), 2, 3], tokens, (7, traj, 0, 0)))
    done = []
    while engine.busy:
        done += engine.step()
    return sorted(done, key=lambda d: d.traj)


def test_the_core_takes_the_same_steps_as_on_the_cpu(accelerator, alone):
    alone(CPU)
    here, said_here = trained(CPU)
    weights_here = here.sharded.full_state()
    alone(accelerator)
    there, said_there = trained(accelerator)
    assert said_there == pytest.approx(said_here, rel=1e-3)
    assert worst_difference(weights_here, there.sharded.full_state()) < TOLERANCE


def test_what_is_published_from_the_device_arrives_bit_for_bit(accelerator, alone):
    alone(accelerator)
    trainer, _ = trained(accelerator)
    publisher, puller = Publisher(token="t", incarnation="i"), Puller("t", "i")
    try:
        publisher.publish(1, trainer.shards())
        version, weights = puller.pull(1, [publisher.address], 10.0)
        assert version == 1
        assert worst_difference(weights, trainer.sharded.full_state()) == 0.0
    finally:
        puller.close()
        publisher.close()


def test_the_engine_on_the_device_and_the_trainer_there_agree_on_log_probabilities(accelerator, alone):
    """Tokens sampled by exactly the weights that train on them: the gap that a run reports with each step."""
    alone(accelerator)
    trainer, _ = trained(accelerator)
    engine = engine_on(accelerator)
    engine.install(3, trainer.sharded.full_state())
    done = generate(engine)
    samples = [
        Sample(
            d.traj,
            [1 + d.traj % (VOCABULARY - 1), 2, 3, *d.tokens],
            bytes([0, 0, 0] + [1] * len(d.tokens)),
            [0.0, 0.0, 0.0, *d.logprobs],
            [-1, -1, -1, *d.versions],
            1.0 if d.traj % 2 else -1.0,
        )
        for d in done
    ]
    trainer.open(3, loss_tokens(samples))
    trainer.round(samples)
    result = trainer.close()
    assert result.gap.worst is not None
    assert result.gap.worst < 1e-3


def test_the_engine_samples_what_the_cpu_samples(accelerator, alone):
    """The noise is keyed, so that only a probability at the very edge of a token can make a difference."""
    alone(CPU)
    trainer, _ = trained(CPU)
    weights = trainer.sharded.full_state()
    runs = []
    for device in (CPU, accelerator):
        engine = engine_on(device)
        engine.install(0, weights)
        runs.append(generate(engine))
    same = [(a, b) for a, b in zip(*runs, strict=True) if a.tokens == b.tokens]
    assert len(same) >= len(runs[0]) - 1
    for a, b in same:
        assert torch.tensor(a.logprobs) == pytest.approx(torch.tensor(b.logprobs), abs=TOLERANCE)
