"""The device ranks, and the units they form: who does what, as of which epoch.

    device rank ──belongs to──> unit: the trainer core │ an engine of some bucket │ a gradient replica
                └─runs──> role processes, each named by the `StartRole` that began it; word from any other is stale

A unit is a set of ranks with one job. The core is made once and never changes; engines and replicas come and go as ranks
move, and each has an id of its own that is never used again. The epoch grows with every change of who does what.

    idle ─> starting ─> forming ─> fetching ─> ready ─> serving <─> closing
     ^        (roles)    (group)   (weights)   (gated)                  │
     └──────────────── ending <── told to stop, or one of its roles died (from anywhere)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from libra.config.schema import Config
from libra.core.commands import Role
from libra.core.scheduler.load import NO_WEIGHTS, EngineLoad

CORE = -1
"""The unit id of the trainer core."""
NOBODY = -2
"""The unit id of a rank that a person took out of work."""
RankStatus = Literal["absent", "here", "lost"]
RankRole = Literal["trainer", "rollout", "gradient", "moving", "spare", "lost"]
UnitState = Literal["idle", "starting", "forming", "fetching", "ready", "serving", "closing", "ending"]


@dataclass(slots=True)
class DeviceRank:
    rank: int
    unit: int = CORE
    """The unit it belongs to; while it moves, the one that it leaves."""
    status: RankStatus = "absent"
    host: str = ""
    move: int = 0
    """The move that it takes part in; 0 when none."""
    processes: dict[int, int] = field(default_factory=dict[int, int])
    """`StartRole` -> unit, of the role processes that have not ended: two at most, and only during a move."""


@dataclass(slots=True)
class Unit:
    """What engines, replicas and the core have in common: processes to start, a group to form, weights to hold."""

    id: int
    role: Role
    ranks: tuple[int, ...]
    bucket: int = -1
    """Index of an engine's bucket."""
    state: UnitState = "idle"
    starts: dict[int, int] = field(default_factory=dict[int, int])
    """rank -> the `StartRole` of its process in this unit."""
    awaited: list[int] = field(default_factory=list[int])
    """Ranks that have not answered the present command yet (start, form, install)."""
    command: int = 0
    """The `FormGroup` or `InstallWeights` under way; 0 when none."""
    attempt: int = 0
    """How often it was brought up: makes its group's store prefix unique."""
    restarts: int = 0
    gated: bool = False
    """Part of a move: opened by the move, not as soon as it holds weights."""
    held: dict[int, int] = field(default_factory=dict[int, int])
    """rank -> version of the weights that it holds."""
    asked: int = NO_WEIGHTS
    """The version of the `InstallWeights` under way."""
    failures: int = 0
    """Installations that failed in a row."""

    @property
    def version(self) -> int:
        """The version that all of its ranks hold; NO_WEIGHTS while they differ."""
        versions = {self.held.get(rank, NO_WEIGHTS) for rank in self.ranks}
        return versions.pop() if len(versions) == 1 else NO_WEIGHTS

    @property
    def live(self) -> bool:
        """Its processes run, or are being started."""
        return self.state not in ("idle", "ending")

    @property
    def fetches(self) -> bool:
        """It is to hold the newest weights."""
        return self.state in ("fetching", "ready", "serving")

    @property
    def name(self) -> str:
        """For people."""
        return "the core" if self.id == CORE else f"{'engine' if self.role == 'rollout' else 'replica'} {self.id}"

    def installed(self, version: int) -> None:
        """All of its ranks hold `version`."""

    def open(self) -> None:
        """From now on it takes work."""
        self.state = "serving"

    def close(self) -> None:
        """No new work; it keeps its weights."""
        self.state = "closing"

    def went_down(self) -> None:
        """Its processes are gone, or going."""
        self.state = "ending"
        self.held.clear()
        self.awaited.clear()
        self.command = self.failures = 0


@dataclass(slots=True)
class Engine(Unit):
    load: EngineLoad = field(default_factory=lambda: EngineLoad(0, 0, 0, 0))
    """As the scheduler sees it."""

    def installed(self, version: int) -> None:
        self.load.installed(version)

    def open(self) -> None:
        Unit.open(self)
        self.load.came_up()

    def close(self) -> None:
        Unit.close(self)
        self.load.close()

    def went_down(self) -> None:
        Unit.went_down(self)
        self.load.went_down()


