"""Which moves are legal, and which moves lead to an allocation that somebody wants.

    Allocate(rollout=3, gradient=1) ──plans_for──> the cheapest moves that get there ─┐
    MoveRanks(ranks, to, bucket)    ──plans_for──> one move ──────────────────────────┼──check──> begin, or why not
    Arrange(moves)                  ──plans_for──> one each ──────────────────────────┘

Ranks move in the smallest sets that are whole engines before and whole replicas after, or the other way round: lcm(TP,
replica) ranks. An engine that leaves is the one with the least to do; a replica goes home to the bucket that its ranks came
from. Nothing here changes anything. Everything refused is refused with a reason for people.
"""

from math import lcm

from libra.config.schema import Config
from libra.core.fleet import NOBODY, Engine, Fleet, Unit
from libra.core.handover import Plan, overlapping
from libra.core.orders import Allocate, Arrange, MoveRanks


class Refused(Exception):
    """Why an order cannot be carried out."""


class Allocation:
    """Reads the fleet. `most_tokens` is what one trajectory may need at most: some engine must stay able to hold it."""

    def __init__(self, config: Config, fleet: Fleet, most_tokens: int) -> None:
        self.fleet = fleet
        self.buckets = config.bucket
        self.replica = config.allocation.replica
        self.most_tokens = most_tokens
        self._per_node = config.cost.hardware.devices_per_node if config.cost else config.devices
        self._home: dict[int, int] = {}
        """rank -> index of the bucket that it served last."""
        for engine in fleet.engines.values():
            self.settled(engine)

    def settled(self, unit: Unit) -> None:
        """These ranks serve that bucket now."""
        if isinstance(unit, Engine):
            for rank in unit.ranks:
                self._home[rank] = unit.bucket

    def home(self, rank: int) -> str:
        """The bucket that the rank served last; "" where it never served."""
        bucket = self._home.get(rank)
        return "" if bucket is None else self.buckets[bucket].name

    def counts(self) -> tuple[int, int]:
        """(ranks in rollout, ranks that lend gradients); a rank that moves counts where it comes from."""
        rollout = sum(len(e.ranks) for e in self.fleet.engines.values() if not e.gated)
        return rollout, sum(len(r.ranks) for r in self.fleet.replicas.values() if not r.gated)

    # --- from a wish to plans

    def plans_for(self, order: Allocate | MoveRanks | Arrange) -> list[Plan]:
        """The moves that carry out the order, checked. Raises Refused."""
        match order:
            case Allocate():
                plans = self._to_counts(order)
            case MoveRanks():
                plans = [self._to_role(order)]
            case Arrange(moves=moves):
                plans = self._joined([self._to_role(move) for move in moves])
        self.check(plans)
        return plans

    def _joined(self, plans: list[Plan]) -> list[Plan]:
        """Plans that take parts of one unit are one move: all of it moves together."""
        for unit in self.fleet.units():
            touching = [plan for plan in plans if set(plan.ranks) & set(unit.ranks)]
            if len(touching) > 1:
                units = tuple(part for plan in touching for part in plan.units)
                spare = tuple(rank for plan in touching for rank in plan.spare)
                plans = [*(plan for plan in plans if plan not in touching), Plan(units, spare)]
        return plans

    def _to_counts(self, order: Allocate) -> list[Plan]:
        rollout, gradient = self.counts()
        whole = rollout + gradient
        wanted = order.gradient
        if order.rollout is not None:
            if wanted is not None and wanted + order.rollout != whole:
                raise Refused(
                    f"got {order.rollout} ranks in rollout and {wanted} lending gradients, expected {whole} in all"
                    f" (now {rollout} and {gradient}); give one of the two and the rest follows"
                )
            wanted = whole - order.rollout
        if wanted is None:
            raise Refused("got neither a number of rollout ranks nor of gradient ranks; expected at least one of them")
        if not 0 <= wanted <= whole:
            raise Refused(f"got {wanted} ranks lending gradients, expected 0 to {whole - 1}: {whole} ranks can move")
        plans: list[Plan] = []
        missing = wanted - gradient
        while missing:
            used = {rank for plan in plans for rank in plan.ranks}
            plan = self.lend(used, missing) if missing > 0 else self.recall(used, -missing)
            if plan is None:
                reached = wanted - missing
                raise Refused(
                    f"{wanted} ranks lending gradients cannot be reached from {gradient}: ranks move in whole engines and"
                    f" whole replicas of {self.replica}; {reached} can"
                    + (" (that is how it is)" * (reached == gradient))
                )
            plans.append(plan)
            missing += -len(plan.ranks) if missing > 0 else len(plan.ranks)
        return plans

    def lend(self, used: set[int], most: int) -> Plan | None:
        """Engines that become replicas: of at most `most` ranks, none of them in `used`; None where there are none."""
        best: tuple[tuple[int, int], Plan] | None = None
        for bucket, shape in enumerate(self.buckets):
            size = lcm(shape.tp, self.replica)
            if size > most:
                continue
            free = [
                e
                for e in self.fleet.engines.values()
                if e.bucket == bucket and self._movable(e) and not used & set(e.ranks)
            ]
            free.sort(key=lambda e: (e.load.running, -e.id))
            chosen = free[: size // shape.tp]
            if len(chosen) * shape.tp < size or not self._enough_left(used | {r for e in chosen for r in e.ranks}):
                continue
            ranks = sorted(r for e in chosen for r in e.ranks)
            key = (sum(e.load.running for e in chosen), size)
            if best is None or key < best[0]:
                best = key, Plan(tuple((-1, part) for part in _parts(ranks, self.replica)))
        return best[1] if best else None

    def recall(self, used: set[int], most: int) -> Plan | None:
        """Replicas that become engines again, the youngest first; of at most `most` ranks, none of them in `used`."""
        replicas = [r for r in self.fleet.replicas.values() if self._movable(r) and not used & set(r.ranks)]
        for youngest in sorted(replicas, key=lambda r: -r.id):
            home = self._home.get(youngest.ranks[0], 0)
            size = lcm(self.buckets[home].tp, self.replica)
            near = [r for r in replicas if self._home.get(r.ranks[0], 0) == home]
            near.sort(key=lambda r: (abs(r.ranks[0] - youngest.ranks[0]), r.id))
            ranks = sorted(rank for r in near[: size // self.replica] for rank in r.ranks)
            if size <= most and len(ranks) == size:
                return Plan(tuple((home, part) for part in _parts(ranks, self.buckets[home].tp)))
        return None

    def wake(self) -> Plan | None:
        """Ranks that were put aside become an engine of the bucket that they served last; None where they make none."""
        idle = [
            d
            for d in self.fleet.ranks.values()
            if d.unit == NOBODY and d.status == "here" and not d.move and not d.processes
        ]
        for bucket, shape in enumerate(self.buckets):
            ranks = [d.rank for d in idle if self._home.get(d.rank, 0) == bucket][: shape.tp]
            if len(ranks) == shape.tp:
                return Plan(((bucket, tuple(ranks)),))
        return None

    def _to_role(self, order: MoveRanks) -> Plan:
        ranks = sorted(set(order.ranks))
        if not ranks:
            raise Refused("got no ranks to move; expected at least one")
        if order.to == "spare":
            return Plan((), tuple(ranks))
        if order.to == "gradient":
            size, bucket, what = self.replica, -1, f"replicas of {self.replica}"
        else:
            bucket = self._bucket(order.bucket, ranks[0])
            size, what = self.buckets[bucket].tp, f"engines of bucket '{self.buckets[bucket].name}'"
        if len(ranks) % size:
            raise Refused(f"got {len(ranks)} ranks for {what}, expected a multiple of {size}")
        return Plan(tuple((bucket, part) for part in _parts(ranks, size)))

    def _bucket(self, name: str, rank: int) -> int:
        if not name:
            return self._home.get(rank, 0)
        for index, bucket in enumerate(self.buckets):
            if bucket.name == name:
                return index
        names = ", ".join(b.name for b in self.buckets)
        raise Refused(f"got bucket '{name}', expected one of {names}")

    # --- what is legal

    def check(self, plans: list[Plan]) -> None:
        """Raises Refused where a plan names ranks that cannot move, splits a unit, or leaves too little behind."""
        if overlapping(plans):
            raise Refused("a rank appears twice")
        for plan in plans:
            for rank in plan.ranks:
                self._check_rank(rank)
            self._check_whole(plan)
        leaving = {rank for plan in plans for rank in plan.ranks}
        if not self._enough_left(leaving):
            raise Refused(
                "no engine would be left at work that can hold a whole trajectory"
                + (f" ({self.most_tokens} tokens)" if self.most_tokens else "")
            )

    def _check_rank(self, rank: int) -> None:
        device = self.fleet.ranks.get(rank)
        if device is None:
            raise Refused(f"got rank {rank}, expected one of 1 to {max(self.fleet.ranks)}")
        if rank in self.fleet.trainers:
            raise Refused(f"rank {rank} belongs to the trainer core, which is fixed for the run")
        if device.status != "here":
            raise Refused(f"rank {rank} is lost")
        if device.move:
            raise Refused(f"rank {rank} takes part in move {device.move} already; cancel it or wait for its end")
        if len(device.processes) > 1 or any(id != device.unit for id in device.processes.values()):
            raise Refused(f"rank {rank} is still ending its former role; try again in a few seconds")

    def _check_whole(self, plan: Plan) -> None:
        ranks = set(plan.ranks)
        for unit in self.fleet.units():
            inside = ranks & set(unit.ranks)
            if inside and len(inside) < len(unit.ranks):
                others = sorted(set(unit.ranks) - ranks)
                raise Refused(
                    f"rank {min(inside)} belongs to {unit.name} together with rank {', '.join(map(str, others))}:"
                    " all of them move or none"
                )
            if inside and any((b, r) == (unit.bucket, unit.ranks) for b, r in plan.units):
                raise Refused(f"{unit.name} is what it is to become already")
        if idle := [rank for rank in plan.spare if self.fleet.ranks[rank].unit == NOBODY]:
            raise Refused(f"rank {idle[0]} is spare already")
        for bucket, members in plan.units:
            nodes = {(rank - 1) // self._per_node for rank in members}
            if bucket >= 0 and len(nodes) > 1:
                raise Refused(f"ranks {', '.join(map(str, members))} lie on different nodes; an engine needs one node")

    def _movable(self, unit: Unit) -> bool:
        devices = [self.fleet.ranks[r] for r in unit.ranks]
        return unit.state == "serving" and all(
            d.status == "here" and not d.move and len(d.processes) == 1 for d in devices
        )

    def _enough_left(self, leaving: set[int]) -> bool:
        return any(
            e.state == "serving" and e.load.kv_tokens >= self.most_tokens and not leaving & set(e.ranks)
            for e in self.fleet.engines.values()
        )


def _parts(ranks: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(ranks[i : i + size]) for i in range(0, len(ranks), size)]
