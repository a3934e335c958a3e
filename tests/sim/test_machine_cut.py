"""An engine that gives turns back: at a token boundary, with all that they sampled."""

import random

from simulated_parts import BATCH

from libra.core.cost import EngineCost
from libra.sim.machine import Machine, Row


def drive(machine: Machine, until: float) -> list[Row]:
    """Let it work until nothing is due before `until`."""
    over: list[Row] = []
    while machine.until <= until:
        now = machine.until
        over += machine.settle(now)
        machine.proceed(now)
    return over


def make(room: int = 40_000) -> Machine:
    assert BATCH.cost is not None
    machine = Machine(0, EngineCost(BATCH.cost.hardware, BATCH.cost.model, 1), room)
    machine.version = 0
    return machine


def test_random_cuts_lose_no_token_and_leave_no_room_taken() -> None:
    draw = random.Random(5)
    machine, now = make(room=9_000), 0.0
    left = {traj: draw.randint(1, 900) for traj in range(40)}
    context = {traj: draw.randint(1, 2_000) for traj in left}
    want = {traj: context[traj] + left[traj] for traj in left}
    running: dict[int, int] = {}
    cmd = 0
    while any(left.values()):
        for traj in left:
            if left[traj] and traj not in running and draw.random() < 0.2:
                cmd += 1
                running[traj] = cmd
                machine.submit(Row(cmd, traj, context[traj], left[traj], now), now)
        if running and draw.random() < 0.5:
            machine.cut(running[draw.choice(list(running))], now)
        now += draw.random()
        for row in drive(machine, now):
            assert running.pop(row.traj) == row.cmd
            context[row.traj] += row.sampled
            left[row.traj] -= row.sampled
            assert left[row.traj] == row.left
    assert context == want
    assert machine.kv == 0
    assert not machine.rows


def test_a_cut_ends_with_the_step_under_way() -> None:
    machine = make()
    machine.submit(Row(1, 1, 100, 10_000, 0.0), 0.0)
    assert drive(machine, 1.0) == []
    machine.cut(1, 1.0)
    step_s = machine.cost.step_s(1, 10_000)
    (row,) = drive(machine, 1.0 + step_s)
    assert 0 < row.sampled < 10_000
    assert row.sampled + row.left == 10_000


def test_a_turn_that_waits_is_given_back_as_it_came() -> None:
    machine = make(room=1_000)
    machine.submit(Row(1, 1, 900, 99, 0.0), 0.0)
    drive(machine, 0.2)
    machine.submit(Row(2, 2, 900, 50, 0.2), 0.2)
    drive(machine, 0.3)
    machine.cut(2, 0.3)
    (row,) = drive(machine, 0.4)
    assert (row.cmd, row.sampled, row.left) == (2, 0, 50)