class Fleet:
    """Built from the configuration; device ranks count from 1 (rank 0 is the controller)."""

    def __init__(self, config: Config) -> None:
        allocation = config.allocation
        self.buckets = config.bucket
        self.epoch = 0
        self.losses = 0
        """Grows whenever an engine may have gone that did not serve: what `can_hold` said before may not be true any more."""
        self.stirred: dict[int, None] = {}
        """Units that may have to fetch weights, or can be opened, by what happened to them; `publication` looks and clears."""
        self.trainers: tuple[int, ...] = tuple(range(1, allocation.trainer + 1))
        self.core = Unit(CORE, "trainer", self.trainers)
        self.ranks: dict[int, DeviceRank] = {r: DeviceRank(r) for r in self.trainers}
        self.engines: dict[int, Engine] = {}
        self.replicas: dict[int, Unit] = {}
        self._per_node = config.cost.hardware.devices_per_node if config.cost else config.devices
        self._bucket_of: list[int] = []
        rank = allocation.trainer + 1
        for index, bucket in enumerate(config.bucket):
            for _ in range(bucket.engines):
                self._settle(self.add_engine(index, range(rank, rank + bucket.tp)))
                rank += bucket.tp
        for _ in range(allocation.gradient // allocation.replica):
            self._settle(self.add_replica(range(rank, rank + allocation.replica)))
            rank += allocation.replica

    def _settle(self, unit: Unit) -> None:
        for rank in unit.ranks:
            self.ranks[rank] = DeviceRank(rank, unit.id)

    # --- units

    def add_engine(self, bucket: int, ranks: Iterable[int]) -> Engine:
        """A new engine of `bucket`, idle. Its ranks do not belong to it yet."""
        id, members, shape = len(self._bucket_of), tuple(ranks), self.buckets[bucket]
        load = EngineLoad(id, bucket, shape.max_batch, shape.kv_tokens, node=(members[0] - 1) // self._per_node)
        engine = self.engines[id] = Engine(id, "rollout", members, bucket, load=load)
        self._bucket_of.append(bucket)
        return engine

    def add_replica(self, ranks: Iterable[int]) -> Unit:
        """A new gradient replica, idle. Its ranks do not belong to it yet."""
        id = len(self._bucket_of)
        replica = self.replicas[id] = Unit(id, "gradient", tuple(ranks))
        self._bucket_of.append(-1)
        return replica

    def remove(self, unit: Unit) -> None:
        """Its id is never used again."""
        del (self.engines if unit.role == "rollout" else self.replicas)[unit.id]

    def units(self) -> list[Unit]:
        """Engines and replicas; not the core."""
        return [*self.engines.values(), *self.replicas.values()]

    def unit(self, id: int) -> Unit | None:
        """The core, an engine or a replica; None for one that is gone."""
        return self.core if id == CORE else self.engines.get(id) or self.replicas.get(id)

    def forms_group(self, unit: Unit) -> bool:
        return unit.role != "rollout" or len(unit.ranks) > 1 or self.makes_engine(unit)

    def makes_engine(self, unit: Unit) -> bool:
        """While the group is formed: vLLM's engines need it, a group of one rank as well, and take minutes to make."""
        return unit.role == "rollout" and self.buckets[unit.bucket].engine == "vllm"

    def bucket_of(self, engine: int) -> int:
        """The bucket of an engine that is, or was."""
        return self._bucket_of[engine]

    # --- ranks

    def role_of(self, rank: int) -> RankRole:
        """What a device rank does now."""
        device = self.ranks[rank]
        return self.role(device, self.unit(device.unit))

    @staticmethod
    def role(device: DeviceRank, unit: Unit | None) -> RankRole:
        """`unit` is the device's."""
        if device.status != "here":
            return "lost" if device.status == "lost" else "spare"
        if device.move:
            return "moving"
        return "spare" if unit is None else Fleet.settled_role(unit)

    @staticmethod
    def settled_role(unit: Unit) -> RankRole:
        """Of each rank of the unit that is here and does not move."""
        return "spare" if unit.state in ("idle", "ending") else unit.role

    def lose(self, rank: int) -> None:
        """Nobody counts on it, until it comes back."""
        self.losses += 1
        self.ranks[rank].status = "lost"

    def take(self, rank: int, move: int) -> None:
        """It takes part in the move; what it belongs to is about to leave."""
        self.losses += 1
        self.ranks[rank].move = move

    def absent(self) -> list[int]:
        return [r.rank for r in self.ranks.values() if r.status == "absent"]

    def lost(self) -> list[int]:
        return [r.rank for r in self.ranks.values() if r.status == "lost"]

    def all_here(self, ranks: Sequence[int]) -> bool:
        return all(self.ranks[r].status == "here" for r in ranks)

    @property
    def alive(self) -> bool:
        """Some engine serves, or may serve again, and is not about to leave."""
        return self.can_hold(0)

    def can_hold(self, tokens: int) -> bool:
        """Such an engine has KV room for `tokens`."""
        return any(e.load.kv_tokens >= tokens and self._stays(e) for e in self.engines.values())

    def largest_room(self) -> int:
        """The most KV tokens that such an engine has; 0 where none is left."""
        return max((e.load.kv_tokens for e in self.engines.values() if self._stays(e)), default=0)

    def _stays(self, engine: Engine) -> bool:
        ranks = [self.ranks[r] for r in engine.ranks]
        return all(r.status != "lost" and (engine.gated or not r.move) for r in ranks)
