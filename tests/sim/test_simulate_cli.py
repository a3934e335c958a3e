"""`libra simulate` and `libra compare`: what they print, for people and for programs."""

import json

import pytest
from simulated_parts import CONFIGS

from libra.cli.arguments import Compare, Cost, Simulate, parse
from libra.cli.main import main
from libra.telemetry import tree_file

BATCH = str(CONFIGS / "sim-batch.toml")
SMALL = ["--rollout.groups_per_batch=1", "--rollout.samples_per_group=4"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["simulate", "a.toml", "--policy", "p", "--json"], Simulate("a.toml", policy="p", json=True)),
        (["simulate", "a.toml", "--env.kind=math"], Simulate("a.toml", overrides=("--env.kind=math",))),
        (["compare", "a.toml", "--policies", "a,b", "--seeds", "2"], Compare("a.toml", "a,b", 2)),
        (["cost", "decode", "--tp", "2"], Cost(("decode", "--tp", "2"))),
    ],
)
def test_words_become_a_command(argv, expected):
    assert parse(argv) == expected


def test_short_options_win_over_overrides():
    words = ["simulate", "a.toml", "--run.seed", "9", "--seed", "3", "--mode", "sync", "--steps", "2", "--policy", "p"]
    command = parse(words)
    assert isinstance(command, Simulate)
    assert command.all_overrides() == (
        "--run.seed", "9", "--scheduler.policy=p", "--run.mode=sync", "--run.steps=2", "--run.seed=3",
    )  # fmt: skip


def test_people_read_a_table_and_programs_json(capsys):
    assert main(["simulate", BATCH, *SMALL]) == 0
    text = capsys.readouterr().out
    assert "makespan" in text
    assert "times the bound" in text
    assert main(["simulate", BATCH, *SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trajectories"] == 4


def test_pictures_are_drawn_on_request(tmp_path, capsys):
    assert main(["simulate", BATCH, *SMALL, "--plots", str(tmp_path / "p"), "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["allocation.png", "engines.png", "residuals.png"]


@pytest.mark.process
def test_compare_gives_paired_ratios_with_their_spread(capsys):
    words = ["compare", BATCH, *SMALL, "--policies", "least_loaded", "--seeds", "2"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["control"] == "least_loaded"
    assert [c["seed"] for c in found["cells"]] == [0, 1]
    assert found["ratios"]["least_loaded"]["makespan_s"] == {"mean": 1.0, "low": 1.0, "high": 1.0, "stdev": 0.0}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policies", "least_loaded", "--control", "other"], "expected one of --policies: least_loaded"),
        (["--policies", "lest_loaded"], "scheduler.policy on the command line: got 'lest_loaded'"),
        (["--policies", "least_loaded", "--seeds", "0"], "expected names and 1 or more"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused_before_it_starts(words, says, capsys):
    assert main(["compare", BATCH, *words]) == 2
    assert says in capsys.readouterr().err


def test_costs_are_asked_through_the_same_door(capsys):
    assert main(["cost", "decode", "--hardware", "a800-sxm4-80gb", "--model", "qwen3-14b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["capacity_tokens"] == 42114


def test_a_simulation_leaves_what_it_learnt_and_another_starts_from_it(tmp_path, capsys):
    saved = tmp_path / "learnt.tree"
    assert main(["simulate", BATCH, *SMALL, "--policy", "causal", "--save-tree", str(saved)]) == 0
    first = tree_file.read(saved)
    assert len(first.learned.tree.nodes) > 1
    again = [*SMALL, "--policy", "causal", f"--scheduler.tree_from={saved}", "--save-tree", str(tmp_path / "next.tree")]
    assert main(["simulate", BATCH, *again]) == 0
    second = tree_file.read(tmp_path / "next.tree")
    visits = [max(n.visits for n in file.learned.tree.nodes) for file in (first, second)]
    assert visits[1] > visits[0]
    capsys.readouterr()
    assert main(["simulate", BATCH, *SMALL, "--scheduler.tree_from=nobody"]) == 2
    assert "scheduler.tree_from: got 'nobody'" in capsys.readouterr().err
    saved.write_bytes(b"junk")
    assert main(["simulate", BATCH, *SMALL, f"--scheduler.tree_from={saved}"]) == 2
    assert "is no saved tree" in capsys.readouterr().err
