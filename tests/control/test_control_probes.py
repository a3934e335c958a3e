"""What a viewer asks for one by one: drafts of orders, one trajectory turn by turn, the state that a simulation starts from."""

from pathlib import Path

import msgspec
import pytest
from control_parts import Room, link, small_config, viewer

from libra.config.schema import Config, SchedulerConfig
from libra.control.messages import Draft, DraftAnswer, News, StateRequest, Watch
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.control.state import LiveState
from libra.core import commands as c
from libra.core import events as e
from libra.core.orders import Allocate, CancelTrajectory, MoveRanks

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def busy(steps: int = 200, **shell: float) -> Room:
    room = Room(small_config(scheduler=SchedulerConfig(policy="causal")), **shell)
    room.step(steps)
    return room


async def test_a_draft_is_answered_by_the_cores_own_rules_and_changes_nothing(tmp_path: Path) -> None:
    room = busy()
    epoch, commands = room.shell.core.fleet.epoch, len(room.shell.commands)
    async with room.open(tmp_path), link(tmp_path, "view") as peer:
        await peer.say(Draft("a", Allocate(gradient=1)))
        good = await peer.hear()
        assert good == DraftAnswer("a", True, "", ("engine 1 -> replica of rank 4",), epoch) or good.effects == (
            "engine 0 -> replica of rank 3",
        )
        await peer.say(Draft("b", MoveRanks((3, 4), "gradient")))
        bad = await peer.hear()
        assert not bad.valid
        assert "no engine would be left" in bad.reason
        await peer.say(Draft("c", CancelTrajectory(10**6)))
        assert "not in flight" in (await peer.hear()).reason
    assert (room.shell.core.fleet.epoch, len(room.shell.commands)) == (epoch, commands)


async def test_a_watched_trajectory_follows_each_snapshot_turn_by_turn(tmp_path: Path) -> None:
    room = busy()
    flights = room.control.turns._records
    id = max(flights, key=lambda t: len(flights[t].turns))
    async with room.open(tmp_path), viewer(tmp_path, Watch(4.0, trajectory=id)) as peer:
        assert isinstance(await peer.hear(), Snapshot)
        detail = await peer.hear()
        assert isinstance(detail, TrajectoryDetail)
        assert detail.found
        traj = room.shell.core.rollout.trajectory(id)
        assert traj is not None
        assert (detail.prompt, detail.sample, detail.stage) == (traj.group.prompt, traj.sample, traj.stage)
        assert sum(t.sampled_tokens for t in detail.turns) == traj.sampled_tokens
        assert all(t.reason for t in detail.turns)
        assert [t.turn for t in detail.turns] == list(range(len(detail.turns)))
        await peer.say(Watch(4.0, trajectory=10**6))
        detail = await peer.hear_until(TrajectoryDetail)
        assert (detail.id, detail.found) == (10**6, False)


def test_records_agree_with_the_core_whatever_happens_and_end_with_their_rewards() -> None:
    room = Room(small_config(scheduler=SchedulerConfig(policy="causal")), fail_rate=0.05, kill_rate=0.02)
    shell, turns = room.shell, room.control.turns
    while shell.end is None:
        room.step(23)
        for id in list(turns._records):
            detail, traj = turns.detail(id, shell.now), shell.core.rollout.trajectory(id)
            assert traj is not None
            assert sum(t.sampled_tokens for t in detail.turns) == traj.sampled_tokens
            assert sum(t.seconds is not None for t in detail.turns) == traj.turns
            if traj.live and detail.path:
                assert sum(node.share for node in detail.path) == pytest.approx(1.0, abs=0.01)
    rewards = {x.traj: x.reward for x in shell.events if isinstance(x, e.EpisodeEnded)}
    kept = [turns.detail(id, shell.now) for id in turns._over]
    assert kept
    assert all(d.reward == rewards[d.id] for d in kept if d.stage == "ended")
    assert any(d.stage == "given up" for d in kept)
    assert not turns._records


async def test_a_live_state_holds_what_is_under_way_and_how_the_last_ones_went(tmp_path: Path) -> None:
    room = busy(700)
    async with room.open(tmp_path), link(tmp_path, "view") as peer:
        await peer.say(StateRequest())
        state = await peer.hear()
    assert isinstance(state, LiveState)
    core = room.shell.core
    assert msgspec.json.decode(state.config, type=Config) == core.config
    assert [(u.bucket, u.ranks) for u in state.units] == [(0, (3,)), (0, (4,))]
    live = [t for t in core.rollout._trajectories.values() if t.live]
    assert sum(w.sampled_tokens for w in state.under_way) == sum(t.sampled_tokens for t in live)
    generated = [x for x in room.shell.commands if isinstance(x, c.Generate)]
    assert state.ended
    assert generated
    assert all(spent.sampled_tokens >= 1 for ended in state.ended for spent in ended.turns)


async def test_who_asks_and_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    room = busy(700)
    async with room.open(tmp_path, abrupt=True), link(tmp_path, "view", small=True) as deaf:
        for _ in range(50):
            await deaf.say(StateRequest())
        async with viewer(tmp_path, Watch(4.0, ("batch",))) as peer:
            assert isinstance(await peer.hear(), Snapshot | News)
