"""What there is to show: the newest state, what happened, how the link is. Filled by `app` from the feed, read by the views."""

from collections import deque
from typing import Literal

from msgspec import Struct

from libra.control.messages import News
from libra.control.snapshot import Snapshot, TrajectoryDetail
from tui.history import History

MOST_NEWS = 2000

Stage = Literal["connecting", "live", "lost", "over", "replay"]


class LinkState(Struct, frozen=True):
    """How the source is. `since`: monotonic seconds at which it became so."""

    stage: Stage
    what: str = ""
    since: float = 0.0


class Playing(Struct, frozen=True):
    """Where a replay stands; seconds of the run's clock."""

    now: float
    length_s: float
    playing: bool
    speed: float


class Model:
    def __init__(self, run: str, control: bool = False) -> None:
        self.run = run
        self.control = control
        """Orders may be given from here."""
        self.snapshot: Snapshot | None = None
        self.detail: TrajectoryDetail | None = None
        self.history = History()
        self.news: deque[News] = deque(maxlen=MOST_NEWS)
        self.missed = 0
        """News that the controller threw away because this view did not read in time."""
        self.link = LinkState("connecting")
        self.playing: Playing | None = None

    def take(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.history.take(snapshot)

    def hear(self, news: News) -> None:
        if self.news and news.n <= self.news[-1].n:
            if news.n > self.news[0].n:
                return
            self.news.clear()  # a replay that went back
        self.news.append(news)
