"""Where trajectories come from: traces, importable formats, a run's own journal; and what is refused."""

from pathlib import Path

import msgspec
import pytest
from simulated_parts import CONFIGS, last, small, turn, write

from libra.cli.main import main
from libra.config import load
from libra.errors import ConfigError, PreflightError
from libra.sim.plan import plan
from libra.sim.recorded import read_run
from libra.sim.shell import Simulation, simulate
from libra.telemetry.journal import DIRECTORY, Head, JournalWriter
from libra.workload import read_trace

BATCH = str(CONFIGS / "sim-batch.toml")


def test_a_runs_journal_gives_back_the_trajectories_that_it_was_made_from(tmp_path: Path) -> None:
    prepared = plan(small(run__mode="async", run__steps=3, eval__tasks=2))
    with JournalWriter(tmp_path / DIRECTORY, Head.of(prepared.config, "x")) as journal:

        def watch(event, commands) -> None:
            journal.event(event)
            journal.commands(commands)

        before = Simulation(prepared, watch).run()
    found = read_run(tmp_path)
    assert len(found) == before.trajectories == 24
    for i, trajectory in enumerate(found):
        prompt, sample = divmod(i, 4)
        truth = prepared.source.trajectory("train", prompt, sample, prompt // 2)
        assert (trajectory.group, trajectory.sample) == (f"prompt-{prompt}", sample)
        assert trajectory.prompt_tokens == truth.prompt_tokens
        assert [(t.sampled_tokens, t.observed_tokens) for t in trajectory.turns[:-1]] == [
            (t.sampled_tokens, t.observed_tokens) for t in truth.turns[:-1]
        ]
        assert trajectory.tool_s == pytest.approx(truth.tool_s)
    again = simulate(small(run__mode="async", run__steps=3, env__trace=str(tmp_path)))
    assert again.tokens_sampled == sum(t.sampled_tokens for t in found)


def test_a_trace_is_simulated_token_by_token_whatever_its_order(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", *[(turn(10 * i), last(i)) for i in range(1, 9)])
    whole = sum(t.sampled_tokens for t in read_trace(trace))
    rollout = {"rollout__groups_per_batch": 1, "rollout__samples_per_group": 8}
    for seed in (0, 1):
        report = simulate(small(env__trace=str(trace), run__seed=seed, **rollout))
        assert report.tokens_sampled == whole


def test_groups_with_too_few_samples_are_filled_up_from_others(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", (last(7),))
    assert simulate(small(env__trace=str(trace))).tokens_sampled == 8 * 7


def test_other_formats_are_known_by_their_first_line(tmp_path: Path) -> None:
    swe = tmp_path / "swe.jsonl"
    swe.write_text(
        '{"instance":"a","turns":[{"i":1,"in":100,"out":5,"tool_s":0.1},{"i":2,"in":140,"out":6,"tool_s":0.1}]}\n'
    )
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text('{"timestamp":0,"input_length":600,"output_length":11,"hash_ids":[0,1]}\n')
    assert simulate(small(env__trace=str(swe))).tokens_sampled == 8 * 11
    assert simulate(small(env__trace=str(mooncake))).tokens_sampled == 8 * 11


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('"sampled_tokens": -5', "line 1, turns[0].sampled_tokens: got -5"),
        ('"sampled_tokens": null', "line 1, turns[0].sampled_tokens: got null"),
        ('"tokens": 5', "unknown field `tokens`"),
    ],
)
def test_a_bad_trace_names_file_line_and_field(tmp_path: Path, line: str, says: str, capsys) -> None:
    path = tmp_path / "bad.jsonl"
    turns = f'[{{{line}, "tool": "", "tool_s": 0.0, "status": "ok", "observed_tokens": 0}}]'
    path.write_text(f'{{"group": "a", "sample": 0, "family": "", "prompt_tokens": 4, "turns": {turns}}}\n')
    assert main(["simulate", BATCH, "--trace", str(path)]) == 2
    err = capsys.readouterr().err
    assert str(path) in err
    assert says in err


def test_a_trajectory_longer_than_any_engines_room_is_refused_with_what_would_fit(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", (last(40_000),), prompt=10_000)
    config = small(env__trace=str(trace))
    narrow = msgspec.structs.replace(config, bucket=config.bucket[:1])
    with pytest.raises(
        ConfigError, match=r"engine's 42114 tokens; .* needs 50000: give an engine that room \(higher TP"
    ):
        plan(narrow)
    with pytest.raises(ConfigError, match=r"env\.max_context_tokens: got 131072, expected at most 42114"):
        plan(msgspec.structs.replace(small(), bucket=config.bucket[:1]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bucket.0.kv_tokens=50000"], "bucket.0.kv_tokens: got 50000, expected at most 42114"),
        (["--bucket.0.tp=3"], "bucket.0.tp: TP 3 of qwen3-14b on a800-sxm4-80gb: expected a divisor of heads"),
        (["--cost.model=qwen3-30b-a3b"], "the 36.5 GB that the engine may use beside its workspace; TP 2 would fit"),
        (
            ["--cost.hardware=a900"],
            "cost.hardware on the command line: got 'a900', expected a path ending in .toml or one of",
        ),
        (["--cost.hardware.flops=-1"], "cost.hardware.flops on the command line: got '-1', expected a number above 0"),
        (["--cost.model.heads=41"], "cost.model.kv_heads: got 8, expected a divisor of heads = 41"),
        (["--simulation.train=true"], "allocation.trainer = 4 would fit"),
        (["--simulation.train=true", "--simulation.tp=2"], "expected a divisor of devices = 1"),
        (["--steps=3", "--deadline.weights_s=5"], "deadline.weights_s: got 5, expected more than"),
        (["--policy=best"], "scheduler.policy on the command line: got 'best'"),
        (["--mode=asink"], "run.mode on the command line: got 'asink'"),
        (["--trace=nowhere.jsonl"], "nowhere.jsonl: 1 problem"),
        (["--trace=."], "holds no journal/"),
        (["--env.kind=chess"], "env.kind on the command line: got 'chess'"),
    ],
)
def test_what_cannot_be_simulated_says_why_and_what_would_fit(words: list[str], says: str, capsys) -> None:
    assert main(["simulate", BATCH, *words]) == 2
    assert says in capsys.readouterr().err


def test_a_live_configuration_needs_a_trace_and_costs(capsys) -> None:
    quickstart = str(CONFIGS / "quickstart.toml")
    assert main(["simulate", quickstart]) == 2
    assert "or --trace FILE" in capsys.readouterr().err
    with pytest.raises(PreflightError, match="cost: missing"):
        plan(msgspec.structs.replace(small(), cost=None))


@pytest.mark.parametrize(
    ("config", "words", "says"),
    [
        ("sim-batch", ["--bucket.0.engine=torch"], 'env.name: got "workload"'),
        ("quickstart", ["--bucket.0.engine=emulated"], 'bucket.0.engine: got "emulated"'),
        ("quickstart", ["--emulation.speed=30"], "emulation.speed: got 30, expected 1"),
        ("emulated-8", ["--bucket.0.kv_tokens=99999999"], "bucket.0.kv_tokens: got 99999999"),
        ("emulated-8", ["--deadline.weights_s=0.01"], "deadline.weights_s: got 0.01"),
        ("emulated-8", ["--scheduler.policy=oracle"], 'scheduler.policy: got "oracle"'),
    ],
)
def test_a_live_job_is_emulated_as_a_whole_or_not_at_all(config: str, words: list[str], says: str, capsys) -> None:
    assert main(["run", str(CONFIGS / f"{config}.toml"), *words]) == 2
    assert says in capsys.readouterr().err


def test_only_the_deadlines_of_an_emulated_job_are_in_real_seconds() -> None:
    real = load(CONFIGS / "emulated-8.toml")
    run = plan(real).config
    assert run.deadline.weights_s == real.emulation.speed * real.deadline.weights_s
    assert run.deadline.role_restarts == real.deadline.role_restarts
    assert run.scheduler == real.scheduler
    assert run.in_run_seconds == run
