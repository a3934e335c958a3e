"""How a run ends: by Ctrl-C, by `libra stop`, by the death of any of its processes. Never with anybody left."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launched import ONE_EACH, Launched, kill

from libra.core import events as e
from libra.telemetry import replay
from libra.telemetry.journal import JournalReader

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]
LONG = ["--run.steps=100000", "--eval.tasks=0"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_the_first_interrupt_or_a_lost_terminal_finishes_the_step(
    tmp_path: Path, warm_cache: Path, number: signal.Signals
) -> None:
    with Launched(tmp_path, warm_cache, *LONG, config=ONE_EACH) as run:
        run.until_batch(2)
        kill(run.process.pid, number)
        assert run.wait() == 128 + number
        run.assert_nobody_left()
    summary = run.summary()
    assert summary["ok"]
    assert number.name in summary["reason"]
    assert summary["steps"] == len(run.batches()) >= 2
    assert (run.run_dir / "reward.png").exists()
    assert replay.check(run.run_dir).ok
    assert "Traceback" not in run.output.read_text()


def test_the_second_interrupt_ends_at_once(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, *LONG, config=ONE_EACH) as run:
        run.until_batch(1)
        (engine,) = run.find("libra.rank.role", "rollout")
        kill(engine, signal.SIGSTOP)  # the open step would wait for its turns
        kill(run.process.pid, signal.SIGINT)
        kill(run.process.pid, signal.SIGINT)
        assert run.wait() in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        run.assert_nobody_left()
    assert run.summary()["steps"] == len(run.batches())


def test_stop_by_name(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, *LONG, config=ONE_EACH) as run:
        run.until_batch(1)
        stop = subprocess.run(
            [sys.executable, "-m", "libra.cli", "stop", str(run.run_dir)],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert stop.returncode == 0, stop.stderr
        assert run.wait() == 0
        run.assert_nobody_left()
    assert run.summary()["ok"]


@pytest.mark.parametrize("victim", ["torchrun", "controller", "supervisor", "trainer"])
def test_no_orphan_outlives_a_killed_process(tmp_path: Path, warm_cache: Path, victim: str) -> None:
    with Launched(tmp_path, warm_cache, *LONG, config=ONE_EACH) as run:
        run.until_batch(1)
        ranks = run.find("libra.launch")
        pid = {
            "torchrun": run.process.pid,
            "controller": ranks[0],
            "supervisor": ranks[1],
            "trainer": run.find("libra.rank.role", "trainer")[0],
        }[victim]
        kill(pid, signal.SIGKILL)
        assert run.wait() != 0
        run.assert_nobody_left(within_s=5.0)
    if victim == "trainer":
        assert "core rank 1 ended: its process was killed by signal 9" in run.words()
    assert "Traceback" not in run.output.read_text()


def test_a_killed_engine_is_replaced_and_nothing_is_lost(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, "--run.steps=60", "--eval.tasks=0", "--allocation.trainer=1") as run:
        run.until_batch(1)
        (first, _) = run.find("libra.rank.role", "rollout")
        kill(first, signal.SIGKILL)
        run.until("the engine's second start", lambda: run.find("libra.rank.role", ".1.log"))
        assert run.wait() == 0, run.words()
        run.assert_nobody_left()
    assert run.summary()["steps"] == 60
    assert run.summary()["lost"] == 0
    assert "is down: its process was killed by signal 9" in run.reports()
    assert replay.check(run.run_dir).ok


def test_an_engine_that_stands_still_is_reported_and_the_others_get_every_version(
    tmp_path: Path, warm_cache: Path
) -> None:
    soon = ["--run.steps=100000", "--eval.tasks=0", "--allocation.trainer=1", "--deadline.weights_s=1.0"]
    with Launched(tmp_path, warm_cache, *soon) as run:
        run.until_batch(2)
        (still, _) = run.find("libra.rank.role", "rollout")
        kill(still, signal.SIGSTOP)
        run.until("the report", lambda: "has not answered about version" in run.reports())
        run.until("its replacement", lambda: run.find("libra.rank.role", ".1.log"))
        before = len(run.batches())
        run.until("more batches", lambda: len(run.batches()) > before + 3)
        kill(run.process.pid, signal.SIGINT)
        assert run.wait() == 130
        run.assert_nobody_left()
    assert run.summary()["lost"] == 0
    newest = run.summary()["version"]
    other = max(installed(run).values(), key=len)
    assert len(other) > newest / 2, "it may skip a version while a newer one is there, no more"
    assert max(other) >= newest - 1


def test_a_stopped_supervisor_is_lost_its_engine_ends_by_lease_and_both_come_back(
    tmp_path: Path, warm_cache: Path
) -> None:
    options = ["--run.steps=100000", "--eval.tasks=0", "--allocation.trainer=1"]
    short = ["--deadline.lost_s=6", "--deadline.lease_s=4"]
    with Launched(tmp_path, warm_cache, *options, *short) as run:
        run.until_batch(1)
        supervisor = run.find("libra.launch")[2]
        (engine,) = run.find("libra.rank.role", "rank-2.rollout")
        kill(supervisor, signal.SIGSTOP)  # from now on nobody can end its engine but the engine itself
        run.until("the loss", lambda: "rank 2 is lost: no heartbeat for 6 s" in run.reports())
        assert engine not in run.family(), "it ended before its place was given away"
        before = len(run.batches())
        run.until("batches of the other engine", lambda: len(run.batches()) > before + 2)
        versions = installed(run)[0]
        kill(supervisor, signal.SIGCONT)
        run.until("its new engine", lambda: run.find("libra.rank.role", "rank-2.rollout"))
        assert supervisor in run.family()
        run.until("weights on it", lambda: len(installed(run)[0]) > len(versions))
        kill(run.process.pid, signal.SIGINT)
        assert run.wait() == 130
        run.assert_nobody_left()
    assert run.summary()["lost"] == 0
    assert "Traceback" not in run.output.read_text()
    assert replay.check(run.run_dir).ok
    log = "".join(path.read_text() for path in sorted((run.run_dir / "logs").glob("rank-2.rollout-0*.log")))
    assert "its lease has lapsed" in log


def installed(run: Launched) -> dict[int, set[int]]:
    """The versions that each engine has installed, of the two behind one trainer: ranks 2 and 3."""
    found: dict[int, set[int]] = {0: set(), 1: set()}
    for event, _ in JournalReader(run.run_dir / "journal"):
        if isinstance(event, e.WeightsInstalled):
            found[event.rank - 2].add(event.version)
    return found
