"""Ranks change their roles in jobs that go on: orders over the control socket, real processes, pulls, shares and groups."""

import signal
from pathlib import Path

import pytest
from launched import REPOSITORY, Launched, kill
from test_emulated_live import assert_conserved

from libra.control.client import Orders, View
from libra.control.messages import OrderAnswer
from libra.core import commands as c
from libra.core.orders import Allocate, MoveRanks, Order, Undo
from libra.telemetry import replay

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]
CONFIG = REPOSITORY / "configs" / "emulated-8.toml"
JOB = ["--run.steps=100000", "--rollout.groups_per_batch=3", "--rollout.samples_per_group=4", "--emulation.speed=100"]
"""Ranks 1, 2 train; 3 to 6 are engines 0 to 3; 7 and 8 are engine 4, of bucket tp2."""


def emulated(tmp_path: Path, *options: str, deadline_s: float = 60.0) -> Launched:
    return Launched(tmp_path, None, *JOB, *options, config=CONFIG, deadline_s=deadline_s)


def give(run: Launched, order: Order, epoch: int | None = None) -> OrderAnswer:
    with Orders(run.run_dir) as link:
        return link.give(order, epoch)


def stages(run: Launched, move: int) -> list[str]:
    return [row["stage"] for row in run.metrics("move") if row["move"] == move]


def until_over(run: Launched, move: int, stage: str = "ready") -> None:
    run.until(f"the end of move {move}", lambda: stages(run, move)[-1:] in (["ready"], ["failed"]))
    assert stages(run, move)[-1] == stage, run.metrics("move")


def roles(run: Launched) -> dict[int, str]:
    with View(run.run_dir) as view:
        return {row.rank: row.role for row in view.snapshot().ranks}


def commands(run: Launched) -> list[c.Command]:
    """All of the run, from its journal, which has to replay."""
    found: list[c.Command] = []
    report = replay.check(run.run_dir, watch=lambda _, given, __: found.extend(given))
    assert report.ok, report.problem
    return found


def shares(run: Launched) -> list[tuple[int, ...]]:
    """Of every step that was closed, whose sums were added."""
    return [x.shares for x in commands(run) if isinstance(x, c.CloseStep)]


def until_further_batches(run: Launched, n: int) -> None:
    run.until_batch(len(run.batches()) + n)


def end_well(run: Launched) -> None:
    kill(run.process.pid, signal.SIGINT)
    assert run.wait() == 130, run.words()
    run.assert_nobody_left()
    assert run.summary()["lost"] == run.summary()["failed"] == 0
    assert commands(run)


def test_an_engine_becomes_a_replica_and_an_engine_again_while_the_run_goes_on(tmp_path: Path) -> None:
    with emulated(tmp_path) as run:
        run.until_batch(1)
        assert give(run, Allocate(gradient=1)).accepted
        until_over(run, 1)
        assert sorted(roles(run).values()) == ["gradient"] + 5 * ["rollout"] + 2 * ["trainer"]
        until_further_batches(run, 4)
        assert give(run, Undo()).accepted
        until_over(run, 2)
        assert "gradient" not in roles(run).values()
        until_further_batches(run, 2)
        end_well(run)
    assert stages(run, 1) == stages(run, 2) == ["draining", "preparing", "ready"]
    assert any(shares(run)), "the replica's sum was a part of some step"
    assert_conserved(run.run_dir)


def test_two_engines_of_one_rank_become_one_of_two_and_back_with_a_real_group(tmp_path: Path) -> None:
    options = ["--emulation.real_groups=true", "--bucket.0.engines=2"]  # each role imports torch: fewer of them
    with emulated(tmp_path, *options, deadline_s=100.0) as run:
        run.until_batch(1)
        assert give(run, MoveRanks((3, 4), "rollout", "tp2")).accepted
        until_over(run, 1)
        with View(run.run_dir) as view:
            assert [row.ranks for row in view.snapshot().engines if row.up] == [(5, 6), (3, 4)]
        until_further_batches(run, 2)
        assert give(run, MoveRanks((3, 4), "rollout", "tp1")).accepted
        until_over(run, 2)
        until_further_batches(run, 1)
        end_well(run)
    formed = [x.members for x in commands(run) if isinstance(x, c.FormGroup)]
    assert formed.count((3, 4)) == 1
    assert_conserved(run.run_dir)


@pytest.mark.parametrize("stage", ["accumulating", "sharing"])
def test_a_replica_that_dies_in_mid_step_costs_its_unshared_micro_batches_alone(tmp_path: Path, stage: str) -> None:
    fault = ["--emulation.fault.kind=die", "--emulation.fault.rank=8", f"--emulation.fault.stage={stage}"]
    start = ["--allocation.gradient=1", "--bucket.0.engines=3"]  # rank 8 lends
    with emulated(tmp_path, *start, *fault, "--deadline.role_restarts=1") as run:
        run.until("a lost share", lambda: "lost its share" in run.reports())
        until_further_batches(run, 3)
        end_well(run)
    assert "computed by the core" in run.reports()
    assert_conserved(run.run_dir)  # each step summed each of its loss tokens once: its loss is 1


def test_a_refused_order_changes_nothing(tmp_path: Path) -> None:
    with emulated(tmp_path) as run:
        run.until_batch(1)
        before = roles(run)
        orders: list[tuple[Order, str]] = [
            (Allocate(rollout=0), "cannot be reached"),
            (MoveRanks((7,), "gradient"), "together with rank 8"),
            (MoveRanks((1,), "gradient"), "trainer core"),
            (MoveRanks((40,), "gradient"), "expected one of 1 to 8"),
            (Undo(), "no order to take back"),
        ]
        for order, why in orders:
            answer = give(run, order)
            assert not answer.accepted
            assert why in answer.reason
            assert answer.epoch == 0
        old = give(run, Allocate(gradient=1), epoch=7)
        assert not old.accepted
        assert "changed since" in old.reason
        until_further_batches(run, 1)
        assert roles(run) == before
        end_well(run)
    assert not run.metrics("move")


def test_real_ranks_become_replicas_and_go_back(tmp_path: Path, warm_cache: Path) -> None:
    """Whether one is in time to lend something to a step of this size is a matter of speed; that it may is tested elsewhere."""
    options = ["--run.steps=500", "--eval.tasks=0", "--bucket.0.engines=2"]
    with Launched(tmp_path, warm_cache, *options, deadline_s=130.0) as run:
        run.until_batch(1)
        assert give(run, Allocate(gradient=1)).accepted
        until_over(run, 1)
        until_further_batches(run, 4)
        assert give(run, Allocate(gradient=0)).accepted
        until_over(run, 2)
        until_further_batches(run, 2)
        end_well(run)
    gaps = [b["gap"] for b in run.batches() if b["gap"] is not None]
    assert all(gap < 1e-3 for gap in gaps), "trainer, replicas and engines hold the same weights"
