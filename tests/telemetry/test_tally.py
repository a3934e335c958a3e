"""The tally: numbers of a hand-made run, and the summary file."""

import math
from pathlib import Path

import msgspec
import pytest

from libra.core import commands as c
from libra.core import events as e
from libra.telemetry.rate import Rate
from libra.telemetry.summary import Summary, Tally, read_summary, write_summary

Item = e.Event | c.Command


def batch(number: int, reward: float, **changes: object) -> c.BatchConsumed:
    fields = {
        "seq": 0,
        "batch": number,
        "version": number + 1,
        "trained": True,
        "reward": reward,
        "groups": 2,
        "groups_trained": 2,
        "trajectories": 4,
        "loss_tokens": 40,
        "lag": 0,
        "wait_s": 0.0,
        "loss": 0.1,
        "grad_norm": 0.5,
    }
    return c.BatchConsumed(**(fields | changes))  # type: ignore[arg-type]


def count(*items: Item) -> Tally:
    tally = Tally("quick", "async", 7)
    for item in items:
        if isinstance(item, e.Event):
            tally.event(item)
        else:
            tally.command(item)
    return tally


def episode(traj: int, turns: int, t: float = 0.0, kind: c.Kind = "train", prompt: int = 0) -> list[Item]:
    """A whole trajectory: each turn one second and ten tokens, a tool between turns."""
    items: list[Item] = [c.OpenTrajectory(0, traj, kind, prompt, traj, 0), e.TurnReady(t, 0, traj, 20, 12)]
    for turn in range(turns):
        items += [
            c.Generate(0, traj, 0, 12),
            e.TurnGenerated(t + turn + 1, 0, traj, 0, 10, 0, 0, "stop"),
            c.Act(0, traj),
        ]
        if turn + 1 < turns:
            items.append(e.ToolReturned(t + turn + 1, 0, traj, "calculator", "ok", 3, 0.1, 33, 12))
    return [*items, e.EpisodeEnded(t + turns, 0, traj, 1.0, 10 * turns, 20 + 10 * turns)]


def test_an_empty_run_has_nothing_to_measure() -> None:
    s = count().summary()
    assert (s.steps, s.trajectories, s.ok, s.reason) == (0, 0, False, "the run did not finish")
    assert (s.reward_first, s.reward_heldout, s.turns_p50, s.lag_max, s.tokens_per_s) == (None, None, None, None, 0.0)


def test_rewards_of_the_first_and_last_ten_batches() -> None:
    s = count(*(batch(i, i / 100) for i in range(30))).summary()
    assert (s.steps, s.version) == (30, 30)
    assert s.reward_first == pytest.approx(0.045)
    assert s.reward_last == pytest.approx(0.245)


def test_a_batch_without_a_reward_does_not_spoil_the_mean() -> None:
    assert count(batch(0, 0.5), batch(1, math.nan)).summary().reward_first == 0.5


def test_skipped_batches_count_as_steps_but_not_for_lag() -> None:
    s = count(
        batch(0, 0.5, lag=2, wait_s=0.5),
        batch(1, 0.0, lag=9, trained=False, version=1, groups_trained=0, wait_s=0.25),
        batch(2, 0.5, lag=1, version=2),
    ).summary()
    assert (s.steps, s.skipped_steps, s.version, s.dropped_groups) == (3, 1, 2, 2)
    assert (s.lag_max, s.lag_mean, s.tail_wait_s) == (2, 1.5, 0.75)


def test_turns_are_counted_over_ended_training_trajectories() -> None:
    items = [item for traj, turns in enumerate([1, 1, 1, 2, 2, 2, 3, 3, 4, 9]) for item in episode(traj, turns)]
    s = count(*items, *episode(99, 20, kind="eval_end")).summary()
    assert (s.trajectories, s.heldout_trajectories) == (10, 1)
    assert (s.turns_p50, s.turns_p90, s.turns_max) == (2, 4, 9)


def test_a_cut_turn_counts_once_and_all_its_tokens() -> None:
    tally = count(
        c.OpenTrajectory(0, 1, "train", 0, 0, 0),
        e.TurnReady(0.0, 0, 1, 20, 12),
        c.Generate(0, 1, 0, 12),
        e.TurnGenerated(1.0, 0, 1, 0, 4, 0, 0, "cut"),
        c.Generate(0, 1, 1, 8),
        e.TurnGenerated(2.0, 0, 1, 1, 6, 0, 1, "stop"),
        c.Act(0, 1),
        e.EpisodeEnded(2.0, 0, 1, 1.0, 10, 30),
    )
    assert (tally.summary().turns_max, tally.tokens_sampled) == (1, 10)


def test_tokens_per_second_run_from_the_first_order_to_the_last_turn() -> None:
    s = count(e.RunStarted(0.0), *episode(1, 4, t=100.0), e.StopRequested(200.0, False, "uid 0")).summary()
    assert (s.tokens_sampled, s.tokens_per_s, s.seconds) == (40, 10.0, 200.0)


def moved(move: int, author: str, to: c.Role, *stages: tuple[str, float]) -> list[Item]:
    return [c.MoveChanged(0, move, stage, 0, (4,), "", author, "", seconds, to) for stage, seconds in stages]


def test_moves_are_counted_by_where_to_by_whom_and_by_stage() -> None:
    s = count(
        *moved(1, "", "gradient", ("preparing", 0.0), ("draining", 2.0), ("ready", 2.5)),
        *moved(2, "anna", "rollout", ("draining", 0.0), ("preparing", 1.0), ("ready", 5.0)),
        *moved(3, "", "gradient", ("preparing", 0.0), ("returning", 9.0), ("failed", 9.5)),
        *moved(4, "", "gradient", ("preparing", 0.0)),
    ).summary()
    assert (s.moves, s.moves_by, s.moves_failed) == ({"gradient": 1, "rollout": 1}, {"rule": 1, "anna": 1}, 1)
    assert s.move_s == {"preparing": 3.0, "draining": 0.75}, "of those that ended well"


