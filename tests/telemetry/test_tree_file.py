"""The saved tree: written whole, read back, refused by name, found by path or run, and part of a run's replay."""

from pathlib import Path

import msgspec
import pytest

from libra.config import preflight
from libra.config.rundir import TREE_FILE, TREE_START_FILE, find_tree
from libra.config.schema import CausalityConfig, Config, EvalConfig, RolloutConfig, RunConfig, SchedulerConfig
from libra.core.coordinator import Core
from libra.core.learned import Learned
from libra.errors import ConfigError, JournalError, PreflightError
from libra.telemetry import tree_file
from libra.telemetry.journal import Head, JournalWriter
from libra.telemetry.replay import check
from tests.core.virtual_shell import VirtualShell


def config(tree_from: str = "", seed: int = 0, directory: str = "runs", **tree: float) -> Config:
    return Config(
        run=RunConfig(steps=4, seed=seed, directory=directory),
        rollout=RolloutConfig(groups_per_batch=3, samples_per_group=4),
        scheduler=SchedulerConfig(
            policy="causal",
            tree_from=tree_from,
            tree=CausalityConfig(**tree),  # type: ignore[arg-type]
        ),
        eval=EvalConfig(tasks=4),
    )


def learned(seed: int = 1) -> Learned:
    return VirtualShell(config(), seed=seed).run().core.learned()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    state = learned()
    tree_file.write(tmp_path / TREE_FILE, config(), state)
    file = tree_file.read(tmp_path / TREE_FILE)
    assert file.learned == state
    assert (file.run, file.version) == ("run", state.tree.now)
    assert [p.name for p in tmp_path.iterdir()] == [TREE_FILE]


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / TREE_FILE
    path.write_bytes(msgspec.msgpack.encode(["libra-tree", 7, "0.9+core.abc", {"anything": "else"}]))
    with pytest.raises(
        ConfigError, match=r"causality.tree.*\n.*has tree format 7, this code reads format 1.*0.9\+core"
    ):
        tree_file.read(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is no saved tree"),
        (b"\x93\x01\x02", "is no saved tree"),
        (b"some text of a person", "is no saved tree"),
        (msgspec.msgpack.encode(["libra-tree", 1, "code", "run", 3, "tasks", {"tree": 1}]), "does not fit this code"),
    ],
)
def test_what_is_no_tree_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / TREE_FILE).write_bytes(data)
    with pytest.raises(ConfigError, match=says):
        tree_file.read(tmp_path / TREE_FILE)


def test_a_tree_is_found_by_file_directory_and_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    run_dir.mkdir(parents=True)
    tree_file.write(run_dir / TREE_FILE, config(), learned())
    directory = str(tmp_path / "runs")
    for given in (str(run_dir / TREE_FILE), str(run_dir), "first"):
        assert find_tree(config(given, directory=directory)) == run_dir / TREE_FILE


def test_a_tree_that_is_not_there_is_found_out_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for given in ("nobody", str(tmp_path / "empty"), str(tmp_path / "x.tree")):
        with pytest.raises(
            PreflightError, match=r"scheduler.tree_from: got '.*', expected a saved tree, a run's directory"
        ):
            preflight.check(config(given, directory=str(tmp_path)))


def test_nothing_named_is_nothing_known() -> None:
    assert tree_file.start(config()) is None


def test_prompts_are_known_again_only_in_a_run_of_the_same_tasks(tmp_path: Path) -> None:
    path = tmp_path / "saved.tree"
    tree_file.write(path, config(seed=5), learned())
    same = tree_file.start(config(str(path), seed=5))
    other = tree_file.start(config(str(path), seed=6))
    assert same is not None
    assert other is not None
    prompts = [sum(n.scope == 0 for n in state.tree.nodes) for state in (same, other)]
    assert prompts[0] > 0
    assert prompts[1] == 0
    assert len(other.tree.nodes) > 4


def test_the_forgetting_is_that_of_the_run_that_starts(tmp_path: Path) -> None:
    path = tmp_path / "saved.tree"
    tree_file.write(path, config(), learned())
    here = config(str(path), decay=0.5, pseudo_count=9.0)
    core = Core(here, learned=tree_file.start(here))
    assert (core.placement.tree.config.decay, core.placement.tree.config.pseudo_count) == (0.5, 9.0)


def journalled(run_dir: Path, settings: Config, state: Learned | None) -> None:
    shell = VirtualShell(settings, seed=4, learned=state)
    handle = shell.core.handle
    with JournalWriter(run_dir / "journal", Head.of(settings, "f00d")) as journal:

        def recorded(event):  # type: ignore[no-untyped-def]
            journal.event(event)
            commands = handle(event)
            journal.commands(commands)
            return commands

        shell.core.handle = recorded  # type: ignore[method-assign]
        shell.run()


def test_a_run_that_started_from_a_tree_replays_with_its_own_copy(tmp_path: Path) -> None:
    source = tmp_path / "saved.tree"
    tree_file.write(source, config(), learned())
    settings = config(str(source))
    state = tree_file.start(settings)
    assert state is not None
    tree_file.write(tmp_path / TREE_START_FILE, settings, state)
    journalled(tmp_path, settings, state)
    source.unlink()
    report = check(tmp_path)
    assert report.ok, report.problem
    (tmp_path / TREE_START_FILE).unlink()
    with pytest.raises(JournalError, match=r"(?s)the run started from .*saved.tree.*cannot be read"):
        check(tmp_path)
