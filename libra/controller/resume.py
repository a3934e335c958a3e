"""Going on with a run: what is asked of it, what it goes on from, and why it cannot be.

    RUN ──> its config.toml, with overrides that cannot break it ──> its newest whole checkpoint ──> Resumption

Called by `libra run --resume` before anything is started, and by `libra.launch` on rank 0, which then claims the run anew.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from libra.checkpoint import content
from libra.checkpoint import directory as disk
from libra.checkpoint.directory import CORE
from libra.config.load import dump, load
from libra.config.rundir import CONFIG_FILE, Resolved, is_alive, own_pid, read_pid, write_pid
from libra.core.placement import tree_config
from libra.core.saved import SavedCore
from libra.errors import CheckpointError, PreflightError
from libra.telemetry.saved_tally import SavedTally
from libra.telemetry.summary import FILE as SUMMARY_FILE

FIXED: dict[tuple[str, ...], str] = {
    ("run", "name"): "a run goes on in its own directory",
    ("run", "directory"): "a run goes on in its own directory",
    ("run", "seed"): "it names the tasks",
    ("model",): "the weights are of this model",
    ("env",): "what the numbers of prompts mean depends on it",
    ("rollout", "groups_per_batch"): "which batch a prompt belongs to depends on it",
    ("scheduler", "policy"): "the policy remembers",
    ("scheduler", "family"): "the tree is learnt under it",
    ("scheduler", "tree"): "the tree is learnt under it",
}
"""What a resumed run must leave as it is, and why. All else may be overridden, the core's size and the buckets included."""


class Resumption(Struct, frozen=True):
    """What a run goes on from."""

    path: Path
    core: SavedCore
    tally: SavedTally
    notes: tuple[str, ...]
    """Newer checkpoints that were passed over, and why."""

    def start(self) -> bytes:
        """For the journal: what its new segment begins with."""
        return content.encode("", self.core, self.tally)


def resolve(run_dir: Path, overrides: Sequence[str] = ()) -> tuple[Resolved, Resumption]:
    """The configuration to go on with, and the state. PreflightError says why the run cannot go on."""
    run_dir = run_dir.absolute()
    _must_be_over(run_dir)
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        raise PreflightError([f"{run_dir} has no {CONFIG_FILE}: it ended before it began; start it anew"])
    before, config = load(file), load(file, overrides)
    tables, wanted = msgspec.to_builtins(before), msgspec.to_builtins(config)
    problems = [
        f"{name}: got {got!r}, expected {was!r}, as the run has it: {why}; start a new run for that"
        for keys, why in FIXED.items()
        for name, got, was in _differences(".".join(keys), _at(wanted, keys), _at(tables, keys))
    ]
    if problems:
        raise PreflightError(problems)
    try:
        path, manifest, notes = disk.newest(run_dir)
        file_ = content.decode(path / CORE)
        tally = msgspec.msgpack.decode(file_.tally, type=SavedTally)
    except (CheckpointError, msgspec.ValidationError) as x:
        raise PreflightError([str(x)]) from x
    if manifest.step >= config.run.steps:
        raise PreflightError(
            [
                f"{run_dir.name} is finished: its checkpoint {manifest.step} is that of its last batch; got run.steps ="
                f" {config.run.steps}, expected more: --run.steps N"
            ]
        )
    if file_.core.learned.tree.config != tree_config(config.scheduler):
        raise PreflightError([f"{path / CORE} holds a tree of another [scheduler] than {file}'s"])
    best = disk.best(run_dir)
    core = msgspec.structs.replace(
        file_.core,
        checkpoints=tuple(s for s in disk.steps(run_dir) if s <= manifest.step),
        best=best if best is not None and best.step <= manifest.step else file_.core.best,
    )
    return Resolved(config, run_dir), Resumption(path, core, tally, tuple(notes))


def claim(resolved: Resolved) -> None:
    """Make this process the run's controller, from now on with this configuration."""
    run_dir = resolved.run_dir
    text = dump(resolved.config)
    if (run_dir / CONFIG_FILE).read_text(encoding="utf-8") != text:
        fresh = run_dir / f".{CONFIG_FILE}.new"
        fresh.write_text(text, encoding="utf-8", newline="")
        fresh.replace(run_dir / CONFIG_FILE)
    write_pid(run_dir)
    (run_dir / SUMMARY_FILE).unlink(missing_ok=True)  # it is not over any more


def _must_be_over(run_dir: Path) -> None:
    pid = read_pid(run_dir)
    if pid is None:
        return
    if is_alive(pid):
        raise PreflightError([f"{run_dir.name} still runs (pid {pid.pid}); end it first: libra stop {run_dir.name}"])
    if pid.host != own_pid().host:
        raise PreflightError(
            [
                f"{run_dir.name} was started on {pid.host}, so it cannot be told from here whether it still runs; resume it"
                f" there, or remove {run_dir / 'pid'} if it does not"
            ]
        )


def _differences(name: str, got: Any, was: Any) -> list[tuple[str, Any, Any]]:
    """(dotted name, value got, value before) of each leaf that is another one."""
    if isinstance(got, dict) and isinstance(was, dict):
        keys = dict.fromkeys([*was, *got])
        return [d for key in keys for d in _differences(f"{name}.{key}", got.get(key), was.get(key))]
    return [] if got == was else [(name, got, was)]


def _at(tables: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        tables = tables[key]
    return tables
