"""Stragglers, turns by bucket and moves: of hand-made runs and of whole ones."""

from pathlib import Path

import pytest

from libra.config.schema import BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig, SchedulerConfig
from libra.core import commands as c
from libra.core import events as e
from libra.telemetry.display import straggler_line, summary_rows
from libra.telemetry.metrics import MetricsWriter, read_metrics
from libra.telemetry.paths import Paths
from libra.telemetry.summary import Tally
from tests.core.virtual_shell import VirtualShell


def feed(paths: Paths, *items: e.Event | c.Command) -> Paths:
    for item in items:
        paths.event(item) if isinstance(item, e.Event) else paths.command(item)
    return paths


def opened(traj: int, prompt: int = 0, kind: c.Kind = "train") -> c.OpenTrajectory:
    return c.OpenTrajectory(0, traj, kind, prompt, traj, 0)


def turn(t: float, traj: int, engine: int, finish: e.Finish = "stop") -> e.TurnGenerated:
    return e.TurnGenerated(t, 0, traj, engine, 10, 0, 0, finish)


def tool(t: float, traj: int, seconds: float) -> e.ToolReturned:
    return e.ToolReturned(t, 0, traj, "calculator", "ok", 2, seconds, 30, 12)


def ended(t: float, traj: int) -> e.EpisodeEnded:
    return e.EpisodeEnded(t, 0, traj, 1.0, 10, 30)


def consumed(batch: int, wait_s: float) -> c.BatchConsumed:
    return c.BatchConsumed(0, batch, batch + 1, True, 0.5, 1, 1, 4, 40, 0, wait_s, 0.1, 0.5)


OPEN_STEP = c.OpenStep(0, 0, 0, 40, (1, 2))


def test_who_ended_while_the_trainer_waited_held_the_step_up() -> None:
    paths = feed(
        Paths(["a", "b"]),
        *(opened(i) for i in range(3)),
        *(turn(1.0, i, 0) for i in range(3)),
        ended(1.0, 0),
        tool(1.5, 1, 0.5),
        turn(4.0, 1, 1),
        ended(4.0, 1),
        tool(2.0, 2, 1.0),
        turn(9.0, 2, 1),
        ended(9.0, 2),
        OPEN_STEP,
        e.RoundDone(12.0, 0, 1, 3.0),
        consumed(0, wait_s=6.0),  # from 3 to 9
    )
    last, first = paths.latest
    assert (last.traj, last.held_s, last.seconds, last.turns, last.tokens, last.tool_s) == (2, 5.0, 9.0, 2, 20, 1.0)
    assert (first.traj, first.held_s, first.engines) == (1, 1.0, (0, 1))
    assert paths.longest == (last, first)


def test_a_step_that_waited_for_nobody_has_no_straggler() -> None:
    paths = feed(Paths(["a"]), opened(0), turn(1.0, 0, 0), ended(1.0, 0), e.RoundDone(5.0, 0, 1, 0.0))
    assert feed(paths, OPEN_STEP, consumed(0, wait_s=0.0)).latest == []


def test_batches_are_told_apart_by_their_prompts() -> None:
    paths = feed(
        Paths(["a"], groups_per_batch=2), opened(0, prompt=1), opened(1, prompt=2), ended(3.0, 0), ended(4.0, 1)
    )
    feed(paths, OPEN_STEP, consumed(0, wait_s=4.0))
    assert [s.traj for s in paths.latest] == [0]


def test_held_out_and_discarded_trajectories_hold_nobody_up() -> None:
    paths = feed(
        Paths(["a"]), opened(0, kind="eval_start"), opened(1), c.Discard(0, (1,)), ended(2.0, 0), ended(2.0, 1)
    )
    assert feed(paths, OPEN_STEP, consumed(0, wait_s=2.0)).latest == []


def test_moves_between_engines_and_buckets_are_counted() -> None:
    paths = feed(Paths(["a", "a", "b"]), opened(0), *(turn(float(i), 0, x) for i, x in enumerate((0, 1, 2, 2, 0))))
    assert paths.turns_by_bucket == {"a": 3, "b": 2}
    assert (paths.engine_moves, paths.bucket_moves) == (3, 2)


def test_the_longest_holds_of_a_run_are_kept_and_no_more() -> None:
    paths = Paths(["a"])
    t = 0.0
    for batch in range(40):
        t += 1 + batch % 7
        feed(paths, opened(batch, prompt=batch), ended(t, batch), consumed(batch, wait_s=1.0 + batch % 7))
    assert len(paths.longest) == 10
    assert [s.held_s for s in paths.longest] == [7.0] * 5 + [6.0] * 5


def test_a_straggler_is_told_in_one_line() -> None:
    paths = feed(Paths(["a", "b"]), opened(4, prompt=3), *(turn(0.5, 4, x) for x in (0, 0, 1)), ended(6.0, 4))
    feed(paths, consumed(3, wait_s=2.5))
    (straggler,) = paths.latest
    assert straggler_line(straggler) == (
        "batch 3 waited 2.50 s for trajectory 4 (prompt 3, sample 4): "
        "6.0 s, 3 turns, 30 tokens, 0.00 s in tools, engines 0 x2 > 1"
    )


def whole_run() -> tuple[VirtualShell, Tally, dict[int, float]]:
    config = Config(
        run=RunConfig(steps=8),
        bucket=(BucketConfig(name="wide", max_batch=16), BucketConfig(name="narrow", max_batch=4)),
        scheduler=SchedulerConfig(policy="causal"),
        rollout=RolloutConfig(groups_per_batch=4, samples_per_group=4),
        eval=EvalConfig(tasks=4),
    )
    shell = VirtualShell(config, seed=5, fail_rate=0.03)
    tally, held, handle = Tally.of(config), dict[int, float](), shell.core.handle

    def tallied(event: e.AnyEvent) -> list[c.Command]:
        commands = handle(event)
        tally.event(event)
        for command in commands:
            tally.command(command)
            if isinstance(command, c.BatchConsumed):
                held[command.batch] = sum(s.held_s for s in tally.paths.latest)
        return commands

    shell.core.handle = tallied  # type: ignore[method-assign]
    return shell.run(), tally, held


def test_in_a_whole_run_nobody_holds_a_step_up_for_longer_than_it_waited() -> None:
    shell, tally, held = whole_run()
    waits = {x.batch: x.wait_s for x in shell.commands if isinstance(x, c.BatchConsumed)}
    assert sum(waits.values()) > 0
    assert all(held[b] <= waits[b] + 1e-3 for b in waits)
    assert sum(held.values()) > 0
    s = tally.summary()
    generated = [x for x in shell.events if isinstance(x, e.TurnGenerated)]
    assert set(s.turns_by_bucket) == {"wide", "narrow"}
    assert 0 < sum(s.turns_by_bucket.values()) <= len(generated)
    assert s.bucket_moves == s.engine_moves > 0  # one engine a bucket
    assert s.stragglers[0].held_s == max(x.held_s for x in s.stragglers)
    rows = dict(summary_rows(s))
    assert "wide" in rows["turns by bucket"]
    assert rows["worst straggler"].startswith(f"batch {s.stragglers[0].batch} waited")


def test_stragglers_have_lines_of_their_own_in_the_metrics(tmp_path: Path) -> None:
    _, tally, _ = whole_run()
    with MetricsWriter(tmp_path / "metrics.jsonl") as metrics:
        metrics.straggler(3.0, tally.summary().stragglers[0])
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["kind"] == "straggler"
    assert row["held_s"] == pytest.approx(tally.summary().stragglers[0].held_s)
    assert isinstance(row["engines"], list)
