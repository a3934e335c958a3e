"""One small run of the main job, core rank and engine on the same accelerator."""

from pathlib import Path

import pytest

from tests.live.launched import ONE_EACH, Launched

pytestmark = [pytest.mark.gpu, pytest.mark.process, pytest.mark.timeout(400)]


def test_the_main_job_runs_on_an_accelerator(accelerator, tmp_path: Path) -> None:
    options = ["--run.steps=5", "--run.device=accelerator"]
    with Launched(tmp_path, tmp_path / "warm", *options, config=ONE_EACH, deadline_s=300.0) as run:
        assert run.wait() == 0, run.words()
        run.assert_nobody_left()
    summary = run.summary()
    assert summary["ok"]
    assert summary["steps"] == 5
    assert summary["skipped_steps"] == summary["failed"] == 0
    gaps = [b["gap"] for b in run.batches() if b["gap"] is not None]
    assert gaps
    assert max(gaps) < 1e-3
