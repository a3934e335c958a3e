"""Replicas of 1 to 3 ranks lend to cores of 1 to 3 ranks: the step equals the one of a single process."""

from itertools import product

import pytest
import torch
from role_stage import Replica, Stage, assemble
from training_parts import Reference, config, loss_tokens, sample, worst_difference

from libra.env.registry import vocabulary
from libra.wire import messages as m

pytestmark = pytest.mark.process
SIZES = list(product((1, 2, 3), (1, 2, 3)))


@pytest.mark.parametrize(("replica_size", "core_size"), SIZES)
def test_a_share_is_cut_anew_for_a_core_of_any_size(replica_size: int, core_size: int) -> None:
    tied = (replica_size + core_size) % 2 == 0
    c = config(tied=tied, architecture="qwen2" if tied else "llama")
    with Stage(c) as stage:
        core = stage.start("trainer", core_size)
        replica = Replica(stage, 7, replica_size)
        stage.form(core)
        stage.ask(core, lambda cmd, _: m.StartWarm(cmd)).wait(m.Warmed)
        replica.form()
        reference = Reference(c, torch.float64, vocabulary(c.live_env).size)
        for step in range(2):
            replica.install(step, stage.held(core, step))
            micro = [[sample(100 * step + 10 * i + j, 1 + (i + j) % 4) for j in range(i + 1)] for i in range(5)]
            n = loss_tokens([s for samples in micro for s in samples])
            stage.ask(core, lambda cmd, _, at=step, n=n: m.Open(cmd, at, at, n))
            lent, kept = micro[:3], micro[3:]
            for first in range(0, len(lent), replica_size):
                replica.accumulate(step, step, n, lent[first : first + replica_size]).wait(m.RoundFinished)
            for mine in kept:
                dealt = [mine, *[[]] * (core_size - 1)]
                stage.ask(core, lambda cmd, i, d=dealt: m.RunRound(cmd, 0, d[i])).wait(m.RoundFinished)
            offered = replica.offer(step).wait(m.ShareOffered)
            replica.fetch(core, step, offered).wait(m.ShareFetched)
            closed = stage.ask(core, lambda cmd, _, at=step: m.Close(cmd, at, at + 1, (7,))).wait(m.StepFinished)
            loss, norm = reference.step(step, [s for samples in micro for s in samples])
            for done in closed:
                assert done.finite
                assert done.loss == pytest.approx(loss, rel=1e-9)
                assert done.grad_norm == pytest.approx(norm, rel=1e-9)
        stage.stop(replica.members)
        got = assemble(stage.stop(core))
        expected = {f"parameter of {n}": p.reshape(-1) for n, p in reference.state().items()}
        assert worst_difference({n: got[n] for n in expected}, expected) < 1e-9
