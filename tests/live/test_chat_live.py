"""A whole run with a chat model: a miniature one, and, where its weights are in the cache, SmolLM2-135M."""

from pathlib import Path

import pytest
from launched import REPOSITORY, Launched
from small_chat import chat_model

from libra.config import pretrained
from libra.errors import ConfigError
from libra.telemetry import replay

CHAT = Path(__file__).parent / "chat.toml"


@pytest.mark.process
@pytest.mark.timeout(150)
def test_a_chat_model_is_run_from_its_directory(tmp_path: Path) -> None:
    chat_model(tmp_path / "m", weights=True)
    with Launched(tmp_path, None, f"--model.pretrained={tmp_path / 'm'}", config=CHAT) as run:
        assert run.wait() == 0, run.words()
        run.assert_nobody_left()
    summary = run.summary()
    assert summary["ok"]
    assert summary["steps"] == 2
    assert summary["completed_steps"] + summary["skipped_steps"] == 2
    assert summary["completed_steps"] == summary["version"] > 0
    assert summary["trajectories"] == 2 * 8
    assert summary["failed"] == 0
    trained = [b for b in run.batches() if b["trained"]]
    assert all(b["gap"] is not None and b["gap"] < 1e-3 for b in trained), "in mode sync every token can be compared"
    assert summary["logprob_gap_max"] == max(b["gap"] for b in trained)
    report = replay.check(run.run_dir)
    assert report.ok, report.problem


@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_smollm2_takes_three_steps(tmp_path: Path) -> None:
    try:
        pretrained.find("smollm2-135m-instruct")
    except ConfigError as e:
        pytest.skip(f"SmolLM2's weights are not here: {e.problems[0]}")
    with Launched(tmp_path, None, config=REPOSITORY / "configs" / "smollm2.toml", deadline_s=1700.0) as run:
        assert run.wait() == 0, run.words()
    summary = run.summary()
    assert summary["steps"] == 3
    assert summary["completed_steps"] == summary["version"] == 3
    for batch in run.batches():
        assert batch["trained"]
        assert abs(batch["loss"]) < 10
        assert batch["grad_norm"] > 0
        assert batch["gap"] < 1e-3
