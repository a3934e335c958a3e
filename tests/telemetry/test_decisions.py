"""What a run decided and why, told from its journal alone."""

import json
from pathlib import Path

import pytest

from libra.cli.main import main
from libra.config.load import dump
from libra.config.rundir import CONFIG_FILE
from libra.config.schema import BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig, SchedulerConfig
from libra.core import commands as c
from libra.telemetry.decisions import DecisionRecord, Decisions
from libra.telemetry.journal import Head, JournalWriter
from libra.telemetry.replay import check
from tests.core.virtual_shell import VirtualShell


def config(policy: str) -> Config:
    return Config(
        run=RunConfig(steps=4),
        bucket=(BucketConfig(name="wide", max_batch=6), BucketConfig(name="narrow", max_batch=2, tp=2)),
        scheduler=SchedulerConfig(policy=policy, thresholds_tokens=(20,), max_wait_s=0.5),  # type: ignore[arg-type]
        rollout=RolloutConfig(groups_per_batch=3, samples_per_group=4),
        eval=EvalConfig(tasks=3),
    )


def journalled(run_dir: Path, policy: str = "causal") -> VirtualShell:
    shell = VirtualShell(config(policy), seed=2, fail_rate=0.03, kill_rate=0.01)
    run_dir.mkdir(exist_ok=True)
    (run_dir / CONFIG_FILE).write_text(dump(shell.config))
    handle = shell.core.handle
    with JournalWriter(run_dir / "journal", Head.of(shell.config, "f00d")) as journal:

        def recorded(event):  # type: ignore[no-untyped-def]
            journal.event(event)
            commands = handle(event)
            journal.commands(commands)
            return commands

        shell.core.handle = recorded  # type: ignore[method-assign]
        shell.run()
    return shell


def told(run_dir: Path, settings: Config) -> list[DecisionRecord]:
    decisions = Decisions(settings.engine_buckets, [b.name for b in settings.bucket])
    records: list[DecisionRecord] = []
    report = check(run_dir, watch=lambda event, cmds, core: records.extend(decisions.of(event.t, cmds, core.decided)))  # type: ignore[attr-defined]
    assert report.ok, report.problem
    return records


@pytest.mark.parametrize("policy", ["causal", "least_loaded", "cmlfq", "sticky"])
def test_every_turn_that_was_placed_has_its_decision(tmp_path: Path, policy: str) -> None:
    shell = journalled(tmp_path, policy)
    placed = [(x.traj, x.engine) for x in shell.commands if isinstance(x, c.Generate)]
    records = told(tmp_path, shell.config)
    assert [(r.traj, r.engine) for r in records if r.engine >= 0] == placed
    assert all(r.reason for r in records)


def test_a_decision_of_causal_shows_what_the_candidates_would_have_cost(tmp_path: Path) -> None:
    shell = journalled(tmp_path)
    records = [r for r in told(tmp_path, shell.config) if r.engine >= 0 and len(r.candidates) > 1]
    assert records
    for r in records:
        cost = {x.engine: x.cost for x in r.candidates}
        assert r.engine in cost
        assert {x.bucket for x in r.candidates} <= {"wide", "narrow"}


def test_waiting_for_a_bucket_is_a_decision_too_and_told_once(tmp_path: Path) -> None:
    shell = journalled(tmp_path, "cmlfq")
    records = told(tmp_path, shell.config)
    waits = [r for r in records if r.engine < 0]
    assert waits
    assert {r.waits_for for r in waits} <= {"bucket wide", "bucket narrow"}
    latest: dict[int, str] = {}
    for r in records:
        assert not r.waits_for or latest.get(r.traj) != r.waits_for
        latest[r.traj] = r.waits_for


def test_the_turns_of_a_trajectory_count_up(tmp_path: Path) -> None:
    shell = journalled(tmp_path)
    turns: dict[int, list[int]] = {}
    for r in told(tmp_path, shell.config):
        turns.setdefault(r.traj, []).append(r.turn)
    assert all(seen == sorted(seen) and seen[0] == 1 for seen in turns.values())
    assert max(max(seen) for seen in turns.values()) > 2


def test_the_command_line_tells_them_to_people_and_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "job"
    journalled(run_dir)
    assert main(["replay", str(run_dir), "--decisions", "--stragglers"]) == 0
    text = capsys.readouterr().out
    assert "soonest expected finish" in text
    assert " waited " in text
    assert "every command is the same" in text
    assert main(["replay", str(run_dir), "--decisions", "--traj", "7", "--json"]) == 0
    *lines, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert {line["traj"] for line in lines} == {7}
    assert {line["kind"] for line in lines} == {"decision"}
    assert {"t", "turn", "engine", "bucket", "reason", "candidates", "group"} <= set(lines[0])
    assert (end["kind"], end["ok"]) == ("replay", True)


def test_a_runs_pictures_are_drawn_from_its_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "job"
    journalled(run_dir)
    assert main(["replay", str(run_dir), "--plots", str(tmp_path / "p")]) == 0
    pictures = sorted((tmp_path / "p").iterdir())
    assert [p.name for p in pictures] == ["allocation.png", "engines.png", "residuals.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in pictures)
