"""Moves: a set of ranks leaves the units that it forms and becomes others. Nobody else waits for it.

    drain first                                        prepare first (both roles fit on the device together)
    ───────────                                        ─────────────
    draining    no new work; running turns are cut     preparing   the new roles start beside the old ones, form their
                and go on elsewhere, a replica sends               group, fetch weights; the old ones go on working
                its share; then the old roles end
    preparing   the new roles start, form their        draining    as on the left
                group, fetch the newest weights
    ready       the new units are opened               ready       the new units are opened, the old roles end

| stage     | over when                        | deadline                 | a role dies, a rank is lost, cancel         |
|-----------|----------------------------------|--------------------------|---------------------------------------------|
| draining  | no turn runs, no share is owed   | `drain_s`: what is left  | the old units are opened again              |
|           |                                  | is taken away            |                                             |
| preparing | every new unit holds weights     | of each of its steps     | the new roles end; the old units are opened |
|           |                                  |                          | again, or start afresh                      |
| returning | the new roles have ended (then   | the supervisor's kill    | nothing                                     |
|           | it has failed)                   |                          |                                             |

A move is a level-triggered machine: `advance` looks at the units' states, so it does not matter in which order answers come,
and an answer of an earlier process cannot count (it names a command that nobody awaits). Whatever happens, each rank ends up
in exactly one unit. The epoch grows when a move begins and when it is over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from libra.core.commands import MoveChanged, Role
from libra.core.fleet import NOBODY, Engine, Fleet, Unit
from libra.core.learner import Learner
from libra.core.lifecycle import Lifecycle
from libra.core.outbox import Outbox
from libra.core.placement import Placement
from libra.core.rollout import Rollout

Stage = Literal["draining", "preparing", "ready", "returning", "failed"]


@dataclass(slots=True)
class Plan:
    """What a set of ranks is to become: (bucket index, or -1 for a gradient replica; its ranks) for each new unit."""

    units: tuple[tuple[int, tuple[int, ...]], ...]
    spare: tuple[int, ...] = ()
    """Ranks that are to do nothing."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted([*(rank for _, ranks in self.units for rank in ranks), *self.spare]))


@dataclass(slots=True)
class Move:
    id: int
    author: str
    """Who wanted it; "" for the automatic rule."""
    leaving: list[Unit]
    joining: list[Unit]
    ranks: tuple[int, ...]
    prepare_first: bool
    began: float
    stage: Stage
    since: float
    reason: str = ""
    """Why it goes back, or failed."""

    @property
    def what(self) -> str:
        """For people: "engine 3 -> replica 9"."""
        return " -> ".join(" + ".join(u.name for u in side) or "spare" for side in (self.leaving, self.joining))

    @property
    def undo(self) -> Plan:
        """The plan that leads back."""
        worked = {rank for u in self.leaving for rank in u.ranks}
        return Plan(tuple((u.bucket, u.ranks) for u in self.leaving), tuple(r for r in self.ranks if r not in worked))

    @property
    def role(self) -> Role | Literal["spare"]:
        """What its ranks become."""
        return self.joining[0].role if self.joining else "spare"


