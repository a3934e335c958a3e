"""The rows of ranks and engines, made in one pass, against their definition spelled out rank by rank and engine by engine."""

from collections import Counter
from random import Random

import pytest
from control_parts import Room

from libra.config.schema import AllocationConfig, BucketConfig, Config, EvalConfig, RolloutConfig, RunConfig
from libra.control.snapshot import EngineRow, RankRow
from libra.controller.monitor import Progress, Watched
from libra.core import events as e
from libra.core.fleet import NOBODY, DeviceRank, Engine
from libra.core.orders import MoveRanks
from libra.wire.messages import EngineStats

TRAINERS = 2


def mixed_config() -> Config:
    return Config(
        run=RunConfig(name="job", steps=6),
        allocation=AllocationConfig(trainer=TRAINERS, gradient=2),
        bucket=(
            BucketConfig(name="narrow", engines=3, max_batch=8, kv_tokens=2000),
            BucketConfig(name="wide", tp=2, engines=2, max_batch=8, kv_tokens=4000),
        ),
        rollout=RolloutConfig(groups_per_batch=3, samples_per_group=4),
        eval=EvalConfig(at_start=False, at_end=False),
    )


def rank_row(room: Room, device: DeviceRank) -> RankRow:
    fleet, follower, alive = room.shell.core.fleet, room.control.follower, room.linked.get(device.rank)
    unit = fleet.unit(device.unit)
    host, kind = follower.hosts.get(device.rank, ("", ""))
    role = alive.roles.get(unit.starts.get(device.rank, 0)) if alive and unit else None
    if device.status != "here":
        does = "lost" if device.status == "lost" else "spare"
    elif device.move:
        does = "moving"
    else:
        does = "spare" if unit is None or unit.state in ("idle", "ending") else unit.role
    return RankRow(
        rank=device.rank,
        host=host,
        device=kind,
        role=does,
        unit=device.unit,
        bucket=room.shell.config.bucket[unit.bucket].name if unit and unit.bucket >= 0 else "",
        status=unit.state if unit and device.status == "here" else device.status,
        seen_s=max(0.0, room.shell.now - alive.seen) if alive else None,
        doing=role.doing if role else "",
        beats=role.beats if role else -1,
        busy_s=follower.busy_s.get(device.rank, 0.0),
        restarts=unit.restarts if unit else 0,
        move=device.move,
    )


def engine_row(room: Room, engine: Engine) -> EngineRow:
    load, said = engine.load, room.gauges.stats.get(engine.id)
    return EngineRow(
        id=engine.id,
        bucket=room.shell.config.bucket[engine.bucket].name,
        ranks=engine.ranks,
        up=load.up,
        version=load.version,
        installing=engine.asked if engine.command and engine.asked > engine.version else -1,
        running=said.running if said else load.running,
        waiting=said.waiting if said else 0,
        kv=(said.kv_tokens if said else load.reserved_tokens) / load.kv_tokens,
        kv_tokens=load.kv_tokens,
        outstanding_tokens=load.outstanding_tokens,
        residual_tokens=load.residual_tokens,
        sampled_tokens=room.control.follower.engine_tokens.get(engine.id, 0),
        prefilled_tokens=said.prefilled_tokens if said else 0,
        reused_tokens=said.reused_tokens if said else 0,
        preemptions=said.preemptions if said else 0,
    )


def check(room: Room, seen: Counter[str]) -> None:
    fleet, s = room.shell.core.fleet, room.control.hub._make(1)
    assert s.ranks == tuple(rank_row(room, device) for device in fleet.ranks.values())
    assert s.engines == tuple(engine_row(room, engine) for engine in fleet.engines.values())
    a = s.allocation
    counted = {role: getattr(a, role) for role in ("trainer", "rollout", "gradient", "moving", "spare", "lost")}
    assert counted == {role: sum(r.role == role for r in s.ranks) for role in counted}
    seen.update(row.role for row in s.ranks)
    seen.update(row.bucket for row in s.ranks)
    seen["seen"] += sum(row.seen_s is not None for row in s.ranks)
    seen["not seen"] += sum(row.seen_s is None for row in s.ranks)
    seen["beats"] += sum(row.beats >= 0 for row in s.ranks)
    seen["installing"] += sum(row.installing >= 0 for row in s.engines)
    seen["no unit"] += sum(fleet.unit(row.unit) is None for row in s.ranks)
    seen["restarted"] += sum(row.restarts > 0 for row in s.ranks)


def hear(room: Room, random: Random) -> None:
    """Heartbeats and engines' words as they may be: of some ranks and engines, of roles that are over, from a later clock."""
    fleet = room.shell.core.fleet
    room.linked.clear()
    for rank, device in fleet.ranks.items():
        unit = fleet.unit(device.unit)
        start = unit.starts.get(rank, 1) if unit else 1  # commands count from 1
        if random.random() < 0.8:
            role = Progress(0.0, random.randrange(100), "generate")
            seen = room.shell.now + random.uniform(-3, 0.5)
            room.linked[rank] = Watched(lambda: None, seen, {start + random.choice((0, 0, 1)): role})
    room.gauges.stats.clear()
    for id in fleet.engines:
        if random.random() < 0.5:
            room.gauges.stats[id] = EngineStats(0, *[random.randrange(1000) for _ in range(8)])


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_what_they_are_defined_to_be_while_ranks_move_and_die(seed: int) -> None:
    room, random, seen = Room(mixed_config(), seed=seed, kill_rate=0.01), Random(seed), Counter[str]()
    for moment in range(120):
        room.step(10)
        hear(room, random)
        check(room, seen)
        if moment == 20:
            units = room.shell.core.fleet.units()
            orders = MoveRanks(units[-1].ranks, "rollout", "narrow"), MoveRanks(units[0].ranks, "spare")
            for id, order in enumerate(orders):
                room.shell.at(0.0, e.OrderGiven, id=f"{id}", author="ann", expected_epoch=None, order=order)
    wanted = ("trainer", "rollout", "gradient", "moving", "spare", "narrow", "wide", "seen", "not seen", "beats")
    assert not [what for what in (*wanted, "installing") if not seen[what]]


def test_rows_are_what_they_are_defined_to_be_in_any_state_of_ranks_and_units() -> None:
    """Also in those that no run of the shell comes through at the moment of a look."""
    room, random, seen = Room(mixed_config()), Random(0), Counter[str]()
    room.step(150)
    fleet = room.shell.core.fleet
    for _ in range(200):
        for device in fleet.ranks.values():
            device.status = random.choice(("here", "here", "here", "absent", "lost"))
            device.move = random.choice((0, 0, 0, 7))
            if device.rank > TRAINERS:
                device.unit = random.choice((*[unit.id for unit in fleet.units()], NOBODY, 99))
        for unit in fleet.units():
            unit.state = random.choice(
                ("idle", "starting", "forming", "fetching", "ready", "serving", "closing", "ending")
            )
            unit.restarts = random.randrange(3)
        hear(room, random)
        check(room, seen)
    assert {"trainer", "rollout", "gradient", "moving", "spare", "lost", "no unit", "restarted"} <= set(+seen)
