"""What viewers see: snapshots that are true, newest-only; news that are bounded; nothing that costs the run anything."""

from collections import Counter
from pathlib import Path

import anyio
import msgspec
import pytest
from control_parts import Room, link, small_config, until, viewer

from libra.config.schema import SchedulerConfig
from libra.control.hub import QUEUE_NEWS
from libra.control.messages import PROTOCOL, Hello, Missed, News, Refused, Watch, Welcome
from libra.control.snapshot import RESIDUAL_BINS, Snapshot
from libra.controller import follow

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("policy", ["least_loaded", "causal"])
def test_a_snapshot_tells_what_the_core_knows_at_any_moment(policy: str) -> None:
    room = Room(small_config(scheduler=SchedulerConfig(policy=policy)), fail_rate=0.05)
    core, seen_tail = room.shell.core, Counter[str]()
    while room.shell.end is None:
        room.step(37)
        s = room.control.hub._make(1)
        stages = core.rollout.stages()
        live = sum(stages.get(name, 0) for name in ("opening", "waiting", "generating", "acting"))
        assert s.tail_of == live
        assert sum(s.run.in_flight.get(name, 0) for name in ("opening", "waiting", "generating", "acting")) == live
        assert sum(b.in_flight for b in s.buckets) == stages.get("generating", 0)
        assert s.run.step == core.admission.done
        assert (s.allocation.trainer, s.allocation.rollout + s.allocation.lost) == (2, 2)
        assert [r.rank for r in s.ranks] == [1, 2, 3, 4]
        for row in s.tail:
            traj = core.rollout.trajectory(row.id)
            assert traj is not None
            assert (row.stage, row.turns, row.sampled_tokens) == (traj.stage, traj.turns, traj.sampled_tokens)
            assert 0 <= row.since_s <= row.age_s + 0.01
            assert row.residual_mean >= 0
            seen_tail[row.stage] += 1
            seen_tail["with a signal"] += bool(row.signal)
            seen_tail["retrying"] += row.retrying
        assert len({row.id for row in s.tail}) == len(s.tail) == min(live, 24)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(s), type=Snapshot) == s
    assert seen_tail["generating"]
    assert seen_tail["acting"]
    assert seen_tail["with a signal"]
    assert seen_tail["retrying"]
    assert len(s.run.rewards) == 6
    assert s.pace.train_s is not None
    assert s.pace.train_s > 0
    assert s.pace.rollout_s is not None
    assert s.ranks[0].busy_s > 0
    assert sum(e.sampled_tokens for e in s.engines) == s.run.tokens_sampled > 0


def test_histograms_hold_each_running_turn_once_and_the_tail_the_largest_and_the_oldest() -> None:
    room = Room(small_config(scheduler=SchedulerConfig(policy="causal")))
    follower, core = room.control.follower, room.shell.core
    for _ in range(60):
        room.step(20)
        running = core.rollout.stages().get("generating", 0)
        assert sum(follower.residuals(0)) == running
        assert len(follower.residuals(0)) == RESIDUAL_BINS
        tail = follower.tail(6)
        by_residual = sorted(follower.flights.values(), key=lambda f: -f.residual)
        if tail and by_residual[0].residual >= 1:
            assert max(follower.flights[t].bin for t in tail) == by_residual[0].bin
            assert next(iter(follower.flights)) in tail, "the oldest is there"
            began = follower.oldest_turn(0)
            assert began is None or began == min(f.since for f in follower.flights.values() if f.place == 0)


def test_a_run_whose_engines_die_can_be_looked_at() -> None:
    room = Room(fail_rate=0.05, kill_rate=0.01)
    while room.shell.end is None:
        room.step(11)
        s = room.control.hub._make(1)
        assert s.allocation.trainer + s.allocation.rollout + s.allocation.lost == 4
    assert any(a.level == "warning" and "is down" in a.what for a in s.run.alerts)


def test_looking_changes_nothing_of_the_run() -> None:
    config = small_config(scheduler=SchedulerConfig(policy="causal"))
    alone, watched = Room(config, seed=3), Room(config, seed=3)
    while watched.shell.end is None:
        watched.step(5)
        watched.control.hub._make(1)
        alone.step(5)
    assert watched.shell.commands == alone.shell.commands


async def test_a_viewer_gets_the_state_at_once_and_then_the_newest(tmp_path: Path) -> None:
    room = Room()
    room.step(100)
    async with room.open(tmp_path), viewer(tmp_path, Watch(4.0)) as peer:
        first = await peer.hear()
        assert isinstance(first, Snapshot)
        assert first.run.name == "job"
        assert first.t == pytest.approx(room.shell.now, abs=1e-3)
        room.step(100_000)  # the run's clock, which is also the hub's, goes far ahead
        await peer.say(Watch(4.0))
        second = await peer.hear()
        assert second.run.phase == "ended"
        assert second.n == first.n + 1, "nothing was built that nobody asked for"


