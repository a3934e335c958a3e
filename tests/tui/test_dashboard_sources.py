"""Where states come from: a real control room that goes and comes back, a played tape, and a worker that misbehaves."""

import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from control_parts import Room  # of tests/control
from tui_parts import detail, news, picture, state, text

from libra.config.rundir import write_pid
from libra.control.hub import QUEUE_NEWS
from libra.control.messages import News
from libra.control.price import Price
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.control.state import LiveState
from libra.core.orders import Undo
from libra.errors import JournalError, LibraError
from tui.feed import Feed
from tui.model import Model
from tui.replaying import Replay, Want
from tui.source import Live
from tui.ui import SCREENS
from tui.whatif import Worker

DEADLINE_S = 30.0


async def until(feed: Feed, model: Model, condition) -> None:
    with anyio.fail_after(DEADLINE_S):
        while True:
            feed.give(model)
            if condition():
                return
            await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_lost_link_is_told_and_taken_up_again_and_the_last_state_stays(tmp_path: Path) -> None:
    room, feed, model = Room(), Feed(), Model("run")
    room.step(200)
    live = Live(tmp_path / "run", feed, 4.0, silence_s=5.0)
    async with room.open(tmp_path, abrupt=True):
        write_pid(tmp_path / "run")
        live.start()
        await until(feed, model, lambda: model.link.stage == "live" and model.snapshot)
    await until(feed, model, lambda: model.link.stage == "lost")
    assert model.snapshot is not None
    again = Room()
    again.step(300)
    async with again.open(tmp_path, abrupt=True):
        await until(feed, model, lambda: model.link.stage == "live" and model.snapshot.t == round(again.shell.now, 4))
        live.stop()


@pytest.mark.anyio
async def test_the_end_of_a_run_is_told(tmp_path: Path) -> None:
    room, feed, model = Room(), Feed(), Model("run")
    live = Live(tmp_path / "run", feed, 4.0)
    async with room.open(tmp_path, abrupt=True):
        live.start()
        await until(feed, model, lambda: model.snapshot)
    await until(feed, model, lambda: model.link.stage == "over")


@pytest.mark.anyio
async def test_news_that_this_view_was_too_slow_for_are_counted_and_told(tmp_path: Path) -> None:
    room, feed, model = Room(), Feed(), Model("run")
    hub = room.control.hub
    live = Live(tmp_path / "run", feed, 4.0)
    async with room.open(tmp_path, abrupt=True):
        live.start()
        await until(feed, model, lambda: model.link.stage == "live" and hub.wants("report"))
        assert "missed" not in text(picture(model, "events"))
        for burst, missed in enumerate((488, 976)):
            for n in range(QUEUE_NEWS + 488):  # at once: its writer has no chance between them
                hub.publish("report", "info", f"burst {burst} news {n}")
            await until(
                feed, model, lambda missed=missed: model.missed == missed and len(model.news) == missed // 488 * 512
            )
            assert f"{missed} news missed: this view could not keep up" in text(picture(model, "events"))
            for screen in SCREENS:
                assert f"live, {missed} news missed" in text(picture(model, screen)).splitlines()[0]
        live.stop()


class Reel:
    """A tape of 100 s with an event a second."""

    length_s = 100.0

    def __init__(self) -> None:
        self.now = 0.0

    def snapshot(self) -> Snapshot:
        return state(int(self.now * 2) + 1)

    def detail(self, trajectory: int) -> TrajectoryDetail:
        return detail(trajectory)

    def news_since(self, n: int) -> list[News]:
        return [news(i) for i in range(n + 1, int(self.now) + 1)]

    def advance(self, seconds: float) -> None:
        self.now = min(self.length_s, self.now + seconds)

    def step(self) -> bool:
        self.now = min(self.length_s, self.now + 1.0)
        return self.now < self.length_s

    def seek(self, seconds: float) -> None:
        self.now = seconds


