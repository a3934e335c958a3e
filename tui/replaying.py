"""A journal played as if it were live: a thread that owns the `Rewind`, and takes what the person wants from a bounded queue.

Play, stand, one event, seek, speed. Commands that come while a seek computes wait their turn; the newest seek wins.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct

from libra.control.messages import News
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.errors import LibraError
from tui.feed import Feed
from tui.model import Playing

SPEEDS = (1.0, 1024.0)
MOST_WANTS = 16


class Tape(Protocol):
    """What is played: `libra.controller.rewind.Rewind`. Seconds of the run's clock; blocking."""

    @property
    def length_s(self) -> float: ...
    @property
    def now(self) -> float: ...
    def snapshot(self) -> Snapshot: ...
    def detail(self, trajectory: int) -> TrajectoryDetail: ...
    def news_since(self, n: int) -> list[News]: ...
    def advance(self, seconds: float) -> None: ...
    def step(self) -> bool: ...
    def seek(self, seconds: float) -> None: ...


class Want(Struct, frozen=True):
    what: Literal["play", "step", "seek", "by", "speed"]
    value: float = 0.0


class Replay:
    def __init__(
        self,
        open_tape: Callable[[], Tape],
        feed: Feed,
        states_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        at_end: bool = False,
    ) -> None:
        """`at_end`: show how the run ended, and stand there."""
        self._open = open_tape
        self._feed = feed
        self._tick_s = 1 / states_per_s
        self._clock = clock
        self._playing = not at_end
        self._at_end = at_end
        self._speed = 1.0
        self._trajectory = -1
        self._news = 0
        self._wants: deque[Want] = deque(maxlen=MOST_WANTS)
        self._ready = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="libra-top-replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._ready:
            self._over = True
            self._ready.notify()

    def show(self, trajectory: int) -> None:
        self._trajectory = trajectory
        self.want(Want("speed", 1.0))  # so that it looks now, played or not

    def want(self, want: Want) -> None:
        with self._ready:
            self._wants.append(want)
            self._ready.notify()

    def _run(self) -> None:
        self._feed.say("connecting", "reading the journal")
        try:
            tape = self._open()
        except (LibraError, OSError) as e:
            self._feed.say("over", str(e))
            return
        self._feed.say("replay")
        tape.step()
        try:
            self._play(tape)
        except (LibraError, OSError) as e:
            self._feed.say("over", f"the replay stops at {tape.now:.0f} s: {e}")

    def _play(self, tape: Tape) -> None:
        self._tell(tape)
        if self._at_end:
            self._seek(tape, tape.length_s)
            self._tell(tape)
        last = self._clock()
        while True:
            with self._ready:
                if not (self._wants or self._over):
                    self._ready.wait(self._tick_s if self._playing else None)
                if self._over:
                    return
                wants = list(self._wants)
                self._wants.clear()
            for i, want in enumerate(wants):
                self._do(tape, want, superseded=want.what == "seek" and any(w.what == "seek" for w in wants[i + 1 :]))
            now = self._clock()
            if self._playing:
                tape.advance((now - last) * self._speed)
                if tape.now >= tape.length_s:
                    self._playing = False
            last = now
            self._tell(tape)

    def _do(self, tape: Tape, want: Want, *, superseded: bool) -> None:
        match want.what:
            case "play":
                if not self._playing and tape.now >= tape.length_s:
                    self._seek(tape, 0.0)
                self._playing = not self._playing
            case "step":
                self._playing = False
                tape.step()
            case "seek" if not superseded:
                self._seek(tape, want.value)
            case "by":
                self._seek(tape, tape.now + want.value * tape.length_s)
            case "speed":
                self._speed = min(max(self._speed * want.value, SPEEDS[0]), SPEEDS[1])
            case _:
                pass

    def _seek(self, tape: Tape, to: float) -> None:
        to = min(max(0.0, to), tape.length_s)
        if to < tape.now:
            self._news = 0
        self._feed.say("replay", f"going to {to:.0f} s")
        tape.seek(to)
        self._feed.say("replay")

    def _tell(self, tape: Tape) -> None:
        for news in tape.news_since(self._news):
            self._news = max(self._news, news.n)
            self._feed.put(news)
        if self._trajectory >= 0:
            self._feed.put(tape.detail(self._trajectory))
        self._feed.put(Playing(tape.now, tape.length_s, self._playing, self._speed))
        self._feed.put(tape.snapshot())
