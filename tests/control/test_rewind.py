"""A journal as a film: the same snapshots as a live viewer's, forwards, back, and up to where a run broke."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from control_parts import Room, small_config

from libra.config.schema import SchedulerConfig
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.controller.rewind import Rewind
from libra.errors import JournalError
from libra.telemetry.journal import DIRECTORY, Head, JournalWriter


class Filmed(Room):
    """A run whose journal is written, and that is looked at now and then."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(small_config(scheduler=SchedulerConfig(policy="causal")), fail_rate=0.03)
        self.run_dir = run_dir
        run_dir.mkdir()
        self.seen: list[Snapshot] = []
        self.events: list[int] = []
        """Events before each of these."""
        self.details: list[TrajectoryDetail] = []
        with contextlib.closing(JournalWriter(run_dir / DIRECTORY, Head.of(self.shell.config, "beef"))) as journal:
            core, handle = self.shell.core, self.shell.core.handle

            def recorded(event):  # type: ignore[no-untyped-def]
                journal.event(event)
                commands = handle(event)
                journal.commands(commands)
                return commands

            core.handle = recorded  # type: ignore[method-assign]
            while self.shell.end is None:
                self.step(41)
                self.seen.append(self.control.hub._make(len(self.seen) + 1))
                self.events.append(len(self.shell.events))
                if self.seen[-1].tail:
                    self.details.append(self.control.turns.detail(self.seen[-1].tail[0].id, round(self.shell.now, 4)))


def same(film: Snapshot, live: Snapshot) -> bool:
    """In all but what only live processes know, and rates by the clock of whoever looked."""
    replace = msgspec.structs.replace
    runs = [replace(s.run, eta_s=None, tokens_per_s=0.0, progress=0.0, label="") for s in (film, live)]
    return replace(film, n=0, run=runs[0]) == replace(live, n=0, run=runs[1])


def test_the_film_shows_what_a_live_viewer_saw(tmp_path: Path) -> None:
    live = Filmed(tmp_path / "run")
    film = Rewind(live.run_dir)
    assert film.length_s == live.shell.now
    details = iter(live.details)
    played = 0
    for seen, events in zip(live.seen, live.events, strict=True):
        while played < events:
            assert film.step()
            played += 1
        shown = film.snapshot()
        assert same(shown, seen)
        if seen.tail:
            assert film.detail(seen.tail[0].id) == next(details)
    assert film.news_since(0)[-1].what == "the run ends: all 6 batches are consumed"


def test_it_can_be_wound_back_and_forth(tmp_path: Path) -> None:
    live = Filmed(tmp_path / "run")
    film = Rewind(live.run_dir)
    film.seek(live.seen[4].t + 1e-4)
    early = film.snapshot()
    film.seek(film.length_s)
    assert film.ended
    assert film.snapshot().run.phase == "ended"
    film.seek(live.seen[4].t + 1e-4)
    assert msgspec.structs.replace(film.snapshot(), n=0, run=early.run) == msgspec.structs.replace(early, n=0)
    film.advance(1e9)
    assert film.ended
    assert film.now == film.length_s


def test_a_torn_journal_plays_up_to_its_last_whole_event(tmp_path: Path) -> None:
    live = Filmed(tmp_path / "run")
    file = sorted((live.run_dir / DIRECTORY).iterdir())[-1]
    whole = Rewind(live.run_dir).length_s
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    film = Rewind(live.run_dir)
    assert 0 < film.length_s < whole
    film.seek(film.length_s)
    assert film.snapshot().run.phase == "training"


def test_a_directory_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="holds no journal"):
        Rewind(tmp_path)
