"""A draft of an allocation: where a person wants units to be, before it is ordered. Pure: keys in, one order out.

A unit is what moves as a whole: an engine, a gradient replica, a spare rank. Every mark is explicit, `+` and `-` only choose
the unit; so what is ordered is what was seen. Units with the same target go into one MoveRanks, because an engine of four ranks
may be made of two replicas of two. Whether a draft is legal only the core says.
"""

from typing import Literal

from msgspec import Struct

from libra.control.snapshot import Snapshot
from libra.core.orders import Arrange, MoveRanks

Ranks = tuple[int, ...]
Role = Literal["rollout", "gradient", "spare"]


class Target(Struct, frozen=True, order=True):
    role: Role
    bucket: str = ""

    def __str__(self) -> str:
        return (self.bucket and f"rollout {self.bucket}") or self.role


class Unit(Struct, frozen=True):
    """`name` as in "engine 3"; `role` trainer: it stays."""

    name: str
    ranks: Ranks
    role: Literal["trainer", "rollout", "gradient", "spare"]
    bucket: str = ""

    @property
    def now(self) -> Target | None:
        return None if self.role == "trainer" else Target(self.role, self.bucket)


def units(s: Snapshot) -> list[Unit]:
    """Core trainers, engines, replicas, spare ranks; what moves or is lost is no unit."""
    core = tuple(r.rank for r in s.ranks if r.role == "trainer")
    found = [Unit("trainer", core, "trainer")] if core else []
    moving = {rank for m in s.allocation.moves for rank in m.ranks}
    for e in s.engines:
        if not moving.intersection(e.ranks):
            found.append(Unit(f"engine {e.id}", e.ranks, "rollout", e.bucket))
    for r in s.replicas:
        if not moving.intersection(r.ranks):
            found.append(Unit(f"replica {r.unit}", r.ranks, "gradient"))
    return [*found, *(Unit("spare", (r.rank,), "spare") for r in s.ranks if r.role == "spare")]


class Draft:
    def __init__(self) -> None:
        self.marks: dict[Ranks, Target] = {}
        """By the unit's ranks; never a unit's present place."""
        self.revision = 0
        """Grows with every change, so that an answer to an older draft is known as such."""

    def __bool__(self) -> bool:
        return bool(self.marks)

    def clear(self) -> None:
        if self.marks:
            self.marks.clear()
            self.revision += 1

    def prune(self, present: list[Unit]) -> None:
        """Forget the marks of units that are gone, or are where they were wanted."""
        places = {u.ranks: u.now for u in present}
        kept = {ranks: t for ranks, t in self.marks.items() if ranks in places and places[ranks] != t}
        if len(kept) != len(self.marks):
            self.marks = kept
            self.revision += 1

    def move(self, unit: Unit, s: Snapshot) -> str:
        """`m`: the other role, then back. What cannot be is said."""
        if unit.role == "trainer":
            return "core trainers stay: they hold the optimiser state"
        if unit.ranks in self.marks:
            self._mark(unit, None)
        elif unit.role == "rollout":
            self._mark(unit, Target("gradient"))
        else:
            self._mark(unit, Target("rollout", _shape(unit, s)))
        return ""

    def reshape(self, unit: Unit, s: Snapshot) -> str:
        """`b`: the next bucket; a full circle ends where the unit is."""
        if unit.role == "trainer":
            return "core trainers stay: they hold the optimiser state"
        names = [b.name for b in s.buckets]
        at = self.marks.get(unit.ranks) or unit.now
        if at is None or not names:
            return "there are no buckets"
        following = names.index(at.bucket) + 1 if at.bucket in names else 0
        if len(names) == 1 and unit.bucket == names[0]:
            return f"{names[0]} is the only bucket"
        self._mark(unit, Target("rollout", names[following % len(names)]))
        return ""

    def drain(self, unit: Unit) -> str:
        """`x`: out of work, then back."""
        if unit.role == "trainer":
            return "core trainers stay: they hold the optimiser state"
        self._mark(unit, None if self.marks.get(unit.ranks) == Target("spare") else Target("spare"))
        return ""

    def more_rollout(self, s: Snapshot) -> str:
        """`+`: take back the last mark to gradient, else the last replica or spare rank goes to rollout."""
        return self._shift(s, away=Target("gradient"), roles=("gradient", "spare"))

    def less_rollout(self, s: Snapshot) -> str:
        """`-`: take back the last mark to rollout, else the last engine goes to gradient."""
        return self._shift(s, away=None, roles=("rollout",))

    def _shift(self, s: Snapshot, away: Target | None, roles: tuple[str, ...]) -> str:
        present = units(s)
        by_ranks = {u.ranks: u for u in present}
        for ranks, mark in reversed(list(self.marks.items())):
            unit = by_ranks.get(ranks)
            if unit is not None and (mark == away if away else mark.role == "rollout" and unit.role != "rollout"):
                self._mark(unit, None)
                return ""
        for unit in reversed(present):
            if unit.role in roles and unit.ranks not in self.marks:
                return self.move(unit, s)
        return f"no unit is left to move from {' or '.join(roles)}"

    def _mark(self, unit: Unit, target: Target | None) -> None:
        if target is None or target == unit.now:
            self.marks.pop(unit.ranks, None)
        else:
            self.marks[unit.ranks] = target
        self.revision += 1

    def order(self) -> Arrange | MoveRanks | None:
        """All marks as one order; None: there are none."""
        merged: dict[Target, list[int]] = {}
        for ranks, target in sorted(self.marks.items()):
            merged.setdefault(target, []).extend(ranks)
        moves = tuple(
            MoveRanks(tuple(sorted(ranks)), target.role, target.bucket) for target, ranks in sorted(merged.items())
        )
        return None if not moves else moves[0] if len(moves) == 1 else Arrange(moves)

    def difference(self, s: Snapshot, arrow: str = "->") -> list[str]:
        """Each mark for people: "engine 3 (tp1, ranks 4) -> gradient"."""
        out = []
        for unit in units(s):
            target = self.marks.get(unit.ranks)
            if target is not None:
                shape = f"{unit.bucket}, " if unit.bucket else ""
                ranks = ", ".join(map(str, unit.ranks))
                out.append(f"{unit.name} ({shape}rank{'s' if len(unit.ranks) > 1 else ''} {ranks}) {arrow} {target}")
        return out


def _shape(unit: Unit, s: Snapshot) -> str:
    """The bucket that its ranks served last, if it makes whole engines there; else the one whose engines fit it best: of its
    size, else the largest that divides it, else the smallest."""
    size = len(unit.ranks)
    came_from = {s.allocation.home.get(rank, "") for rank in unit.ranks}
    home = [b.name for b in s.buckets if {b.name} == came_from and size % b.tp == 0]
    if home:
        return home[0]
    same = [b.name for b in s.buckets if b.tp == size]
    dividing = sorted((b.tp, b.name) for b in s.buckets if size % b.tp == 0)
    if same:
        return same[0]
    if dividing:
        return dividing[-1][1]
    return min(((b.tp, b.name) for b in s.buckets), default=(0, ""))[1]
