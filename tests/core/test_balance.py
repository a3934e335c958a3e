"""The rule that moves ranks by itself: what it asks for, what it takes back, and what it tries where it knows nothing."""

from libra.config.schema import ElasticConfig
from libra.core.balance import JUDGED_BATCHES, Balance, Ranks

HOME = Ranks(core=2, rollout=2, gradient=0, lend=1, recall=0)
LENT = Ranks(core=2, rollout=1, gradient=1, lend=0, recall=1)


class Job:
    """One engine that can lend; `home_s` and `lent_s` are what a batch really takes. The trainer is busy for 0.1 s of it."""

    def __init__(self, home_s: float, lent_s: float, **options: int) -> None:
        self.balance = Balance(ElasticConfig(rule="balance", margin=0.1, **options))  # type: ignore[arg-type]
        self.seconds = {HOME: home_s, LENT: lent_s}
        self.ranks = HOME
        self.moves: list[tuple[int, str]] = []
        self.done = 0

    def run(self, batches: int, bursts: tuple[float, ...] = (1.0,)) -> "Job":
        """`bursts`: factors on a batch's seconds, one after another."""
        for _ in range(batches):
            self.done += 1
            seconds = self.seconds[self.ranks] * bursts[self.done % len(bursts)]
            self.balance.consumed(seconds, busy_s=0.1, idle_share=0.95)
            if (proposal := self.balance.propose(self.ranks)) is not None:
                self.moves.append((self.done, proposal.direction))
                self.balance.moved(proposal.direction, proposal.ranks, by_rule=True)
                self.ranks = LENT if proposal.direction == "lend" else HOME
        return self

    @property
    def ways(self) -> list[str]:
        return [way for _, way in self.moves]


def test_without_exploring_nothing_moves_where_nothing_promises_to_pay() -> None:
    assert Job(2.0, 2.0).run(200).moves == []


def test_a_move_that_is_tried_and_does_not_pay_is_taken_back_and_the_next_one_waits_twice_as_long() -> None:
    moves = Job(2.0, 3.0, explore=10).run(100).moves
    back = JUDGED_BATCHES + 1
    assert moves[:3] == [(10, "lend"), (10 + back, "recall"), (10 + back + 20, "lend")]
    assert Job(2.0, 3.0, explore=10).run(1000).ways.count("lend") < 12, "each try that fails makes the next one rarer"


def test_a_move_that_pays_stays_and_the_way_back_is_tried_in_its_turn() -> None:
    job = Job(2.0, 1.0, explore=10).run(40)
    assert job.ways[:3] == ["lend", "recall", "lend"]
    assert job.moves[1][0] == 20, "it was not taken back when it was judged, after seven batches"
    assert job.ranks is LENT, "the way back did not pay"


def test_batches_that_come_in_bursts_do_not_pass_for_moves_that_failed() -> None:
    """Three batches at once, then a wait: as they come with a lag of two."""
    assert Job(2.0, 2.0, explore=12).run(30, bursts=(0.2, 2.6, 0.2)).moves == [(12, "lend"), (24, "recall")]


def test_a_move_by_a_person_is_not_judged() -> None:
    job = Job(2.0, 3.0, explore=1000).run(20)
    job.balance.moved("lend", 1, by_rule=False)
    job.ranks = LENT
    assert job.run(50).moves == []