async def test_nothing_is_built_or_worded_while_nobody_looks(tmp_path: Path) -> None:
    room = Room()
    async with room.open(tmp_path), link(tmp_path, "view"):
        room.step(100_000)
        await anyio.sleep(0.05)
        assert room.control.hub.built == 0
        assert not room.control.hub.wants("decision")


async def test_one_encoding_serves_all_viewers(tmp_path: Path) -> None:
    room = Room()
    room.step(100)
    async with (
        room.open(tmp_path),
        viewer(tmp_path, Watch(4.0)) as a,
        viewer(tmp_path, Watch(4.0)) as b,
        viewer(tmp_path, Watch(4.0)) as c,
    ):
        assert await a.hear() == await b.hear() == await c.hear()
        assert room.control.hub.built == 1


async def test_news_come_by_topic_and_a_late_viewer_is_told_the_past(tmp_path: Path) -> None:
    room = Room()
    room.step(100_000)
    async with room.open(tmp_path), viewer(tmp_path, Watch(0.0, ("batch", "report"))) as peer:
        news = [await peer.hear()]
        while "ended" not in news[-1].data:
            news.append(await peer.hear())
        assert all(isinstance(n, News) for n in news)
        assert {n.topic for n in news} == {"batch", "report"}
        assert [n.data["batch"] for n in news if n.topic == "batch"] == list(range(6))
        assert [n.n for n in news] == sorted(n.n for n in news)
        await peer.say(Watch(0.0, ("batch", "rank")))
        assert {(await peer.hear()).topic for _ in range(4)} == {"rank"}, "what was told is not told again"


async def test_decisions_come_on_request_only(tmp_path: Path) -> None:
    room = Room(small_config(scheduler=SchedulerConfig(policy="causal")))
    async with room.open(tmp_path), viewer(tmp_path, Watch(0.0, ("decision",))) as peer:
        await until(lambda: room.control.hub.wants("decision"))
        room.step(200)
        news = await peer.hear()
        assert news.topic == "decision"
        assert news.data["engine"] in (0, 1)
        assert "engine" in news.what


async def test_a_viewer_that_never_reads_costs_the_run_nothing(tmp_path: Path) -> None:
    room = Room(small_config(scheduler=SchedulerConfig(policy="causal")))
    hub = room.control.hub
    topics = ("report", "batch", "rank", "decision")
    async with (
        room.open(tmp_path),
        viewer(tmp_path, Watch(4.0, topics), small=True) as stopped,
        viewer(tmp_path, Watch(0.0, ("batch",))) as reader,
    ):
        await until(lambda: len(hub.viewers) == 2 and all(v.watch.topics for v in hub.viewers))
        stuck = hub.viewers[0]
        for n in range(10_000):
            hub.publish("decision", "info", "x" * 200, {"n": n})
            if n % 1000 == 999:
                await anyio.sleep(0.01)
                room.shell.now += 1.0  # by the run's clock it is due again and again
        assert hub.built <= 2, "nothing is built for one who has not taken the last"
        assert stuck.missed > 8_000
        assert len(stuck._queue) <= QUEUE_NEWS
        assert stuck.missed + stuck.sent_news + len(stuck._queue) == 10_000
        room.step(100_000)
        assert [(await reader.hear()).data["batch"] for _ in range(6)] == list(range(6)), "others get everything"
        assert room.shell.end is not None
        missed = await stopped.hear_until(Missed)
        assert missed.news > 0, "once it reads again it is told what it missed"


async def test_another_protocol_is_refused_by_name(tmp_path: Path) -> None:
    room = Room()
    async with room.open(tmp_path):
        for which in ("view", "control"):
            async with link(tmp_path, which, greet=False) as peer:
                await peer.say(Hello(PROTOCOL + 1, "a newer libra"))
                refused = await peer.hear()
                assert isinstance(refused, Refused)
                assert f"speaks protocol {PROTOCOL + 1}, this run speaks {PROTOCOL}" in refused.reason
                assert await peer.ended()
        async with link(tmp_path, "view", greet=False) as peer:
            await peer.say(Hello(PROTOCOL))
            assert await peer.hear() == Welcome(PROTOCOL, "job", "beef", 0)


async def test_a_fault_while_a_snapshot_is_made_costs_that_link_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    room = Room()
    async with room.open(tmp_path):
        with monkeypatch.context() as patch:
            patch.setattr(follow.Follower, "ask", broken)
            async with viewer(tmp_path, Watch(1.0)) as peer:
                assert await peer.ended()
        assert any("ZeroDivisionError: a fault of ours" in line for line in room.log)
        async with viewer(tmp_path, Watch(1.0)) as peer:
            assert isinstance(await peer.hear(), Snapshot)
