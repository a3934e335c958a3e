"""A live run is looked at and ordered about from other processes while it goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launched import ONE_EACH, REPOSITORY, Launched

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]


def libra(run: Launched, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "libra.cli", verb, str(run.run_dir), *options]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def test_a_live_run_answers_status_watch_and_orders(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, "--run.steps=500", "--eval.tasks=0", config=ONE_EACH, deadline_s=140) as run:
        pointer = run.run_dir / "control.json"
        run.until("the pointer to the sockets", pointer.exists)
        sockets = json.loads(pointer.read_text())
        with (tmp_path / "watched.jsonl").open("wb") as out:
            command = [sys.executable, "-m", "libra.cli", "watch", str(run.run_dir), "--json", "--every", "0.25s"]
            watch = subprocess.Popen(command, cwd=REPOSITORY, stdout=out)
        run.until_batch(1)
        done = libra(run, "status", "--json")
        assert done.returncode == 0, done.stderr
        state = json.loads(done.stdout)
        assert state["run"]["name"] == "job"
        assert [r["role"] for r in state["ranks"]] == ["trainer", "rollout"]
        assert all(r["status"] == "serving" and r["seen_s"] < 10 and r["host"] for r in state["ranks"])
        assert state["run"]["step"] >= 1
        assert state["engines"][0]["up"]
        refused = libra(run, "allocate", "--rollout", "0", "--epoch", "1000000")
        assert refused.returncode == 1
        assert "job refuses" in refused.stderr
        assert libra(run, "stop").returncode == 0
        assert run.wait() == 0, run.words()
        assert watch.wait(timeout=30) == 0
        run.assert_nobody_left()
    lines = [json.loads(line) for line in (tmp_path / "watched.jsonl").read_text().splitlines()]
    assert [x["data"]["batch"] for x in lines if x.get("topic") == "batch"] == list(range(len(run.batches())))
    snapshots = [x for x in lines if x["kind"] == "snapshot"]
    assert [s["n"] for s in snapshots] == sorted(s["n"] for s in snapshots)
    assert any(s["tail"] for s in snapshots)
    assert any(x.get("data", {}).get("ended") for x in lines)
    assert not pointer.exists()
    assert not Path(sockets["view"]).exists()
    ended = libra(run, "status")
    assert ended.returncode == 0
    assert f"finished  {len(run.batches())} steps" in ended.stdout
    assert libra(run, "watch").returncode == 3


def test_a_killed_controller_leaves_a_pointer_that_nobody_believes(tmp_path: Path, warm_cache: Path) -> None:
    with Launched(tmp_path, warm_cache, "--run.steps=500", "--eval.tasks=0", config=ONE_EACH) as run:
        run.until("the pointer to the sockets", (run.run_dir / "control.json").exists)
        controller = json.loads((run.run_dir / "control.json").read_text())["pid"]
        subprocess.run(["kill", "-9", str(controller)], check=True)
        assert run.wait() != 0
    assert (run.run_dir / "control.json").exists()
    for verb in ("status", "watch", "undo"):
        done = libra(run, verb)
        assert done.returncode == 3
        assert "its controller" in done.stderr
