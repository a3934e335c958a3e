"""The device ranks and the engines: who has which role.

Roles follow from the configuration: the lowest device ranks are the core trainers, the others fill the buckets in order. A
rank's role process is named by the `StartRole` command that began it; word from any earlier process of the rank is stale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from libra.config.schema import Config
from libra.core.commands import Role
from libra.core.scheduler.load import EngineLoad

RankStatus = Literal["absent", "starting", "up", "down", "lost"]


@dataclass(slots=True)
class DeviceRank:
    rank: int
    role: Role
    engine: int = -1
    """The engine it belongs to; -1 for a trainer."""
    bucket: int = -1
    status: RankStatus = "absent"
    start: int = 0
    """The `StartRole` that began its present process."""
    epoch: int = 0
    restarts: int = 0


@dataclass(slots=True)
class Engine:
    """One engine: its load as the scheduler sees it, and its weights."""

    load: EngineLoad
    ranks: tuple[int, ...]
    installing: int = 0
    """The `InstallWeights` that is under way; 0 when none."""
    installing_version: int = -1
    failures: int = 0
    """Installations that failed in a row."""

    @property
    def id(self) -> int:
        return self.load.id


class Fleet:
    """Built from the configuration; device ranks count from 1 (rank 0 is the controller)."""

    def __init__(self, config: Config) -> None:
        self.trainers: tuple[int, ...] = tuple(range(1, config.allocation.trainer + 1))
        self.ranks: dict[int, DeviceRank] = {r: DeviceRank(r, "trainer") for r in self.trainers}
        self.engines: list[Engine] = []
        self.stirred: dict[int, None] = {}
        """Engines that may want weights since they came up, or since an installation ended; `publication` looks and clears."""
        per_node = config.cost.hardware.devices_per_node if config.cost else config.devices
        rank = config.allocation.trainer + 1
        for index, bucket in enumerate(config.bucket):
            for _ in range(bucket.engines):
                id = len(self.engines)
                members = tuple(range(rank, rank + bucket.tp))
                rank += bucket.tp
                load = EngineLoad(id, index, bucket.max_batch, bucket.kv_tokens, node=(members[0] - 1) // per_node)
                self.engines.append(Engine(load, members))
                for r in members:
                    self.ranks[r] = DeviceRank(r, "rollout", id, index)

    def absent(self) -> list[int]:
        return [r.rank for r in self.ranks.values() if r.status == "absent"]

    def lost(self) -> list[int]:
        return [r.rank for r in self.ranks.values() if r.status == "lost"]

    def all_up(self, ranks: Sequence[int]) -> bool:
        return all(self.ranks[r].status == "up" for r in ranks)

    @property
    def alive(self) -> bool:
        """Some engine serves or may serve again."""
        return any(all(self.ranks[r].status != "lost" for r in e.ranks) for e in self.engines)
