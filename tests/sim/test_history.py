"""What pictures are drawn from: roles by rank, turns by engine, and how much was still needed."""

import pytest
from simulated_parts import small

from libra.core import commands as c
from libra.core import events as e
from libra.sim.history import History, Interval
from libra.sim.plan import plan
from libra.sim.plots import COLUMNS, residuals, share
from libra.sim.shell import Simulation


def start(seq: int, rank: int, role: c.Role, bucket: int = -1, engine: int = -1) -> c.StartRole:
    return c.StartRole(seq, rank, role, 0, engine, bucket)


def test_a_rank_is_starting_then_what_it_became_until_it_ends() -> None:
    history = History(["wide"])
    history.watch(e.RankJoined(1.0, 1, "h", "cpu"), [start(1, 1, "rollout", 0, 0)])
    history.watch(e.RoleReady(3.0, 1, 1), [])
    history.watch(e.RoleExited(7.0, 1, 1, -9, "killed"), [start(2, 1, "rollout", 0, 0)])
    history.watch(e.RoleReady(8.0, 2, 1), [])
    history.watch(e.RankLost(9.0, 1, "silent"), [])
    history.watch(e.TimerFired(10.0, 3), [])
    assert history.roles() == [
        Interval(1, "starting", 1.0, 3.0),
        Interval(1, "wide", 3.0, 7.0),
        Interval(1, "starting", 7.0, 8.0),
        Interval(1, "wide", 8.0, 9.0),
        Interval(1, "lost", 9.0, 10.0),
    ]


def test_a_rank_that_moves_between_training_and_rollout_shows_both() -> None:
    history = History(["wide", "narrow"])
    history.watch(e.RankJoined(0.0, 4, "h", "cpu"), [start(1, 4, "rollout", 1, 2)])
    history.watch(e.RoleReady(1.0, 1, 4), [])
    history.watch(e.RoleExited(5.0, 4, 1, 0, "moved"), [start(2, 4, "trainer")])
    history.watch(e.RoleReady(6.0, 2, 4), [])
    history.watch(e.TimerFired(8.0, 3), [])
    assert [(x.what, x.start, x.stop) for x in history.roles()] == [
        ("starting", 0.0, 1.0), ("narrow", 1.0, 5.0), ("starting", 5.0, 6.0), ("trainer", 6.0, 8.0),
    ]  # fmt: skip


def test_a_simulated_run_leaves_turns_rounds_and_ends() -> None:
    history = History(["tp1", "tp2", "tp4", "tp8"])
    report = Simulation(plan(small(run__steps=2, simulation__train=True, allocation__trainer=8)), history.watch).run()
    assert len(history.turns) == report.turns
    assert len(history.ends) == len(history.sampled) == report.trajectories
    assert sum(totals[-1] for totals in history.sampled) == report.tokens_sampled
    busy = {r: sum(x.stop - x.start for x in history.rounds if x.who == r) for r in range(1, 9)}
    assert all(seconds >= report.trainer_busy_s * 0.99 for seconds in busy.values())
    roles = {x.who: x.what for x in history.roles()}
    assert [roles[r] for r in range(1, 9)] == ["trainer"] * 8
    assert {roles[r] for r in range(9, 24)} == {"tp1", "tp2", "tp4", "tp8"}


def test_shares_of_time_slots_add_up_to_the_intervals() -> None:
    intervals = [Interval(0, "turn", 0.0, 10.0), Interval(0, "turn", 2.5, 3.5), Interval(1, "turn", 9.99, 10.0)]
    first, second = share(intervals, 10.0, 2)
    slot = 10.0 / COLUMNS
    assert sum(first) * slot == pytest.approx(11.0)
    assert sum(second) * slot == pytest.approx(0.01)
    assert max(first) == pytest.approx(2.0)


def test_residuals_are_over_those_who_got_so_far() -> None:
    totals = [[10, 30, 100]] * 30 + [[50]] * 10  # two returns and the end; no return at all
    returns, rows = residuals(totals)
    assert returns == [0, 1, 2]
    assert [row[2] for row in rows] == [100, 90, 70]
    assert rows[0][0] == 50
    assert residuals([]) == ([], [])
