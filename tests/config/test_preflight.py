"""Preflight: each relation between values is refused with what mends it, and all problems come at once."""

from pathlib import Path

import pytest

from libra.config import Config, load, preflight
from libra.errors import PreflightError


def problems_of(tmp_path: Path, *overrides: str, world_size: int | None = None) -> list[str]:
    path = tmp_path / "run.toml"
    path.write_text(f'[run]\ndirectory = "{tmp_path}"\n')
    try:
        preflight.check(load(path, overrides), world_size, source="run.toml")
    except PreflightError as e:
        return e.problems
    return []


def test_the_defaults_pass(tmp_path):
    assert problems_of(tmp_path, world_size=1 + Config().devices) == []


def test_a_wrong_world_size_shows_the_line_that_is_right(tmp_path):
    (problem,) = problems_of(tmp_path, "--bucket.0.engines=3", world_size=5)
    assert problem.startswith("world size: got 5, expected 6 (1 controller + 5 devices: 2 trainers, 3 for engines)")
    assert problem.endswith("torchrun --nproc-per-node 6 -m libra.launch run.toml")


@pytest.mark.parametrize(
    ("mode", "lag", "allowed"),
    [
        ("sync", 0, True), ("sync", 1, False),
        ("one-step-off", 0, False), ("one-step-off", 1, True), ("one-step-off", 2, False),
        ("async", 0, False), ("async", 1, True), ("async", 7, True),
        ("sync", "none", True), ("one-step-off", "none", True), ("async", "none", True),
    ],
)  # fmt: skip
def test_each_mode_has_its_lags(tmp_path, mode, lag, allowed):
    problems = problems_of(tmp_path, f"--run.mode={mode}", f"--rollout.max_lag={lag}")
    assert [p.split(":")[0] for p in problems] == ([] if allowed else ["rollout.max_lag"])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["--run.mode=sync", "--rollout.overdue=drop_group"], 'use overdue = "wait"'),
        (["--bucket.0.tp=2", "--bucket.0.engines=2"], "use engines = 4 with tp = 1"),
        (["--scheduler.policy=oracle"], "only a simulation can tell it: choose another policy"),
        (["--scheduler.small_tokens=5000"], "expected less than scheduler.medium_tokens = 5000"),
        (["--model.heads=5"], "model.heads: got 5, expected a divisor of model.hidden = 96: one of 1, 2, 3, 4, 6"),
        (["--model.heads=32", "--model.kv_heads=32"], "heads of width 3; expected an even width"),
        (["--model.kv_heads=3"], "model.kv_heads: got 3, expected a divisor of model.heads = 4: one of 1, 2, 4"),
        (["--model.max_positions=64"], "model.max_positions: got 64, expected at least env.trajectory_tokens = 110"),
        (["--bucket.0.kv_tokens=100"], "bucket.0.kv_tokens: got 100, expected at least env.trajectory_tokens = 110"),
        (["--bucket.0.engines=0"], "bucket.0.engines: got 0 in every bucket, expected 1 or more"),
        (["--bucket.0.engine=vllm"], "heads of width 24 (model.hidden / model.heads), which it has no attention for"),
        (["--bucket.0.engine=vllm", "--bucket.0.kv_tokens=0"], "bucket.0.kv_tokens: got 0, expected 1 or more"),
        (["--allocation.trainer=200"], "allocation.trainer: got 200, expected at most 160"),
        (["--warm_start.demonstrations=8"], "warm_start.batch: got 32, expected at most"),
        (["--env.turn_tokens=110"], "env.turn_tokens: got 110, expected less than"),
        (["--env.fault.kind=fail"], 'got kind "fail" with rate 0.0'),
        (["--env.fault.rate=0.5"], 'got kind "none" with rate 0.5'),
        (["--deadline.lost_s=1"], "deadline.lost_s: got 1.0, expected at least 3 x deadline.heartbeat_s = 1.5"),
        (["--deadline.lease_s=1"], "deadline.lease_s: got 1.0, expected at least 3 x deadline.heartbeat_s = 1.5"),
        (["--deadline.lease_s=9.5"], "deadline.lease_s: got 9.5, expected at most deadline.lost_s - 1 = 9"),
        (["--deadline.stalled_s=4"], "deadline.stalled_s: got 4.0, expected more than env.tool.deadline_s = 5.0"),
    ],
)
def test_a_relation_that_cannot_run_is_refused(tmp_path, overrides, says):
    assert any(says in p for p in problems_of(tmp_path, *overrides))


def test_legal_tp_degrees_are_named(tmp_path):
    assert any("model.heads = 4 and model.kv_heads = 2: one of 1, 2" in p for p in problems_of(
        tmp_path, "--bucket.0.tp=3", "--model.kv_heads=2"
    ))  # fmt: skip


def test_smollm2_takes_three_ranks_and_not_two(tmp_path):
    shape = ["--model.hidden=576", "--model.heads=9", "--model.kv_heads=3", "--bucket.0.engine=vllm"]
    assert any("one of 1, 3" in p for p in problems_of(tmp_path, *shape, "--bucket.0.tp=2"))
    assert not any("tp" in p for p in problems_of(tmp_path, *shape, "--bucket.0.tp=3"))


def test_a_missing_vllm_gives_one_line_that_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    (problem,) = problems_of(tmp_path, "--model.hidden=128", "--bucket.0.engine=vllm")
    assert "just setup-vllm" in problem
    assert "libra-rl[vllm]" in problem


def test_two_buckets_of_one_name_are_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[[bucket]]\nname = "a"\n[[bucket]]\nname = "a"\n')
    with pytest.raises(PreflightError, match=r"bucket\.1\.name: got 'a' twice"):
        preflight.check(load(path), machine=False)


def test_all_problems_come_at_once(tmp_path):
    assert len(problems_of(tmp_path, "--model.heads=5", "--run.mode=sync", "--rollout.max_lag=1", world_size=2)) >= 3


def test_a_full_disk_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 1 << 62)
    (problem,) = problems_of(tmp_path)
    assert "free at" in problem
    assert "run.directory" in problem


def test_a_run_directory_under_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    (problem,) = problems_of(tmp_path, f"--run.directory={tmp_path}/taken/runs")
    assert "is a file" in problem
