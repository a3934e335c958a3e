"""Snapshots and news for any number of viewers, at a cost that does not depend on how they behave.

    publish(news) ──> recent ring ──> each viewer's bounded queue (the oldest goes, and is counted)
    a viewer's writer ── frame() ──> the newest snapshot, built and encoded at most `MOST_SNAPSHOTS_PER_S` times a second

Snapshots are pulled: a viewer's writer asks for one when it is due *and* the last bytes are gone. So there is no queue of
snapshots; nothing is built for a viewer that does not read, nor while nobody looks; and what is sent is new.
"""

from collections import deque
from collections.abc import Callable
from math import inf

import anyio

from libra.control.messages import MOST_SNAPSHOTS_PER_S, STANDING_TOPICS, Missed, News, Topic, Watch
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.wire.frames import pack

QUEUE_NEWS = 512
"""News that wait for one viewer."""
RECENT_NEWS = 256
"""What a new viewer is told of the past."""
FRESH_S = 1 / MOST_SNAPSHOTS_PER_S
"""A snapshot younger than this serves the next viewer too."""


class Viewer:
    """One viewer's wishes and queue. `publish` never waits for it."""

    def __init__(self) -> None:
        self.watch = Watch(snapshots_per_s=0.0)
        self.arrived = anyio.Event()
        self.due = inf
        """When it may have the next snapshot, by the run's clock."""
        self.sent_snapshots = 0
        self.sent_news = 0
        self.missed = 0
        """News that it never got, in all."""
        self._unsaid = 0
        self._queue: deque[bytes] = deque()
        self._reply = b""
        self._reply_taken = anyio.Event()

    @property
    def interval_s(self) -> float:
        """Seconds between snapshots; infinite for none."""
        rate = min(self.watch.snapshots_per_s, MOST_SNAPSHOTS_PER_S)
        return 1 / rate if rate > 0 else inf

    def put(self, frame: bytes) -> None:
        if len(self._queue) >= QUEUE_NEWS:
            self._queue.popleft()
            self._unsaid += 1
            self.missed += 1
        self._queue.append(frame)
        self.arrived.set()

    async def reply(self, frame: bytes) -> None:
        """Answer a request; over when the writer has taken it, so who asks and does not read is not heard further."""
        self._reply, self._reply_taken = frame, anyio.Event()
        self.arrived.set()
        await self._reply_taken.wait()

    def take(self) -> list[bytes]:
        """All that waits, behind an answer and a word on what was missed; then it waits for the next."""
        self.arrived = anyio.Event()
        frames = [self._reply] if self._reply else []
        self._reply = b""
        self._reply_taken.set()
        frames += [pack(Missed(self._unsaid))] if self._unsaid else []
        frames += self._queue
        self.sent_news += len(self._queue)
        self._unsaid = 0
        self._queue.clear()
        return frames


class Hub:
    """`make(n)` gives the n-th snapshot, `detail(traj)` one trajectory turn by turn; `clock` is the run's."""

    def __init__(
        self,
        make: Callable[[int], Snapshot],
        detail: Callable[[int], TrajectoryDetail],
        clock: Callable[[], float],
    ) -> None:
        self.clock = clock
        self.viewers: list[Viewer] = []
        self.built = 0
        """Snapshots made so far."""
        self._make = make
        self._detail = detail
        self._frame = b""
        self._built_at = -inf
        self._news = 0
        self._recent: deque[tuple[Topic, bytes]] = deque(maxlen=RECENT_NEWS)
        self._wanted: frozenset[Topic] = frozenset()

    def wants(self, topic: Topic) -> bool:
        """Whether it is worth while to word news of this topic."""
        return topic in self._wanted or topic in STANDING_TOPICS

    def publish(
        self, topic: Topic, level: str, what: str, data: dict[str, str | int | float | bool | None] | None = None
    ) -> None:
        """Tell all who asked for the topic; encoded once."""
        self._news += 1
        frame = pack(News(self._news, round(self.clock(), 4), topic, level, what, data or {}))
        if topic in STANDING_TOPICS:
            self._recent.append((topic, frame))
        if topic in self._wanted:
            for viewer in self.viewers:
                if topic in viewer.watch.topics:
                    viewer.put(frame)

    def frames(self, watch: Watch) -> list[bytes]:
        """What a viewer that is due gets."""
        detail = [pack(self._detail(watch.trajectory))] if watch.trajectory >= 0 else []
        return [self.frame(), *detail]

    def frame(self) -> bytes:
        """The newest snapshot as a frame."""
        now = self.clock()
        if now - self._built_at >= FRESH_S:
            self.built += 1
            self._frame = pack(self._make(self.built))
            self._built_at = now
        return self._frame

    def join(self, viewer: Viewer) -> None:
        self.viewers.append(viewer)

    def leave(self, viewer: Viewer) -> None:
        self.viewers.remove(viewer)
        self._count()

    def watch(self, viewer: Viewer, watch: Watch) -> None:
        """The viewer's new wishes: a snapshot at once, and what is remembered of topics that it did not follow before."""
        new = set(watch.topics) - set(viewer.watch.topics)
        viewer.watch = watch
        viewer.due = self.clock() if watch.snapshots_per_s > 0 else inf
        self._count()
        for topic, frame in self._recent:
            if topic in new:
                viewer.put(frame)
        viewer.arrived.set()

    def _count(self) -> None:
        self._wanted = frozenset(topic for viewer in self.viewers for topic in viewer.watch.topics)