class Handover:
    """Begins moves and carries them on. `over(move)` is called when one has ended, well or not."""

    def __init__(
        self,
        fleet: Fleet,
        out: Outbox,
        lifecycle: Lifecycle,
        rollout: Rollout,
        placement: Placement,
        learner: Learner,
        drain_s: float,
        over: Callable[[Move], None],
    ) -> None:
        self.fleet = fleet
        self.out = out
        self.lifecycle = lifecycle
        self.rollout = rollout
        self.placement = placement
        self.learner = learner
        self.drain_s = drain_s
        self.moves: dict[int, Move] = {}
        """Under way, by id."""
        self.begun = 0
        self._over = over

    # --- begin and end

    def begin(self, plan: Plan, author: str, prepare_first: bool) -> Move:
        """Start a move that `libra.core.allocation` has found legal."""
        leaving = [u for u in self.fleet.units() if set(u.ranks) & set(plan.ranks)]
        self.begun += 1
        self.fleet.epoch += 1
        joining: list[Unit] = []
        for bucket, ranks in plan.units:
            unit = self.fleet.add_replica(ranks) if bucket < 0 else self.fleet.add_engine(bucket, ranks)
            unit.gated = True
            if isinstance(unit, Engine):
                self.placement.engine_added(unit)
            joining.append(unit)
        move = Move(
            self.begun, author, leaving, joining, plan.ranks, prepare_first, self.out.now, "draining", self.out.now
        )
        self.moves[move.id] = move
        for rank in plan.ranks:
            self.fleet.take(rank, move.id)
        if prepare_first:
            self._prepare(move)
        else:
            self._drain(move)
        return move

    def cancel(self, move: Move, reason: str) -> None:
        """Go back, at any stage before `ready`."""
        if move.stage in ("draining", "preparing"):
            self._return(move, reason)

    def advance(self) -> None:
        """Carry on whatever can go on."""
        for move in list(self.moves.values()):
            match move.stage:
                case "draining":
                    self._draining(move)
                case "preparing":
                    self._preparing(move)
                case "returning":
                    self._returning(move)
                case _:
                    pass

    # --- stages

    def _enter(self, move: Move, stage: Stage) -> None:
        move.stage, move.since = stage, self.out.now
        self.out.put(
            MoveChanged(
                self.out.next_seq(), move.id, stage, self.fleet.epoch, move.ranks, move.what, move.author, move.reason,
                self.out.now - move.began, move.role,
            )
        )  # fmt: skip

    def _drain(self, move: Move) -> None:
        self._enter(move, "draining")
        for unit in move.leaving:
            if unit.state == "serving":
                unit.close()
                if isinstance(unit, Engine):
                    self.rollout.cut(unit)
            elif unit.state not in ("idle", "ending"):  # not open yet: nothing to wait for
                self.lifecycle.take_down(unit, f"its ranks move ({move.what})")
        self.out.after(self.drain_s, lambda: self._drain_expired(move))

    def _draining(self, move: Move) -> None:
        if lost := self._lost(move):
            self._return(move, lost)
            return
        if move.prepare_first and (broken := [u for u in move.joining if not u.live]):
            self._return(move, f"{broken[0].name} ended before it was opened")
            return
        if any(not self._drained(unit) for unit in move.leaving):
            return
        if move.prepare_first:
            self._commit(move)
            return
        for unit in move.leaving:
            self.lifecycle.take_down(unit, f"its ranks move ({move.what})")
        if all(unit.state == "idle" for unit in move.leaving):
            self._prepare(move)

    def _drained(self, unit: Unit) -> bool:
        if unit.state in ("idle", "ending"):
            return True
        return unit.load.running == 0 if isinstance(unit, Engine) else self.learner.released(unit)

    def _drain_expired(self, move: Move) -> None:
        """What has not come by now is taken away: turns are sampled anew elsewhere, micro-batches go to others."""
        if move.stage != "draining":
            return
        for unit in move.leaving:
            if unit.live and not self._drained(unit):
                self.lifecycle.take_down(unit, f"it did not drain within {self.drain_s:g} s")

    def _prepare(self, move: Move) -> None:
        self._enter(move, "preparing")
        for unit in move.joining:
            self.lifecycle.bring_up(unit)

    def _preparing(self, move: Move) -> None:
        broken = next((u for u in move.joining if not u.live), None)
        if lost := self._lost(move):
            self._return(move, lost)
        elif broken is not None:
            self._return(move, f"{broken.name} could not be brought up")
        elif all(unit.state == "ready" for unit in move.joining):
            if move.prepare_first:
                self._drain(move)
                self._draining(move)
            else:
                self._commit(move)

    def _lost(self, move: Move) -> str:
        lost = [r for r in move.ranks if self.fleet.ranks[r].status == "lost"]
        return f"rank {lost[0]} is lost" if lost else ""

    def _commit(self, move: Move) -> None:
        self.fleet.epoch += 1
        for unit in move.leaving:
            self.lifecycle.take_down(unit, f"its ranks moved ({move.what})")
            self._remove(unit)
        for rank in move.ranks:
            self.fleet.ranks[rank].unit = NOBODY
        for unit in move.joining:
            unit.gated = False
            for rank in unit.ranks:
                self.fleet.ranks[rank].unit = unit.id
            unit.open()
            self.fleet.stirred[unit.id] = None
        self._end(move, "ready")

    def _return(self, move: Move, reason: str) -> None:
        move.reason = reason
        self._enter(move, "returning")
        for unit in move.joining:
            self.lifecycle.take_down(unit, reason)
        for unit in move.leaving:
            if unit.state == "closing":
                unit.open()
                self.fleet.stirred[unit.id] = None
        self._returning(move)

    def _returning(self, move: Move) -> None:
        if any(unit.state != "idle" for unit in move.joining):
            return
        self.fleet.epoch += 1
        for unit in move.joining:
            self._remove(unit)
        self._end(move, "failed")
        for unit in move.leaving:
            self.lifecycle.look_at(unit)

    def _remove(self, unit: Unit) -> None:
        if isinstance(unit, Engine):
            self.placement.engine_removed(unit)
        else:
            self.learner.sharing.forget(unit)
        self.fleet.remove(unit)
        if isinstance(unit, Engine):
            self.placement.recount(unit.bucket)

    def _end(self, move: Move, stage: Stage) -> None:
        del self.moves[move.id]
        for rank in move.ranks:
            self.fleet.ranks[rank].move = 0
        self._enter(move, stage)
        self._over(move)


def overlapping(plans: Sequence[Plan]) -> bool:
    """Whether some rank appears twice."""
    ranks = [rank for plan in plans for rank in plan.ranks]
    return len(set(ranks)) < len(ranks)
