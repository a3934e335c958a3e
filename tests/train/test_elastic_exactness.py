"""Twenty steps with replicas that come, go and die in mid-step end where twenty steps without them end.

The batches are recorded: the same micro-batches in both runs. A small scheduler plays the controller: in every step it hands
micro-batches to the core and to whatever replicas there are, in random order; a share that is lost becomes rounds.
"""

import random
from collections import Counter

import pytest
import torch
from role_stage import Member, Pending, Replica, Stage, assemble
from training_parts import config, loss_tokens, sample

from libra.config.schema import Config, ModelConfig
from libra.wire import messages as m

pytestmark = pytest.mark.process
STEPS = 20
CORE = 2
Batch = list[list[m.Sample]]


def recorded(step: int) -> Batch:
    """8 to 12 micro-batches of uneven sizes."""
    draw = random.Random(step)
    return [
        [sample(1000 * step + 10 * i + j, draw.randint(1, 6), version=step) for j in range(draw.randint(1, 3))]
        for i in range(draw.randint(8, 12))
    ]


class Run:
    """One training run on recorded batches. Moves are drawn by `draw`; None: the core alone."""

    def __init__(self, stage: Stage, draw: random.Random | None) -> None:
        self.stage, self.draw = stage, draw
        self.core: list[Member] = stage.start("trainer", CORE)
        stage.form(self.core)
        stage.ask(self.core, lambda cmd, _: m.StartWarm(cmd)).wait(m.Warmed)
        self.replicas: list[Replica] = []
        self.done: Counter[str] = Counter()
        self.names = iter(range(1000))
        self.tokens: list[int] = []
        self.losses: list[float] = []

    def train(self) -> dict[str, torch.Tensor]:
        for step in range(STEPS):
            self.step(step)
        return assemble(self.stage.stop(self.core))

    def step(self, step: int) -> None:
        self.batch, self.n = recorded(step), loss_tokens([s for micro in recorded(step) for s in micro])
        self.at = step
        for replica in self.replicas:
            replica.install(step, self.stage.held(self.core, step))
        self.stage.ask(self.core, lambda cmd, _: m.Open(cmd, step, step, self.n))
        self.queue = list(self.batch)
        self.computed: Batch = []
        self.staged: dict[int, Batch] = {}
        rounds = 0
        while self.queue or self.outstanding():
            if self.draw is not None:
                self.move()
            if self.queue:
                self.core_round()
                rounds += 1
            elif self.draw is not None:
                for replica in [r for r in self.replicas if r.taken and r.id not in self.staged]:
                    self.lend(replica)
        if not rounds:
            self.core_round()
        self.close(step)

    def close(self, step: int) -> None:
        shares = tuple(sorted(self.staged))
        self.computed += [micro for id in shares for micro in self.staged[id]]
        self.tokens.append(loss_tokens([s for micro in self.computed for s in micro]))
        assert sorted(s.traj for micro in self.computed for s in micro) == sorted(
            s.traj for micro in self.batch for s in micro
        ), "every trajectory once"
        self.done["shares"] += len(shares)
        for closed in self.stage.ask(self.core, lambda cmd, _: m.Close(cmd, step, step + 1, shares)).wait():
            assert closed.finite
        self.losses.append(closed.loss)

    def outstanding(self) -> bool:
        """A replica's sum that is neither staged nor given back."""
        return any(r.taken and r.id not in self.staged for r in self.replicas)

    # --- work

    def core_round(self) -> None:
        micro, self.queue = self.queue[:CORE], self.queue[CORE:]
        self.computed += micro
        dealt = [*micro, *[[]] * (CORE - len(micro))]
        self.stage.ask(self.core, lambda cmd, i: m.RunRound(cmd, 0, dealt[i])).wait(m.RoundFinished)

    def give(self, replica: Replica) -> None:
        """A round, begun and not waited for; the one before must be over."""
        if self.finished(replica):
            n = len(replica.members)
            micro, self.queue = self.queue[:n], self.queue[n:]
            if micro:
                replica.accumulate(self.at, self.at, self.n, micro)
                self.done["replica rounds"] += 1

    def finished(self, replica: Replica) -> bool:
        if replica.round is not None:
            replica.round.wait(m.RoundFinished)
            replica.round = None
        return replica.id not in self.staged

    def lend(self, replica: Replica, kill: bool = False) -> None:
        """The share into staging on all core ranks; or, where it dies meanwhile, its micro-batches back into the queue."""
        self.finished(replica)
        offered = replica.offer(self.at).wait(m.ShareOffered)
        if kill:
            self.kill(replica)
        fetched: Pending = replica.fetch(self.core, self.at, offered)
        if kill:
            assert all(isinstance(a, m.ShareLost) for a in fetched.wait())
        else:
            fetched.wait(m.ShareFetched)
            self.staged[replica.id] = replica.taken

    def kill(self, replica: Replica) -> None:
        replica.members[-1].kill()
        for member in replica.members[:-1]:
            member.kill()  # as a controller does with the rest of a broken group
        self.queue += replica.taken
        self.replicas.remove(replica)

    # --- moves

    def move(self) -> None:
        """Something happens between two core rounds, or, among replicas, during one."""
        assert self.draw is not None
        for replica in self.replicas:
            if self.draw.random() < 0.7 and replica.id not in self.staged:
                self.give(replica)
        leaving = [r for r in self.replicas if r.taken and r.id not in self.staged]
        kind = self.draw.choices(("none", "join", "leave", "die", "die lending"), (60, 20, 16, 4, 4))[0]
        if self.at >= STEPS // 2 and not self.done["died in a round"] and leaving:
            kind = "die"  # once at least
        if kind == "join" and len(self.replicas) < 2:
            replica = Replica(self.stage, next(self.names), self.draw.randint(1, 2))
            replica.form()
            replica.install(self.at, self.stage.held(self.core, self.at))
            self.replicas.append(replica)
            self.done["joined in mid-step" if self.computed else "joined at a boundary"] += 1
        elif kind == "leave" and leaving:
            replica = self.draw.choice(leaving)
            self.lend(replica)
            self.stage.stop(replica.members)
            self.replicas.remove(replica)
            self.done["left in mid-step"] += 1
        elif kind == "die" and leaving:
            self.kill(self.draw.choice(leaving))
            self.done["died in a round"] += 1
        elif kind == "die lending" and leaving:
            self.lend(self.draw.choice(leaving), kill=True)
            self.done["died lending"] += 1