def test_what_a_replica_sums_up_is_trained() -> None:
    micro_batch = c.MicroBatch(0, 30, (c.Row(1, 1.0),))
    s = count(*episode(1, 1), c.Accumulate(0, 0, 5, (4,), (micro_batch,), 30), c.Discard(0, (1,))).summary()
    assert s.dropped_by_length == {}


def test_stages_follow_each_trajectory() -> None:
    tally = Tally("quick", "async", 0)
    seen = []
    done = [c.Round(0, 0, 0, (1,), (c.MicroBatch(0, 30, (c.Row(1, 1.0),)),)), c.Discard(0, (1,))]
    for item in [*episode(1, 1), *done]:
        tally.event(item) if isinstance(item, e.Event) else tally.command(item)
        seen.append("".join(stage for stage, n in tally.stages.items() if n))
    assert seen == ["opening", "waiting", "generating", "waiting", "acting", "ready", "training", ""]
    assert (tally.summary().dropped_by_length, tally.summary().discarded) == ({}, 0)


def test_what_is_closed_untrained_is_counted_by_length() -> None:
    items = [item for traj, turns in enumerate([1, 2, 3, 4, 5, 5, 9]) for item in episode(traj, turns)]
    s = count(*items, c.Discard(0, tuple(range(7)))).summary()
    assert s.dropped_by_length == {"1": 1, "2": 1, "3-4": 2, "5-8": 2, "9-16": 1}
    assert (s.discarded, s.unfinished, s.lost) == (0, 0, 0)


def test_one_given_up_in_the_middle_is_discarded_with_the_turns_it_had() -> None:
    s = count(*episode(1, 3)[:-1], c.Discard(0, (1,))).summary()
    assert (s.discarded, s.dropped_by_length) == (1, {"3-4": 1})


def test_failures_are_counted_apart_and_replaced() -> None:
    s = count(
        c.OpenTrajectory(0, 1, "train", 0, 0, 0),
        e.TrajectoryFailed(1.0, 0, 1, "the tool's process died"),
        c.OpenTrajectory(0, 2, "train", 0, 0, 1),
        c.Discard(0, (1,)),
    ).summary()
    assert (s.failed, s.lost, s.unfinished, s.trajectories, s.dropped_by_length) == (1, 0, 1, 0, {})


def test_a_failure_that_the_core_found_itself_is_counted() -> None:
    s = count(
        c.OpenTrajectory(0, 1, "train", 0, 0, 0),
        e.TurnReady(0.0, 0, 1, 20, 12),
        c.OpenTrajectory(0, 2, "train", 0, 0, 1),
        c.Discard(0, (1,)),
    ).summary()
    assert (s.failed, s.lost, s.discarded) == (1, 0, 0)


def test_an_attempt_replaced_and_never_closed_is_lost() -> None:
    s = count(c.OpenTrajectory(0, 1, "train", 0, 0, 0), c.OpenTrajectory(0, 2, "train", 0, 0, 1)).summary()
    assert (s.lost, s.unfinished) == (1, 1)


def test_evaluations_weights_and_the_end() -> None:
    s = count(
        c.Evaluated(0, "eval_start", 0, 200, 0, 0.25),
        e.WeightsFailed(3.0, 0, 1, 4, "deadline"),
        c.Evaluated(0, "eval_end", 9, 200, 1, 0.75),
        c.FinishRun(0, True, "all batches are consumed"),
    ).summary()
    assert (s.reward_heldout_start, s.reward_heldout, s.weights_late) == (0.25, 0.75, 1)
    assert (s.ok, s.reason, s.run, s.mode, s.seed) == (True, "all batches are consumed", "quick", "async", 7)


def test_memory_does_not_grow_with_history() -> None:
    tally = count(*(item for i in range(200) for item in [*episode(i, 2, prompt=i), c.Discard(0, (i,))]))
    assert not tally._live
    assert not tally._slots
    assert set(tally.stages.values()) == {0}


def test_summary_file_is_whole_and_says_which_software(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")
    summary = count(batch(0, 0.5)).summary()
    write_summary(path, summary)
    assert read_summary(path) == summary
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    fields = msgspec.json.decode(path.read_bytes())
    assert set(fields) == {field.name for field in msgspec.structs.fields(Summary)}
    assert {"msgspec", "torch"} <= set(fields["software"])


def test_rate_looks_at_the_last_seconds_only() -> None:
    rate = Rate(window_s=5.0)
    assert rate.update(0.0, 0) == 0.0
    assert rate.update(1.0, 100) == 100.0
    assert [rate.update(float(t), 100) for t in range(2, 10)][-1] == 0.0


def test_each_stage_of_the_reward_is_reported_by_itself() -> None:
    batches = [batch(i, 0.5, reward_stages={"verifiable": i / 20, "format": 1.0}) for i in range(20)]
    s = count(
        *batches, c.Evaluated(0, "eval_end", 9, 200, 1, 0.75, reward_stages={"verifiable": 0.7, "format": 0.5})
    ).summary()
    assert s.reward_stages_first == {"verifiable": 0.225, "format": 1.0}
    assert s.reward_stages_last == {"verifiable": 0.725, "format": 1.0}
    assert s.reward_stages_heldout == {"verifiable": 0.7, "format": 0.5}
    assert count(batch(0, 0.5)).summary().reward_stages_last == {}
