"""Whole runs of the real core, in virtual time: their journals replay, and the tally agrees with the core's own figures."""

from pathlib import Path

import msgspec
import pytest

from libra.config.schema import BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig
from libra.config.types import Mode
from libra.core import commands as c
from libra.core import events as e
from libra.telemetry.journal import Head, JournalWriter
from libra.telemetry.replay import check
from libra.telemetry.summary import Summary, Tally
from tests.core.virtual_shell import VirtualShell


def config(mode: Mode = "async") -> Config:
    return Config(
        run=RunConfig(steps=6, mode=mode),
        bucket=(BucketConfig(engines=2),),
        rollout=RolloutConfig(groups_per_batch=6, samples_per_group=4),
        eval=EvalConfig(tasks=10),
    )


def run(
    run_dir: Path, settings: Config, journalled: Config | None = None, **rates: float
) -> tuple[VirtualShell, Summary]:
    """A run that is journalled and tallied as the controller does it."""
    shell = VirtualShell(settings, seed=1, **rates)
    handle, tally = shell.core.handle, Tally("run", settings.run.mode, 0)
    with JournalWriter(run_dir / "journal", Head.of(journalled or settings, "f00d"), max_file_bytes=50_000) as journal:

        def recorded(event: e.AnyEvent) -> list[c.Command]:
            journal.event(event)
            commands = handle(event)
            journal.commands(commands)
            tally.event(event)
            for command in commands:
                tally.command(command)
            return commands

        shell.core.handle = recorded  # type: ignore[method-assign]
        shell.run()
    return shell, tally.summary()


@pytest.mark.parametrize("mode", ["async", "one-step-off", "sync"])
def test_the_journal_of_a_run_with_failures_and_deaths_replays(tmp_path: Path, mode: Mode) -> None:
    shell, _ = run(tmp_path, config(mode), fail_rate=0.05, kill_rate=0.01)
    report = check(tmp_path)
    assert report.ok, report.problem
    assert (report.events, report.commands) == (len(shell.events), len(shell.commands))
    assert any(isinstance(x, e.RoleExited) for x in shell.events), "no engine died: the test shows nothing"


def test_a_changed_configuration_does_not_replay(tmp_path: Path) -> None:
    other = msgspec.structs.replace(config(), eval=EvalConfig(tasks=9))
    run(tmp_path, config(), journalled=other)
    report = check(tmp_path)
    assert not report.ok
    assert "the journal has" in report.problem


def test_the_tally_agrees_with_the_core(tmp_path: Path) -> None:
    shell, summary = run(tmp_path, config(), fail_rate=0.05)
    batches = [x for x in shell.commands if isinstance(x, c.BatchConsumed)]
    assert summary.ok
    assert summary.steps == len(batches) == 6
    assert summary.trajectories == sum(x.trajectories for x in batches)
    assert summary.failed == shell.core.rollout.failed > 0
    assert summary.tokens_sampled == sum(x.tokens for x in shell.events if isinstance(x, e.TurnGenerated))
    assert summary.lag_max == max(x.lag for x in batches)
    assert summary.dropped_groups == sum(x.groups - x.groups_trained for x in batches)
    assert (summary.lost, summary.unfinished, summary.version) == (0, 0, batches[-1].version)
