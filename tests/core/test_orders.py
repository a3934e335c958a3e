"""What people order beside moves of stages: arrangements, spare ranks, pauses, trajectories; and drafts, which do nothing."""

import pytest
from msgspec.structs import replace
from test_moves import CONFIG, Ordered, roles

from libra.config.schema import ElasticConfig, RunConfig
from libra.core import commands as c
from libra.core import events as e
from libra.core.allocation import Refused
from libra.core.orders import (
    Allocate,
    Arrange,
    CancelMove,
    CancelTrajectory,
    Hold,
    MoveRanks,
    Order,
    Pause,
    Raise,
    Resume,
    Undo,
)


def test_drained_ranks_are_spare_until_somebody_orders_them_elsewhere() -> None:
    orders = [(3.0, MoveRanks((3,), "spare")), (9.0, MoveRanks((4,), "spare")), (16.0, MoveRanks((3,), "gradient"))]
    shell = Ordered(replace(CONFIG, run=RunConfig(steps=12)), orders).run()  # type: ignore[arg-type]
    assert [x.accepted for x in shell.answers()] == [True, True, True]
    assert roles(shell) == "ttgsrrr"
    assert shell.end is not None
    assert shell.end.ok


def test_a_spare_rank_that_is_lost_and_comes_back_is_spare() -> None:
    shell = Ordered(CONFIG, [(3.0, MoveRanks((3,), "spare"))])
    shell.at(9.0, e.RankLost, rank=3, reason="no heartbeat")
    shell.at(11.0, e.RankJoined, rank=3, host="h", device="cpu")
    shell.run()
    assert shell.end is not None
    assert shell.end.ok
    assert roles(shell) == "ttsrrrr"


def test_undo_brings_spare_ranks_back_to_what_they_were() -> None:
    shell = Ordered(CONFIG, [(3.0, MoveRanks((3, 4), "spare")), (10.0, Undo())]).run()
    assert [x.accepted for x in shell.answers()] == [True, True]
    assert roles(shell) == "ttrrrrr"
    assert sorted(engine.ranks for engine in shell.core.fleet.engines.values()) == [(3,), (4,), (5,), (6, 7)]


def test_undo_takes_ranks_out_of_work_again() -> None:
    orders = [(3.0, MoveRanks((3,), "spare")), (9.0, MoveRanks((3,), "gradient")), (16.0, Undo())]
    shell = Ordered(replace(CONFIG, run=RunConfig(steps=12)), orders).run()  # type: ignore[arg-type]
    assert [x.accepted for x in shell.answers()] == [True, True, True]
    assert roles(shell) == "ttsrrrr"


def test_an_arrangement_is_carried_out_as_a_whole_or_not_at_all() -> None:
    good = Arrange((MoveRanks((3,), "gradient"), MoveRanks((4,), "spare")))
    too_much = Arrange((MoveRanks((3, 4), "rollout", "two"), MoveRanks((5,), "spare"), MoveRanks((6, 7), "spare")))
    shell = Ordered(CONFIG, [(3.0, too_much), (4.0, good)]).run()
    refused, accepted = shell.answers()
    assert not refused.accepted
    assert "no engine would be left" in refused.reason
    assert accepted.accepted
    assert roles(shell) == "ttgsrrr"


def test_nothing_moves_by_itself_while_paused() -> None:
    elastic = ElasticConfig(rule="balance", explore=2, patience=1, cooldown=1, margin=0.01)
    config = replace(CONFIG, run=RunConfig(steps=30), elastic=elastic)
    moved = Ordered(config, []).run()
    paused = Ordered(config, [(0.5, Pause()), (3.0, Pause())]).run()
    resumed = Ordered(config, [(3.0, Pause()), (12.0, Resume())]).run()
    assert moved.count["MoveChanged"] > 0
    assert paused.count["MoveChanged"] == 0
    assert resumed.count["MoveChanged"] > 0


class Crowded(Ordered):
    """One engine with room for two turns: everybody else waits. After `after` generated turns somebody gives `order` about
    the trajectory that came last among those that wait."""

    def __init__(self, order: type[Raise] | type[CancelTrajectory] | None) -> None:
        bucket = replace(CONFIG.bucket[0], engines=1, max_batch=2)
        super().__init__(replace(CONFIG, bucket=(bucket,), run=RunConfig(steps=3)), [])
        self.order = order
        self.chosen = -1
        self.ordered_at = 0

    def feed(self, event: e.AnyEvent) -> None:
        super().feed(event)
        if self.chosen < 0 and self.count["Generate"] == 12:
            waiting = [t for t in self.episodes if (x := self.core.rollout.trajectory(t)) and x.stage == "waiting"]
            self.chosen = max(waiting)
            self.ordered_at = len(self.commands)
            if self.order is not None:
                self.at(0.0, e.OrderGiven, id="x", author="ann", expected_epoch=None, order=self.order(self.chosen))

    def turns_before(self) -> int:
        """Turns of others that were placed between the order and the first turn of the chosen one."""
        placed = [x.traj for x in self.commands[self.ordered_at :] if isinstance(x, c.Generate)]
        return placed.index(self.chosen)


