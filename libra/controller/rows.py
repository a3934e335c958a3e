"""The rows of a snapshot that grow with the job: one for each rank, one for each engine.

Each function is one pass. What the ranks of a unit share is looked up once a unit, and a row is one struct from values at
hand: at 1,024 ranks these passes are most of what a snapshot costs the controller's loop (`tests/bench/control.py`). Called
by `libra.controller.view` alone.
"""

from collections.abc import Mapping
from typing import Protocol

from libra.control.snapshot import EngineRow, RankRow
from libra.controller.follow import Follower
from libra.core.coordinator import Core
from libra.wire.messages import EngineStats

NOT_KNOWN = ("", "")
"""Host and device of a rank that never joined."""


class Progress(Protocol):
    """What heartbeats tell of a role."""

    doing: str
    beats: int


class Liveness(Protocol):
    """What heartbeats tell of a rank: when, and of its roles by their start."""

    @property
    def seen(self) -> float: ...
    @property
    def roles(self) -> Mapping[int, Progress]: ...


def rank_rows(core: Core, follower: Follower, linked: Mapping[int, Liveness], now: float) -> tuple[RankRow, ...]:
    """`linked`: the ranks that are; `now`: on the clock that their heartbeats are timed with."""
    fleet, hosts, busy_s = core.fleet, follower.hosts, follower.busy_s
    shared = {
        unit.id: (
            unit,
            fleet.buckets[unit.bucket].name if unit.bucket >= 0 else "",
            fleet.settled_role(unit),
            unit.state,
            unit.starts,
            unit.restarts,
        )
        for unit in (fleet.core, *fleet.units())
    }
    no_unit = None, "", "spare", "here", dict[int, int](), 0
    rows: list[RankRow] = []
    for device in fleet.ranks.values():
        rank, status, of, move = device.rank, device.status, device.unit, device.move
        unit, bucket, role, state, starts, restarts = shared.get(of, no_unit)
        if move or status != "here":
            role = fleet.role(device, unit)
        host, kind = hosts.get(rank, NOT_KNOWN)
        age_s, doing, beats = None, "", -1
        if (alive := linked.get(rank)) is not None:
            age_s = now - alive.seen
            if age_s < 0.0:
                age_s = 0.0
            if (progress := alive.roles.get(starts.get(rank, 0))) is not None:
                doing, beats = progress.doing, progress.beats
        if status == "here":
            status = state
        busy = busy_s.get(rank, 0.0)
        rows.append(RankRow(rank, host, kind, role, of, bucket, status, age_s, doing, beats, busy, restarts, move))
    return tuple(rows)


def engine_rows(
    core: Core, sampled_tokens: Mapping[int, int], said: Mapping[int, EngineStats]
) -> tuple[EngineRow, ...]:
    """`sampled_tokens` by engine; `said`: what engines last told of themselves, where they did."""
    names = [bucket.name for bucket in core.fleet.buckets]
    rows: list[EngineRow] = []
    for engine in core.fleet.engines.values():
        load = engine.load
        own = said.get(load.id)
        rows.append(
            EngineRow(
                load.id,
                names[load.bucket],
                engine.ranks,
                load.up,
                load.version,
                engine.asked if engine.command and engine.asked > engine.version else -1,
                own.running if own else load.running,
                own.waiting if own else 0,
                (own.kv_tokens if own else load.reserved_tokens) / load.kv_tokens,
                load.kv_tokens,
                load.outstanding_tokens,
                load.residual_tokens,
                sampled_tokens.get(load.id, 0),
                own.prefilled_tokens if own else 0,
                own.reused_tokens if own else 0,
                own.preemptions if own else 0,
            )
        )
    return tuple(rows)
