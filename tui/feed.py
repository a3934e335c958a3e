"""The mailbox between a source's thread and the event loop: only the newest state is kept, and a bounded number of news.

Who waits: nobody. A loop that is slow skips states; news beyond MOST_NEWS lose their oldest. `wake` is called from the source's
thread whenever there is something new, once until it was taken.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from libra.control.messages import Missed, News
from libra.control.snapshot import Snapshot, TrajectoryDetail
from tui.model import MOST_NEWS, LinkState, Model, Playing, Stage


class Feed:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._clock = clock
        self._lock = threading.Lock()
        self._news: deque[News] = deque(maxlen=MOST_NEWS)
        self._missed = 0
        self._snapshot: Snapshot | None = None
        self._detail: TrajectoryDetail | None = None
        self._playing: Playing | None = None
        self._link: LinkState | None = None
        self._waked = False

    def put(self, word: Snapshot | TrajectoryDetail | News | Missed | Playing) -> None:
        with self._lock:
            match word:
                case Snapshot():
                    self._snapshot = word
                case TrajectoryDetail():
                    self._detail = word
                case News():
                    self._news.append(word)
                case Missed():
                    self._missed += word.news
                case Playing():
                    self._playing = word
        self._call()

    def say(self, stage: Stage, what: str = "") -> None:
        """How the link is from now on."""
        with self._lock:
            self._link = LinkState(stage, what, self._clock())
        self._call()

    def give(self, model: Model) -> None:
        """Everything new into the model. On the loop."""
        with self._lock:
            self._waked = False
            snapshot, detail, link, playing = self._snapshot, self._detail, self._link, self._playing
            self._snapshot = self._detail = self._link = self._playing = None
            news = list(self._news)
            self._news.clear()
            model.missed += self._missed
            self._missed = 0
        for word in news:
            model.hear(word)
        if link is not None:
            model.link = link
        if playing is not None:
            model.playing = playing
        if snapshot is not None:
            model.take(snapshot)
        if detail is not None:
            model.detail = detail

    def _call(self) -> None:
        with self._lock:
            wake = not self._waked
            self._waked = True
        if wake:
            self.wake()
