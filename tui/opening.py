"""Which dashboard a run gets: live where its controller lives on this host, else its journal as a replay."""

from pathlib import Path

from libra.cli.runs import find_or_newest
from libra.config.rundir import is_alive, read_pid
from libra.errors import LibraError
from tui.app import Dashboard
from tui.desk import RunOffice
from tui.feed import Feed
from tui.model import Model
from tui.replaying import Replay, Tape
from tui.source import Live
from tui.terminal import Terminal


def open_dashboard(run: str | None, terminal: Terminal, *, control: bool, replay: bool, directory: Path) -> Dashboard:
    """RunGone where there is no such run. One that has ended is shown as it ended; with `replay`, from its beginning."""
    run_dir = find_or_newest(run, ended=True)
    pid = read_pid(run_dir)
    lives = pid is not None and is_alive(pid)
    feed = Feed()
    if lives and not replay:
        model = Model(run_dir.name, control)
        live = Live(run_dir, feed, terminal.states_per_s)
        return Dashboard(model, feed, live, terminal, RunOffice(run_dir) if control else None, directory)
    if control:
        why = "a replay cannot be changed" if replay else f"{run_dir.name} does not run here"
        raise LibraError(f"got --control, but {why}; leave --control out")
    model = Model(run_dir.name)
    played = Replay(lambda: _tape(run_dir), feed, terminal.states_per_s, at_end=not replay)
    return Dashboard(model, feed, played, terminal, None, directory)


def _tape(run_dir: Path) -> Tape:
    from libra.controller.rewind import Rewind  # not before it is needed: a live look has no use for the core

    return Rewind(run_dir)
