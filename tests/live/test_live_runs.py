"""Whole runs under torchrun: real processes, sockets, gloo groups, tools."""

from pathlib import Path

import pytest
from launched import ONE_EACH, Launched

from libra.config.rundir import TREE_FILE, TREE_START_FILE
from libra.telemetry import replay, tree_file

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]


def test_a_run_goes_from_warm_start_to_summary_and_replays(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, "--run.steps=5") as run:
        assert run.wait() == 0, run.words()
        run.assert_nobody_left()
    summary = run.summary()
    assert summary["ok"]
    assert summary["steps"] == 5
    assert summary["trajectories"] == 5 * 16
    assert summary["failed"] == summary["lost"] == 0
    assert 0 <= summary["lag_max"] <= 2
    assert summary["tokens_sampled"] > 0
    assert summary["turns_max"] >= summary["turns_p50"] >= 1
    assert summary["reward_heldout"] is not None
    assert [b["batch"] for b in run.batches()] == list(range(5))
    gaps = [b["gap"] for b in run.batches() if b["gap"] is not None]
    assert gaps, "some tokens were sampled by exactly the version that trained on them"
    assert max(gaps) < 1e-3
    assert (run.run_dir / "reward.png").read_bytes().startswith(b"\x89PNG")
    report = replay.check(run.run_dir)
    assert report.ok, report.problem
    assert min(summary["turns_by_bucket"].values()) > 0, "both shapes of engine are used"
    assert set(summary["turns_by_bucket"]) == {"wide", "narrow"}
    held = {(s["batch"], s["traj"]) for s in run.metrics("straggler")}
    assert {(s["batch"], s["traj"]) for s in summary["stragglers"]} & held
    with Launched(tmp_path, warm_cache, "--run.steps=1", "--scheduler.tree_from=job", name="next") as following:
        assert following.wait() == 0, following.words()
    (tmp_path / "runs" / "job" / TREE_FILE).unlink()
    report = replay.check(following.run_dir)
    assert report.ok, report.problem
    learned = tree_file.read(following.run_dir / TREE_FILE).learned
    start = tree_file.read(following.run_dir / TREE_START_FILE).learned
    assert len(learned.tree.nodes) >= len(start.tree.nodes) > 10


@pytest.mark.parametrize(("mode", "lag"), [("sync", 0), pytest.param("one-step-off", 1, marks=pytest.mark.long)])
def test_the_other_modes_run_and_keep_their_lag(tmp_path: Path, warm_cache: Path, mode: str, lag: int) -> None:
    options = ["--run.steps=4", f"--run.mode={mode}", "--eval.tasks=0"]
    with Launched(tmp_path, warm_cache, *options, config=ONE_EACH) as run:
        assert run.wait() == 0, run.words()
    assert run.summary()["lag_max"] <= lag
    assert run.summary()["steps"] == 4


@pytest.mark.parametrize("kind", ["hang", pytest.param("crash", marks=pytest.mark.long), "flood"])
def test_misbehaving_tools_cost_trajectories_and_not_the_run(tmp_path: Path, warm_cache: Path, kind: str) -> None:
    fault = [f"--env.fault.kind={kind}", "--env.fault.rate=0.06", "--rollout.retries=3"]
    fault += ["--env.tool.deadline_s=0.3"] if kind == "hang" else []
    with Launched(tmp_path, warm_cache, "--run.steps=3", "--eval.tasks=0", *fault, config=ONE_EACH) as run:
        assert run.wait() == 0, run.words()
        run.assert_nobody_left()
    summary = run.summary()
    assert summary["steps"] == 3
    assert summary["lost"] == 0
    if kind == "flood":
        assert summary["failed"] == 0, "a flood is cut, and the observation says so"
    else:
        assert summary["failed"] > 0


def test_a_tool_that_always_fails_earns_nothing(tmp_path: Path, warm_cache: Path) -> None:
    """No reward without a successful call: the control of every learning run."""
    fail = ["--env.fault.kind=fail", "--env.fault.rate=1"]
    with Launched(tmp_path, warm_cache, "--run.steps=3", "--eval.tasks=0", *fail, config=ONE_EACH) as run:
        assert run.wait() == 0, run.words()
    assert {b["reward"] for b in run.batches()} == {0.0}
    assert run.summary()["skipped_steps"] == 3
