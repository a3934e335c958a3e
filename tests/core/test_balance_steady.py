"""The first rule for moving ranks by itself: when it asks, when it is silent, and how it takes back what did not pay."""

from itertools import pairwise

import pytest

from libra.config.schema import ElasticConfig
from libra.core.balance import JUDGED_BATCHES, Balance, Proposal, Ranks

CONFIG = ElasticConfig(rule="balance", margin=0.05, patience=2, cooldown=3)
RANKS = Ranks(core=2, rollout=6, gradient=0, lend=1, recall=0)


class Machine:
    """A job whose stages take exactly what the rule's formula says; `train_s` and `rollout_s` with one rank each."""

    def __init__(self, train_s: float, rollout_s: float, gradient: int = 0, config: ElasticConfig = CONFIG) -> None:
        self.rule = Balance(config)
        self.train_s, self.rollout_s = train_s, rollout_s
        self.core, self.others, self.gradient = 2, 6, gradient
        self.moves: list[tuple[int, str]] = []

    def batch(self, n: int) -> Proposal | None:
        rollout = self.others - self.gradient
        train_s, rollout_s = self.train_s / (self.core + self.gradient), self.rollout_s / rollout
        seconds = max(train_s, rollout_s)
        self.rule.consumed(seconds, train_s, 1.0 - rollout_s / seconds)
        ranks = Ranks(self.core, rollout, self.gradient, int(rollout > 1), int(self.gradient > 0))
        proposal = self.rule.propose(ranks)
        if proposal is not None:
            self.gradient += proposal.ranks if proposal.direction == "lend" else -proposal.ranks
            self.moves.append((n, proposal.direction))
            self.rule.moved(proposal.direction, proposal.ranks, by_rule=True)
        return proposal

    def run(self, batches: int) -> "Machine":
        for n in range(batches):
            self.batch(n)
        return self


def test_nothing_is_asked_before_a_batch_and_within_the_first_ones() -> None:
    rule = Balance(CONFIG)
    assert rule.propose(RANKS) is None
    for _ in range(CONFIG.cooldown - 1):
        rule.consumed(10.0, 10.0, 0.9)
        assert rule.propose(RANKS) is None
    rule.consumed(10.0, 10.0, 0.9)
    proposal = rule.propose(RANKS)
    assert proposal is not None
    assert (proposal.direction, proposal.ranks) == ("lend", 1)
    assert "training takes 10 s" in proposal.reason


@pytest.mark.parametrize(("train_s", "rollout_s", "best"), [(60, 60, 2), (40, 120, 0), (100, 20, 4), (90, 60, 3)])
@pytest.mark.parametrize("start", [0, 3])
def test_a_steady_load_is_led_to_its_best_split_and_left_there(
    train_s: float, rollout_s: float, best: int, start: int
) -> None:
    job = Machine(train_s, rollout_s, start).run(200)
    worth = {g: max(train_s / (2 + g), rollout_s / (6 - g)) for g in range(6)}
    assert min(worth, key=worth.__getitem__) == best
    assert worth[job.gradient] <= worth[best] / (1 - CONFIG.margin)
    assert len(job.moves) == abs(job.gradient - start), "never there and back"
    assert all(n < 100 for n, _ in job.moves)


def test_one_odd_batch_moves_nothing() -> None:
    rule = Balance(CONFIG)
    for n in range(60):
        rule.consumed(10.0, 30.0 if n % 12 == 5 else 8.0, 0.1)
        assert rule.propose(RANKS) is None, n


def test_a_move_that_made_batches_longer_is_taken_back_and_the_next_waits_twice_as_long() -> None:
    rule = Balance(CONFIG)
    lent: list[int] = []
    backs: list[int] = []
    for n in range(80):
        away = bool(len(lent) > len(backs))
        rule.consumed(15.0 if away else 10.0, 10.0, 0.8)  # the tail grows with each engine that leaves
        proposal = rule.propose(Ranks(2, 6 - away, int(away), int(not away), int(away)))
        if proposal is not None:
            (backs if away else lent).append(n)
            assert proposal.direction == ("recall" if away else "lend")
            rule.moved(proposal.direction, proposal.ranks, by_rule=True)
    assert len(backs) >= 2
    assert all(back - there == JUDGED_BATCHES + 1 for there, back in zip(lent, backs, strict=False))
    waits = [there - back for back, there in zip(backs, lent[1:], strict=False)]
    assert all(later > sooner for sooner, later in pairwise(waits))


def test_what_cannot_move_is_not_asked_for() -> None:
    rule = Balance(CONFIG)
    for _ in range(20):
        rule.consumed(10.0, 10.0, 0.9)
        assert rule.propose(Ranks(2, 1, 5, 1, 0)) is None, "no engine would be left"
        assert rule.propose(Ranks(2, 6, 0, 0, 0)) is None


def test_a_move_of_a_person_is_not_judged() -> None:
    rule = Balance(CONFIG)
    for _ in range(5):
        rule.consumed(10.0, 5.0, 0.5)
    rule.moved("lend", 1, by_rule=False)
    for _ in range(20):
        rule.consumed(30.0, 20.0, 0.4)
        assert rule.propose(Ranks(2, 5, 1, 0, 1)) is None
