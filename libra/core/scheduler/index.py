"""The engines of each shape in order of load, kept up to date one change at a time.

    bucket ──> weight version ──> shelf: engines by room (open ones first, least reserved), and by outstanding tokens

So what may take a turn is found by looking at the ends of a few lists: the cost of an offer grows with the shapes and the
versions in use (at most lag + 2), not with the engines. If the roomiest engine of a shelf cannot take a turn, none of it can.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from libra.core.scheduler.load import EngineLoad
from libra.core.scheduler.policy import Offer, Target, bucket_target

LOOKED_AT = 8
"""Least loaded engines of a shelf that are asked whether they fit, before the roomiest one stands for all."""

RoomKey = tuple[bool, int, int]
LoadKey = tuple[int, int]


class Shelf:
    """The engines of one shape that hold one version of the weights."""

    __slots__ = ("by_load", "by_room")

    def __init__(self) -> None:
        self.by_room: list[RoomKey] = []
        """(batch is full, reserved tokens, id)"""
        self.by_load: list[LoadKey] = []
        """(outstanding tokens, id)"""


class EngineIndex:
    """The engines that were added, by id; their changes are followed."""

    def __init__(self, loads: Iterable[EngineLoad], buckets: int) -> None:
        self._loads: dict[int, EngineLoad] = {}
        self._buckets: list[dict[int, Shelf]] = [{} for _ in range(buckets)]
        self._kv_tokens = [0] * buckets
        """Room of an engine of each bucket: they are all alike."""
        self._filed: dict[int, tuple[int, RoomKey, LoadKey]] = {}
        self.freed: dict[Target, None] = {}
        """Engines and buckets that may have got room, or ceased to serve, and not looked at since: the caller clears it."""
        self.changes = 0
        """Counts such changes: what no engine could take stays so while this stands."""
        self._busy: dict[int, bool] = {}
        """Whether each engine that serves has running turns."""
        self._busy_count = 0
        for load in loads:
            self.add(load)

    # --- kept

    def add(self, load: EngineLoad) -> None:
        self._loads[load.id] = load
        self._kv_tokens[load.bucket] = load.kv_tokens
        load.on_change = self._changed
        self._changed(load, True)

    def remove(self, load: EngineLoad) -> None:
        """It is gone for good; who waited for it is told as if it had got room."""
        load.went_down()
        load.on_change = None
        del self._loads[load.id]

    def _changed(self, load: EngineLoad, room: bool) -> None:
        shelves = self._buckets[load.bucket]
        filed = self._filed.pop(load.id, None)
        if filed is not None:
            version, room_key, load_key = filed
            shelf = shelves[version]
            del shelf.by_room[bisect_left(shelf.by_room, room_key)]
            del shelf.by_load[bisect_left(shelf.by_load, load_key)]
            if not shelf.by_room:
                del shelves[version]
        if load.up and load.version >= 0:
            shelf = shelves.get(load.version)
            if shelf is None:
                shelf = shelves[load.version] = Shelf()
            room_key = (load.running >= load.max_batch, load.reserved_tokens, load.id)
            load_key = (load.outstanding_tokens, load.id)
            insort(shelf.by_room, room_key)
            insort(shelf.by_load, load_key)
            self._filed[load.id] = (load.version, room_key, load_key)
        self._count_busy(load)
        if room:
            self.changes += 1
            self.freed[load.id] = None
            self.freed[bucket_target(load.bucket)] = None

    def _count_busy(self, load: EngineLoad) -> None:
        before = self._busy.pop(load.id, False)
        busy = load.running > 0
        if load.up:
            self._busy[load.id] = busy
        self._busy_count += (busy and load.up) - before

    def at_work(self) -> tuple[int, int]:
        """(engines that serve, those of them with running turns)."""
        return len(self._busy), self._busy_count

    # --- asked

    def offer(self, need_tokens: int, whole_tokens: int, floor: int, last: EngineLoad | None) -> Offer | None:
        """What may take a turn on weights of version `floor` or newer; None where nothing may.

        `need_tokens` is the room that it reserves, `whole_tokens` what it takes at most: an engine must be larger than that.
        """
        loads = self._loads
        engines: list[EngineLoad] = []
        full: list[EngineLoad] = []
        for kv_tokens, shelves in zip(self._kv_tokens, self._buckets, strict=True):
            if whole_tokens > kv_tokens:
                continue
            most = kv_tokens - need_tokens
            fits = False
            nearest: RoomKey | None = None
            for version, shelf in shelves.items():
                if version < floor:
                    continue
                roomiest = shelf.by_room[0]
                if not roomiest[0] and roomiest[1] <= most:
                    fits = True
                    engines.append(loads[roomiest[2]])
                    lightest = self._lightest(shelf, need_tokens)
                    if lightest is not None and lightest.id != roomiest[2]:
                        engines.append(lightest)
                elif nearest is None or roomiest[1:] < nearest[1:]:
                    nearest = roomiest
            if nearest is not None and not fits:
                full.append(loads[nearest[2]])
        if not engines:
            return None
        stays = False
        if last is not None and self.serves(last.id, whole_tokens, floor):
            stays = last.fits(need_tokens)
            known = engines if stays else full
            if all(e is not last for e in known):
                known.append(last)
        return Offer(engines, full, stays)

    def _lightest(self, shelf: Shelf, need_tokens: int) -> EngineLoad | None:
        for _, id in shelf.by_load[:LOOKED_AT]:
            load = self._loads[id]
            if load.fits(need_tokens):
                return load
        return None

    def holds(self, whole_tokens: int) -> bool:
        """Whether some engine that serves is large enough for a turn, be it full now."""
        return any(
            shelves and whole_tokens <= kv_tokens
            for kv_tokens, shelves in zip(self._kv_tokens, self._buckets, strict=True)
        )

    def serves(self, target: Target, whole_tokens: int, floor: int) -> bool:
        """Whether waiting for `target` can end: some engine of it is up, new enough, and large enough for the turn."""
        if target >= 0:
            load = self._loads.get(target)
            return load is not None and load.up and load.version >= floor and whole_tokens <= load.kv_tokens
        for version, shelf in self._buckets[~target].items():
            if version >= floor and whole_tokens <= self._loads[shelf.by_room[0][2]].kv_tokens:
                return True
        return False
