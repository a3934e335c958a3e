"""Moves of ranks between rollout and training: what is legal, how they go, and that nothing is lost on the way."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from virtual_shell import VirtualShell

from libra.config.schema import (
    AllocationConfig,
    BucketConfig,
    Config,
    DeadlineConfig,
    ElasticConfig,
    EvalConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from libra.core import commands as c
from libra.core import events as e
from libra.core.orders import Allocate, CancelMove, Hold, MoveRanks, Order, Undo

CONFIG = Config(
    run=RunConfig(steps=8),
    allocation=AllocationConfig(trainer=2),
    bucket=(BucketConfig(name="one", engines=3), BucketConfig(name="two", tp=2, engines=1)),
    rollout=RolloutConfig(groups_per_batch=4, samples_per_group=4),
    trainer=TrainerConfig(micro_batch_tokens=64),
    eval=EvalConfig(tasks=0),
    deadline=DeadlineConfig(drain_s=3.0, share_s=2.0),
)
"""Ranks 1, 2 train; 3, 4, 5 are engines 0, 1, 2; 6 and 7 are engine 3."""


class Ordered(VirtualShell):
    """A virtual shell with people: orders at given times."""

    def __init__(self, config: Config, orders: list[tuple[float, Order]], **kwargs: float) -> None:
        super().__init__(config, **kwargs)  # type: ignore[arg-type]
        for i, (t, order) in enumerate(orders):
            self.at(t, e.OrderGiven, id=f"o{i}", author="ann", expected_epoch=None, order=order)

    def answers(self) -> list[c.AnswerOrder]:
        return [x for x in self.commands if isinstance(x, c.AnswerOrder)]

    def stages(self, move: int) -> list[str]:
        return [x.stage for x in self.commands if isinstance(x, c.MoveChanged) and x.move == move]


def roles(shell: VirtualShell) -> str:
    """One letter a rank."""
    return "".join(shell.core.fleet.role_of(rank)[0] for rank in sorted(shell.core.fleet.ranks))


@pytest.mark.parametrize("prepare_first", [False, True])
def test_an_engine_becomes_a_replica_that_takes_micro_batches_and_comes_back(prepare_first: bool) -> None:
    config = replace(CONFIG, elastic=ElasticConfig(prepare_first=prepare_first))
    shell = Ordered(config, [(3.0, Allocate(gradient=1)), (20.0, Allocate(gradient=0))]).run()
    assert shell.end is not None
    assert shell.end.ok
    assert [x.accepted for x in shell.answers()] == [True, True]
    order = ["preparing", "draining", "ready"] if prepare_first else ["draining", "preparing", "ready"]
    assert shell.stages(1) == order
    assert shell.stages(2) == order
    assert shell.count["Accumulate"] > 0
    assert any(x.shares for x in shell.commands if isinstance(x, c.CloseStep))
    assert roles(shell) == "ttrrrrr"
    assert len(shell.core.fleet.engines) == 4


def test_two_engines_of_one_rank_become_one_of_two_and_back() -> None:
    there = MoveRanks((3, 4), "rollout", "two")
    shell = Ordered(CONFIG, [(3.0, there), (9.0, MoveRanks((3, 4), "rollout", "one"))]).run()
    assert shell.end is not None
    assert shell.end.ok
    assert shell.stages(1)[-1] == shell.stages(2)[-1] == "ready"
    assert sorted(x.ranks for x in shell.core.fleet.engines.values()) == [(3,), (4,), (5,), (6, 7)]
    formed = [x for x in shell.commands if isinstance(x, c.FormGroup) and x.members == (3, 4)]
    assert len(formed) == 1


def test_replicas_of_two_take_two_engines_of_one_or_one_of_two() -> None:
    config = replace(CONFIG, allocation=AllocationConfig(trainer=2, replica=2))
    shell = Ordered(config, [(3.0, Allocate(gradient=2)), (6.0, Allocate(gradient=4))]).run()
    assert shell.end is not None
    assert shell.end.ok
    assert [x.accepted for x in shell.answers()] == [True, True]
    assert roles(shell).count("g") == 4
    assert all(len(r.ranks) == 2 for r in shell.core.fleet.replicas.values())


def test_undo_takes_back_what_is_over_and_what_is_under_way() -> None:
    shell = Ordered(CONFIG, [(3.0, Allocate(gradient=1)), (8.0, Undo())]).run()
    assert roles(shell) == "ttrrrrr"
    early = Ordered(CONFIG, [(3.0, Allocate(gradient=1)), (3.01, Undo())]).run()
    assert early.stages(1)[-2:] == ["returning", "failed"]
    assert roles(early) == "ttrrrrr"


def test_a_move_can_be_cancelled_and_everything_is_as_before() -> None:
    shell = Ordered(CONFIG, [(3.0, Allocate(gradient=1)), (3.05, CancelMove(1))]).run()
    assert [x.accepted for x in shell.answers()] == [True, True]
    assert roles(shell) == "ttrrrrr"
    assert shell.end is not None
    assert shell.end.ok


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Allocate(gradient=5), "cannot be reached"),
        (Allocate(gradient=9), "0 to 4"),
        (Allocate(rollout=2, gradient=1), "expected 5 in all"),
        (Allocate(), "neither"),
        (MoveRanks((6,), "gradient"), "belongs to engine 3 together with rank 7"),
        (MoveRanks((1,), "gradient"), "trainer core"),
        (MoveRanks((12,), "gradient"), "expected one of 1 to 7"),
        (MoveRanks((3,), "rollout", "two"), "a multiple of 2"),
        (MoveRanks((3,), "rollout", "three"), "expected one of one, two"),
        (MoveRanks((3, 4, 5, 6, 7), "gradient"), "no engine would be left"),
        (MoveRanks((3,), "rollout", "one"), "is what it is to become already"),
        (MoveRanks((), "gradient"), "no ranks"),
        (CancelMove(7), "not under way"),
        (Hold(-1.0), "0 or more"),
        (Undo(), "no order to take back"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason_and_changes_nothing(order: Order, why: str) -> None:
    shell = Ordered(CONFIG, [(3.0, order)]).run()
    (answer,) = shell.answers()
    assert not answer.accepted
    assert why in answer.reason
    assert answer.epoch == 0
    assert not any(isinstance(x, c.MoveChanged) for x in shell.commands)


def test_an_order_of_an_old_epoch_is_refused_and_the_same_order_twice_is_one() -> None:
    shell = Ordered(CONFIG, [])
    shell.at(3.0, e.OrderGiven, id="a", author="ann", expected_epoch=0, order=Allocate(gradient=1))
    shell.at(6.0, e.OrderGiven, id="b", author="bob", expected_epoch=0, order=Allocate(gradient=0))
    shell.at(6.1, e.OrderGiven, id="a", author="ann", expected_epoch=0, order=Allocate(gradient=1))
    shell.run()
    first, old, again = shell.answers()
    assert first.accepted
    assert not old.accepted
    assert "changed since" in old.reason
    assert (again.accepted, again.reason) == (first.accepted, first.reason)
    assert roles(shell).count("g") == 1


@pytest.mark.parametrize("seed", range(6))
def test_faults_of_replicas_cost_their_unshared_work_and_nothing_else(seed: int) -> None:
    config = replace(CONFIG, allocation=AllocationConfig(trainer=2, gradient=2))
    shell = Ordered(config, [], seed=seed, fail_rate=0.02, share_fault_rate=0.2).run()
    assert shell.end is not None
    assert shell.end.ok, shell.end.reason
    assert len([x for x in shell.commands if isinstance(x, c.BatchConsumed)]) == 8
    assert any("lost its share" in x.what for x in shell.commands if isinstance(x, c.Report))


def test_the_core_waits_for_a_silent_replica_no_longer_than_its_deadline() -> None:
    class Silent(Ordered):
        def share(self, command) -> None:  # type: ignore[no-untyped-def]
            if not isinstance(command, c.OfferShare):
                super().share(command)

    config = replace(CONFIG, allocation=AllocationConfig(trainer=2, gradient=1))
    shell = Silent(config, []).run()
    assert shell.end is not None
    assert shell.end.ok
    closes = [x for x in shell.commands if isinstance(x, c.CloseStep)]
    assert closes
    assert all(not x.shares for x in closes)


def test_a_lost_rank_sends_the_move_back_and_the_rest_go_on() -> None:
    shell = Ordered(CONFIG, [(3.0, MoveRanks((3, 4), "rollout", "two"))])
    shell.at(3.05, e.RankLost, rank=3, reason="no heartbeat")
    shell.at(7.0, e.RankJoined, rank=3, host="h", device="cpu")
    shell.run()
    assert shell.stages(1)[-1] == "failed"
    assert shell.end is not None
    assert shell.end.ok
    assert roles(shell) == "ttrrrrr"


def test_the_rule_moves_ranks_where_one_stage_is_slower_and_not_while_held() -> None:
    config = replace(
        CONFIG,
        run=RunConfig(steps=20),
        allocation=AllocationConfig(trainer=2, gradient=2),
        elastic=ElasticConfig(rule="balance", cooldown=2),
        trainer=TrainerConfig(micro_batch_tokens=4096),
    )
    shell = Ordered(config, []).run()
    moves = [x for x in shell.commands if isinstance(x, c.MoveChanged) and x.stage == "ready"]
    assert moves
    assert all(not x.author for x in moves)
    assert "replica" in moves[0].what.split(" -> ")[0], "rollout is the slower stage here"
    held = Ordered(config, [(2.0, Hold(1e6))]).run()
    assert not [x for x in held.commands if isinstance(x, c.MoveChanged)]


ONE_EACH = replace(
    CONFIG,
    run=RunConfig(steps=40),
    allocation=AllocationConfig(trainer=2, gradient=1),
    trainer=TrainerConfig(micro_batch_tokens=4096),
)
"""Batches so small that there is one micro-batch a worker."""


class Prompt(Ordered):
    """The end of a step, installations and shares take no time; the n-th order to the replica, rank 8, takes `order_s(n)`."""

    def __init__(self, order_s: Callable[[int], float]) -> None:
        super().__init__(ONE_EACH, [])
        self.order_s = order_s
        self.fixed_s: float | None = None

    def soon(self) -> float:
        return super().soon() if self.fixed_s is None else self.fixed_s

    def carry_out(self, command: c.Command) -> None:
        if isinstance(command, c.CloseStep | c.InstallWeights | c.OfferShare | c.FetchShare):
            self.fixed_s = 0.001
        elif isinstance(command, c.Accumulate):
            self.fixed_s = self.order_s(self.count["Accumulate"])
        elif isinstance(command, c.Round):
            self.fixed_s = 0.1
        super().carry_out(command)
        self.fixed_s = None

    def lent(self) -> float:
        """Orders to the replica in proportion to the steps."""
        steps = sum(x.trained for x in self.commands if isinstance(x, c.BatchConsumed))
        return self.count["Accumulate"] / steps


def test_a_standing_replica_gets_its_micro_batch_before_the_core_gets_one_ahead() -> None:
    shell = Prompt(lambda _: 0.05).run()
    assert shell.lent() == 1.0
    assert shell.count["Round"] == shell.count["Accumulate"]


def test_a_replica_whose_first_order_was_slow_is_asked_again_soon() -> None:
    assert 0.7 < Prompt(lambda n: 2.0 if n == 1 else 0.05).run().lent() < 1.0


def test_a_slow_replica_is_tried_less_and_less_often() -> None:
    assert 0.0 < Prompt(lambda _: 2.0).run().lent() < 0.25