@pytest.mark.anyio
async def test_a_replay_plays_stands_steps_seeks_and_changes_its_speed() -> None:
    feed, model = Feed(), Model("run")
    replay = Replay(Reel, feed, 50.0)
    replay.start()
    await until(feed, model, lambda: model.link.stage == "replay" and model.playing and model.playing.now > 1.1)
    replay.want(Want("play"))
    await until(feed, model, lambda: not model.playing.playing)
    stood = model.playing.now
    replay.want(Want("step"))
    await until(feed, model, lambda: model.playing.now == stood + 1.0)
    replay.want(Want("seek", 40.0))
    await until(feed, model, lambda: model.playing.now == 40.0 and len(model.news) == 40)
    replay.want(Want("by", -0.2))
    await until(feed, model, lambda: model.playing.now == 20.0 and len(model.news) == 20)
    replay.want(Want("speed", 1e6))
    replay.want(Want("play"))
    await until(feed, model, lambda: model.playing.now == 100.0 and not model.playing.playing)
    replay.want(Want("play"))  # at the end: from the beginning
    await until(feed, model, lambda: model.playing.now < 100.0 and model.playing.playing)
    replay.stop()


@pytest.mark.anyio
async def test_a_run_that_has_ended_opens_as_it_ended() -> None:
    feed, model = Feed(), Model("run")
    replay = Replay(Reel, feed, 50.0, at_end=True)
    replay.start()
    await until(feed, model, lambda: model.playing is not None and model.playing.now == Reel.length_s)
    assert not model.playing.playing  # type: ignore[union-attr]
    replay.want(Want("play"))  # from the beginning
    await until(feed, model, lambda: model.playing.now < 50.0 and model.playing.playing)
    replay.stop()


@pytest.mark.anyio
async def test_a_run_without_a_journal_says_so() -> None:
    def none() -> Reel:
        raise JournalError("there is no journal")

    feed, model = Feed(), Model("run")
    Replay(none, feed, 10.0).start()
    await until(feed, model, lambda: model.link.stage == "over")
    assert model.link.what == "there is no journal"


def test_a_feed_keeps_the_newest_state_and_bounded_news() -> None:
    feed, model = Feed(), Model("run")
    waked: list[int] = []
    feed.wake = lambda: waked.append(1)
    for n in range(1, 5001):
        feed.put(state(1) if n < 5000 else state(7))
        feed.put(news(n))
    assert len(waked) == 1
    feed.give(model)
    assert model.snapshot is not None
    assert model.snapshot.n == 7
    assert [model.news[0].n, model.news[-1].n, len(model.news)] == [3001, 5000, 2000]
    feed.put(news(5001))
    assert len(waked) == 2


LIVE = LiveState(1.0, 4, 1, b"{}", (), (), {}, None, None, (), ())
ECHO = """
import struct, sys, msgspec
while head := sys.stdin.buffer.read(4):
    sys.stdin.buffer.read(struct.unpack(">I", head)[0])
    out = msgspec.msgpack.encode({"valid": True, "throughput_ratio": 1.5, "new_field": 1})
    sys.stdout.buffer.write(struct.pack(">I", len(out)) + out)
    sys.stdout.buffer.flush()
"""


@pytest.mark.process
def test_a_worker_answers_and_is_gone_after_close() -> None:
    worker = Worker((sys.executable, "-c", ECHO))
    assert worker.price(LIVE, (Undo(),)) == Price(True, "", 1.5)
    process = worker._process
    assert worker.price(LIVE, (Undo(),)).valid
    assert worker._process is process
    worker.close()
    assert process is not None
    assert process.poll() is not None


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit", "has ended"),
        ("import time; time.sleep(60)", "gave no answer within 0.5 s"),
        (
            "import sys, time; sys.stdout.buffer.write(b'x' * 8); sys.stdout.flush(); time.sleep(60)",
            "announces 2021161080 bytes",
        ),
    ],
)
def test_a_worker_that_misbehaves_is_killed_and_started_again(code: str, why: str) -> None:
    worker = Worker((sys.executable, "-c", code), answer_s=0.5 if "0.5" in why else 30.0)
    big = msgspec.structs.replace(LIVE, config=b"x" * 1_000_000)
    for _ in range(2):
        with pytest.raises(LibraError, match=why):
            worker.price(big if "0.5" in why else LIVE, ())
        assert worker._process is None
