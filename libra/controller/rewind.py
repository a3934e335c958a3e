"""A run's journal as a film: what a live viewer would have seen at any moment, forwards and back.

    journal ──event──> core ──commands──> follower, turns, tally        snapshot(), detail(), news_since(): as of `now`

Going back starts the film again from its beginning, since a core does not run backwards; so does nothing else. A run that was
resumed has several reels; of one that was cut short, what lies behind the checkpoint is left out: the run lost it. What only
the live processes know (ages of heartbeats, what engines say of themselves) is None. A journal that ends in a torn record, or
whose last event the core refuses, ends there. Blocking: who plays it keeps it in a thread of its own.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import pairwise, takewhile
from math import inf
from pathlib import Path

import msgspec

from libra.checkpoint import content
from libra.config.schema import Config
from libra.control.hub import RECENT_NEWS
from libra.control.messages import News
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.controller.follow import Follower
from libra.controller.looks import RunLooks
from libra.controller.turns import Turns
from libra.controller.view import Looker
from libra.core import commands as c
from libra.core import events as e
from libra.errors import CoreError, JournalError
from libra.telemetry import segments
from libra.telemetry.journal import JournalReader
from libra.telemetry.saved_tally import SavedTally
from libra.telemetry.summary import Tally
from libra.telemetry.version import code_version
from libra.wire.messages import EngineStats


class _Reel:
    """One segment of the journal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        reader = JournalReader(directory)
        try:
            self.config = msgspec.json.decode(reader.head.config, type=Config)
        except (msgspec.ValidationError, msgspec.DecodeError) as x:
            raise JournalError(
                f"{directory}: its configuration does not fit this code's schema: {x}; it was written by "
                f"{reader.head.code}, this is {code_version()}"
            ) from x
        times = [event.t for event, _ in reader]
        self.begins, self.ends = (times[0], times[-1]) if times else (0.0, 0.0)
        self.until = inf
        """What happened later was lost."""

    def events(self) -> Iterator[e.AnyEvent]:
        return takewhile(lambda event: event.t <= self.until, (event for event, _ in JournalReader(self.directory)))


class Rewind:
    """The film of the run in `run_dir`, at its beginning. Raises JournalError where there is none that this code can play."""

    def __init__(self, run_dir: Path) -> None:
        self._reels = [_Reel(directory) for directory in segments.directories(run_dir)]
        for reel, later in pairwise(self._reels):
            reel.until = later.begins
        self.length_s = max(min(reel.ends, reel.until) for reel in self._reels)
        """When the last event happened, in seconds of the run's clock."""
        self.now = 0.0
        self.ended = False
        """No event is left."""
        self._start()

    @property
    def config(self) -> Config:
        """Of the reel that plays."""
        return self._reels[self._reel].config

    def _start(self) -> None:
        self._news: deque[News] = deque(maxlen=RECENT_NEWS)
        self._told = 0
        self._snapshots = 0
        self.now = 0.0
        self._load(0)

    def _load(self, reel: int) -> None:
        self._reel = reel
        directory, run = self._reels[reel].directory, self.config.run
        self._events: Iterator[e.AnyEvent] = self._reels[reel].events()
        self._next: e.AnyEvent | None = None
        self.core = segments.core_of(directory, self.config)
        self._tally = Tally(run.name, run.mode, run.seed)
        if reel:
            saved = content.decode(directory / segments.START).tally
            self._tally.resume(msgspec.msgpack.decode(saved, type=SavedTally))
        self._looks = RunLooks(self.config, self._tally)
        self._follower = Follower(self.core, self._publish, lambda: False)
        self._turns = Turns(self.core)
        self._looker = Looker(self.core, self._follower, self, {}, lambda: self.now, lambda: self.now)
        self.ended = False
        self._fetch()

    # --- what the looker asks of a screen

    @property
    def view(self):  # type: ignore[no-untyped-def]
        return self._looks.view

    @property
    def tally(self) -> Tally:
        return self._tally

    @property
    def stats(self) -> Mapping[int, EngineStats]:
        return {}

    # --- moving

    def step(self) -> bool:
        """One event further; False at the end."""
        event = self._next
        if event is None:
            return False
        self.now = max(self.now, event.t)
        self._handle(event)
        self._fetch()
        return True

    def advance(self, seconds: float) -> None:
        """So many seconds of the run's clock further, at most to the end."""
        self._until(self.now + max(0.0, seconds))

    def seek(self, seconds: float) -> None:
        """To that moment of the run's clock."""
        wanted = min(max(0.0, seconds), self.length_s)
        if wanted < self.now:
            self._start()
        self._until(wanted)

    def _until(self, t: float) -> None:
        while self._next is not None and self._next.t <= t:
            self.step()
        self.now = min(t, self.length_s) if self._next is not None else self.length_s

    def _fetch(self) -> None:
        self._next = next(self._events, None)
        if self._next is None and self._reel + 1 < len(self._reels):
            self._load(self._reel + 1)
        self.ended = self._next is None

    def _handle(self, event: e.AnyEvent) -> None:
        try:
            commands = self.core.handle(event)
        except CoreError:  # the run broke here, and so does the film
            self._events = iter(())
            return
        for observer in (self._tally, self._follower, self._turns):
            observer.event(event)
            for command in commands:
                observer.command(command)
        for command in commands:
            if isinstance(command, c.BatchConsumed):
                self._looks.consumed(self.now)
                self._looks.look(self.core, self.now)

    # --- looking

    def snapshot(self) -> Snapshot:
        self._looks.look(self.core, self.now)
        self._snapshots += 1
        return self._looker.snapshot(self._snapshots)

    def detail(self, trajectory: int) -> TrajectoryDetail:
        return self._turns.detail(trajectory, round(self.now, 4))

    def news_since(self, n: int) -> list[News]:
        """Those with a larger number, as far as they are remembered. Numbers begin again where the film does."""
        return [news for news in self._news if news.n > n]

    def _publish(self, topic, level, what, data) -> None:  # type: ignore[no-untyped-def]
        self._told += 1
        self._news.append(News(self._told, round(self.now, 4), topic, level, what, data))
