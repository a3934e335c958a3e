"""A real run that is cut and goes on: by Ctrl-C at a random step, by the death of everything, by torchrun itself."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launched import ONE_EACH, REPOSITORY, Launched, kill

from libra.checkpoint import directory as disk
from libra.core import commands as c
from libra.telemetry import replay

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
STEPS = 14
OPTIONS = [f"--run.steps={STEPS}", "--eval.tasks=4", "--eval.every=3", "--eval.at_start=false", "--checkpoint.every=2"]


@contextmanager
def resumed(run_dir: Path, *options: str) -> Iterator[Launched]:
    """`libra run --resume`, watched like a run of its own."""
    run = Launched.__new__(Launched)
    run.run_dir, run.deadline_s = run_dir, 150.0
    run.output = run_dir.parent / "resumed.txt"
    command = [sys.executable, "-m", "libra.cli", "run", "--resume", str(run_dir), *options]
    with run.output.open("wb") as out:
        run.process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=REPOSITORY, start_new_session=True
        )
    run.seen = {run.process.pid}
    with run:
        yield run


def refused(run_dir: Path, *options: str) -> str:
    command = [sys.executable, "-m", "libra.cli", "run", "--resume", str(run_dir), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=100, check=False)
    assert done.returncode == 2
    return done.stderr


def assert_one_run(run: Launched, segments: int, steps: int = STEPS) -> list[c.OpenTrajectory]:
    """It reads as one run of all its steps, and each of its segments replays. What it opened."""
    assert [row["batch"] for row in run.batches()] == list(range(steps))
    summary = run.summary()
    assert summary["ok"], summary["reason"]
    assert (summary["steps"], summary["resumed"], summary["lost"]) == (steps, segments - 1, 0)
    opened: list[c.OpenTrajectory] = []
    report = replay.check(
        run.run_dir, watch=lambda _, given, __: opened.extend(x for x in given if isinstance(x, c.OpenTrajectory))
    )
    assert report.ok, report.problem
    assert report.segments == segments
    return opened


def test_a_run_cut_by_ctrl_c_at_a_random_step_goes_on_to_its_end(tmp_path: Path, warm_cache: Path) -> None:
    """Nothing is lost but what was in flight: those prompts, and no others, are opened again."""
    cut_at = random.randrange(1, 10)
    with Launched(tmp_path, warm_cache, *OPTIONS, "--run.steps=1000", config=ONE_EACH, deadline_s=150.0) as run:
        run.until_batch(cut_at)
        assert "still runs" in refused(run.run_dir)
        kill(run.process.pid, signal.SIGINT)
        assert run.wait() == 128 + signal.SIGINT
        run.assert_nobody_left()
    cut = run.summary()
    done = cut["steps"]
    assert done == disk.steps(run.run_dir)[-1] >= cut_at, "the last boundary is saved"
    steps = done + 6
    assert "model.hidden: got 48" in refused(run.run_dir, "--model.hidden=48")
    with resumed(run.run_dir, f"--run.steps={steps}") as then:
        assert then.wait() == 0
        then.assert_nobody_left()
    opened = assert_one_run(then, segments=2, steps=steps)
    assert then.summary()["cut_off"] == cut["unfinished"]
    train = [x for x in opened if x.kind == "train"]
    again = [x for x in train if sum((x.prompt, x.sample) == (y.prompt, y.sample) for y in train) > 1]
    assert {x.prompt // 4 for x in again} <= {done, done + 1, done + 2}, "prompts of the batches that were open"
    assert sorted({x.prompt for x in train}) == list(range(4 * steps)), "no prompt is skipped"
    assert "is finished" in refused(run.run_dir)


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_from_its_newest_checkpoint(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, *OPTIONS, config=ONE_EACH, deadline_s=150.0) as run:
        run.until("two checkpoints", lambda: len(disk.steps(run.run_dir)) > 1)
        for pid in run.family():
            kill(pid, signal.SIGKILL)
        run.process.wait()
    with resumed(run.run_dir) as then:
        assert then.wait() == 0
        then.assert_nobody_left()
    assert_one_run(then, segments=2)
    assert not [p for p in (run.run_dir / disk.DIRECTORY).iterdir() if p.name.startswith(".")]


@pytest.mark.long
def test_torchrun_itself_goes_on_after_the_death_of_the_controller(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, *OPTIONS, "--restarts", "1", config=ONE_EACH, deadline_s=150.0) as run:
        run.until("a checkpoint", lambda: disk.steps(run.run_dir))
        (controller,) = [pid for pid in run.find("libra.launch") if _rank(pid) == "0"]
        kill(controller, signal.SIGKILL)
        assert run.wait() == 0
        run.assert_nobody_left()
    assert_one_run(run, segments=2)


def _rank(pid: int) -> str:
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((w.partition(b"=")[2].decode() for w in words if w.startswith(b"RANK=")), "")


@pytest.mark.long
def test_a_disk_without_room_costs_a_warning(tmp_path: Path, warm_cache: Path) -> None:
    full = f"--checkpoint.min_free_bytes={1 << 60}"
    with Launched(tmp_path, warm_cache, *OPTIONS, "--run.steps=4", full, config=ONE_EACH, deadline_s=150.0) as run:
        assert run.wait() == 0
    assert "was not saved, the run goes on" in run.reports()
    assert "MB left over (checkpoint.min_free_bytes)" in run.reports()
    assert run.summary()["checkpoints_failed"] > 0
    assert "no checkpoint to go on from" in refused(run.run_dir, "--run.steps=8")
    assert list((run.run_dir / disk.DIRECTORY).iterdir()) == []
