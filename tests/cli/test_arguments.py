"""What can be typed, and that asking is cheap."""

import subprocess
import sys

import pytest

from libra.cli.arguments import List, Replay, Run, Stop, parse, parse_run, split_overrides
from libra.cli.main import main


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["run", "a.toml"], Run("a.toml")),
        (["run", "a.toml", "--name", "n", "--seed", "3", "--dry-run"], Run("a.toml", name="n", seed=3, dry_run=True)),
        (["run", "--trainer.lr", "-1", "a.toml"], Run("a.toml", overrides=("--trainer.lr", "-1"))),
        (["run", "a.toml", "--trainer.lr=1"], Run("a.toml", overrides=("--trainer.lr=1",))),
        (["list", "--json"], List(json=True)),
        (["stop", "a", "--now"], Stop("a", now=True)),
        (["replay", "a", "--check"], Replay("a", check=True)),
    ],
)
def test_words_become_a_command(argv, expected):
    assert parse(argv) == expected


def test_the_launcher_takes_what_run_takes():
    assert parse_run(["a.toml", "--seed", "3", "--run.steps=5"]) == Run("a.toml", seed=3, overrides=("--run.steps=5",))


def test_name_and_seed_win_over_overrides():
    run = parse_run(["a.toml", "--name", "n", "--seed", "3", "--run.seed", "9"])
    assert run.all_overrides() == ("--run.seed", "9", "--run.name=n", "--run.seed=3")


def test_the_value_of_an_override_may_look_like_an_option():
    assert split_overrides(["--run.directory", "--odd", "x"]) == (["x"], ("--run.directory", "--odd"))


@pytest.mark.parametrize("argv", [["run", "a", "--nmae", "x"], ["fly"], ["stop"]])
def test_words_that_do_not_fit_exit_with_2(argv, capsys):
    with pytest.raises(SystemExit) as e:
        main(argv)
    assert e.value.code == 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [(["run"], "expected a configuration"), (["run", "a.toml", "--resume", "b"], "expected one of them")],
)
def test_a_run_is_begun_or_gone_on_with(argv, says, capsys):
    assert main(argv) == 2
    assert says in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("argv", [["--help"], ["list"], ["run", "--help"]])
def test_asking_does_not_load_torch(argv, tmp_path):
    code = (
        "import sys; from libra.cli.main import main\n"
        f"try: main({argv!r})\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