def outcome(c: Config, dtype: str, draw: random.Random | None) -> tuple[Run, dict[str, torch.Tensor]]:
    with Stage(c, dtype) as stage:
        run = Run(stage, draw)
        return run, run.train()


def differences(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], dtype: str) -> dict[str, float]:
    """Of each tensor, as a part of what is allowed.

    float64: elementwise 1e-9 relative + 1e-12; float32: the difference's norm within 1e-5 of the tensor's norm.
    """
    assert a.keys() == b.keys()
    if dtype == "float64":
        return {n: ((a[n] - b[n]).abs() / (1e-12 + 1e-9 * b[n].abs())).max().item() for n in a}
    return {n: ((a[n] - b[n]).norm() / (1e-5 * b[n].norm())).item() for n in a}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("dtype", "c"),
    [
        pytest.param("float64", config(), id="float64-odd-sizes-qwen2"),
        pytest.param("float64", config(tied=False, architecture="llama"), id="float64-odd-sizes-llama-untied"),
        pytest.param("float32", Config(), id="float32-tiny-qwen2"),
        pytest.param("float32", Config(model=ModelConfig(architecture="llama")), id="float32-tiny-llama"),
    ],
)
def test_moves_in_mid_step_and_a_death_change_nothing_in_parameters_and_moments(dtype: str, c: Config) -> None:
    """In float32 the key projections' biases of qwen2 are left out, as parameters only: softmax does not feel them, so their
    gradient is 0 but for rounding, and Adam with its usual eps makes whole steps of that. The order of micro-batches alone
    moves them as much. In float64, with eps = 1e-3, they are in.
    """
    control, expected = outcome(c, dtype, None)
    moved, got = outcome(c, dtype, random.Random(4))
    for kind in ("joined in mid-step", "left in mid-step", "died in a round"):
        assert moved.done[kind] >= 1, moved.done
    assert moved.done["shares"] >= STEPS // 2, moved.done
    assert moved.tokens == control.tokens == [loss_tokens([s for x in recorded(i) for s in x]) for i in range(STEPS)]
    found = differences(got, expected, dtype)
    assert {n.split(" of ")[0] for n in found} == {"parameter", "exp_avg", "exp_avg_sq"}
    if dtype == "float32":
        found = {n: d for n, d in found.items() if not (n.startswith("parameter") and n.endswith("k_proj.bias"))}
    worst = max(found, key=lambda n: found[n])
    print(f"{dict(moved.done)}; worst, as a part of the tolerance: {found[worst]:.3g} ({worst})")
    assert found[worst] < 1.0