def test_a_raised_trajectory_is_placed_before_all_others() -> None:
    usual, raised = Crowded(None).run(), Crowded(Raise).run()
    assert usual.chosen == raised.chosen
    assert raised.turns_before() <= 1
    assert usual.turns_before() > 5


def test_a_whole_group_can_be_raised_and_let_go() -> None:
    shell = Crowded(lambda traj: Raise(traj, whole_group=True))  # type: ignore[arg-type]
    shell.run()
    shell = Ordered(CONFIG, [])
    shell.at(2.0, e.OrderGiven, id="a", author="ann", expected_epoch=None, order=Raise(5, whole_group=True))
    shell.at(2.5, e.OrderGiven, id="b", author="ann", expected_epoch=None, order=Raise(5, True, raised=False))
    shell.run()
    assert [x.reason for x in shell.answers()] == ["group 1 goes before all others", "group 1 waits its turn again"]


def test_a_cancelled_trajectory_is_tried_again_like_any_that_failed() -> None:
    shell = Crowded(CancelTrajectory).run()
    assert shell.answers()[0].accepted
    assert "tried again" in shell.answers()[0].reason
    again = [x for x in shell.commands if isinstance(x, c.OpenTrajectory) and x.attempt == 1]
    assert len(again) == 1
    assert shell.core.rollout.failed == 1
    assert shell.end is not None
    assert shell.end.ok


@pytest.mark.parametrize(
    "order",
    [
        Allocate(gradient=1),
        Arrange((MoveRanks((3,), "gradient"), MoveRanks((4,), "spare"))),
        MoveRanks((3, 4), "rollout", "two"),
        MoveRanks((3, 5), "rollout", "two"),
        MoveRanks((1,), "spare"),
        MoveRanks((6,), "gradient"),
        CancelMove(9),
        Undo(),
        Hold(-1.0),
        Raise(10**6),
        CancelTrajectory(10**6),
    ],
    ids=str,
)
def test_a_draft_says_what_the_order_would_get_and_does_nothing(order: Order) -> None:
    shell = Ordered(CONFIG, [(5.0, order)])
    drafts: list[str] = []

    def look(event: e.AnyEvent) -> None:
        if isinstance(event, e.OrderGiven):
            before = repr(shell.core.fleet.units()), shell.core.fleet.epoch, len(shell.commands)
            try:
                shell.core.elastic.draft(order, shell.core.ready)
                drafts.append("")
            except Refused as x:
                drafts.append(str(x))
            assert before == (repr(shell.core.fleet.units()), shell.core.fleet.epoch, len(shell.commands))

    feed = shell.feed
    shell.feed = lambda event: (look(event), feed(event))[1]  # type: ignore[method-assign]
    shell.run()
    answer = shell.answers()[0]
    assert answer.accepted == (drafts == [""])
    assert answer.accepted or answer.reason == drafts[0]


def test_a_draft_names_its_effects() -> None:
    shell = Ordered(CONFIG, []).run()
    effects = shell.core.elastic.draft(Arrange((MoveRanks((3,), "gradient"), MoveRanks((6, 7), "spare"))), True)
    assert effects == ["engine 0 -> replica of rank 3", "engine 3 -> spare rank 6, 7"]


def test_parts_of_one_engine_may_go_different_ways_in_one_arrangement() -> None:
    shell = Ordered(
        CONFIG, [(3.0, Arrange((MoveRanks((6,), "gradient"), MoveRanks((7,), "spare")))), (12.0, Undo())]
    ).run()
    assert [x.accepted for x in shell.answers()] == [True, True]
    assert shell.stages(1)[-1] == "ready"
    assert roles(shell) == "ttrrrrr"
    assert (6, 7) in [engine.ranks for engine in shell.core.fleet.engines.values()]


def test_a_rank_that_was_put_aside_saves_a_run_that_loses_its_last_engine() -> None:
    shell = Ordered(CONFIG, [(3.0, MoveRanks((3,), "spare"))])
    for rank in (4, 5, 6, 7):
        shell.at(9.0, e.RankLost, rank=rank, reason="no heartbeat")
    shell.run()
    assert shell.end is not None
    assert shell.end.ok, shell.end.reason
    assert roles(shell) == "ttrllll"


def test_an_undo_takes_back_all_of_a_large_order() -> None:
    config = replace(CONFIG, bucket=(replace(CONFIG.bucket[0], engines=100),), run=RunConfig(steps=20))
    shell = Ordered(config, [(3.0, Allocate(gradient=80)), (8.0, Undo())]).run()
    assert [x.accepted for x in shell.answers()] == [True, True]
    assert shell.core.allocation.counts() == (100, 0)


def test_nothing_is_drafted_as_valid_before_the_run_is_under_way() -> None:
    with pytest.raises(Refused, match="not under way yet"):
        Ordered(CONFIG, []).core.elastic.draft(Pause(), Ordered(CONFIG, []).core.ready)
