"""Who moves ranks: people by their orders, the rule by itself; and who goes before whom.

    OrderGiven ──> legal? ──no──> AnswerOrder(refused, why)
                     └─yes─> moves begin, AnswerOrder(accepted), a hold: nothing automatic undoes a person while it lasts
    BatchConsumed ──> the rule's proposal ──(no hold, no move under way)──> legal? ──> a move begins

Orders are idempotent: one that was answered is answered again in the same words. `undo` takes back what the last accepted
order of a person did, whether its moves are still under way or over.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

from libra.config.schema import Config
from libra.core.allocation import Allocation, Refused
from libra.core.balance import Balance, Proposal, Ranks
from libra.core.commands import AnswerOrder
from libra.core.events import OrderGiven
from libra.core.fleet import Fleet
from libra.core.handover import Handover, Move, Plan
from libra.core.orders import (
    Allocate,
    Arrange,
    CancelMove,
    CancelTrajectory,
    Hold,
    MoveRanks,
    Order,
    Pause,
    Raise,
    Resume,
    Undo,
)
from libra.core.outbox import Outbox
from libra.core.trajectory import Trajectory

ANSWERS_KEPT = 256
"""Answered orders that are remembered by their id."""
HISTORY_KEPT = 64
"""Moves that are over and remembered."""


class Elastic:
    def __init__(self, config: Config, fleet: Fleet, out: Outbox, handover: Handover, allocation: Allocation) -> None:
        self.config = config.elastic
        self.fleet = fleet
        self.out = out
        self.handover = handover
        self.allocation = allocation
        self.balance = Balance(config.elastic)
        self.hold_until = 0.0
        """No automatic move before this time, in seconds of the run."""
        self.paused = False
        """No automatic move until a person resumes them."""
        self.history: list[Move] = []
        """The last moves that are over, oldest first."""
        self.proposal: Proposal | None = None
        """What the rule would do now, held back or not."""
        self._answers: OrderedDict[str, AnswerOrder] = OrderedDict()
        self._done: list[Move] = []
        """Moves of the last accepted order of a person."""
        self._idle_s = 0.0
        """Engine seconds without work since the last batch, as a share of all engines."""
        self._looked_at = 0.0
        self._batch_at: float | None = None

    # --- people

    def order(self, e: OrderGiven, ready: bool) -> None:
        """`ready`: the run is past its warm start and not over."""
        known = self._answers.get(e.id)
        if known is not None:
            self._answer(e.id, known.accepted, known.reason)
            return
        try:
            self._check_ready(ready)
            if e.expected_epoch is not None and e.expected_epoch != self.fleet.epoch:
                raise Refused(
                    f"the allocation has changed since: got epoch {e.expected_epoch}, expected {self.fleet.epoch}; look again"
                )
            said = self._carry_out(e.order, e.author)
        except Refused as x:
            self._answer(e.id, False, str(x))
        else:
            self._answer(e.id, True, said)

    def _answer(self, id: str, accepted: bool, reason: str) -> None:
        answer = AnswerOrder(self.out.next_seq(), id, accepted, reason, self.fleet.epoch)
        self.out.put(answer)
        self._answers[id] = answer
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)

    def _carry_out(self, order: Order, author: str) -> str:
        """What was done, for people. Raises Refused, and then nothing was."""
        match order:
            case Allocate() | MoveRanks() | Arrange():
                plans = self.allocation.plans_for(order)
                if not plans:
                    return "nothing to do: it is like that already"
                return self._begin(plans, author)
            case Undo():
                return self._undo(author)
            case CancelMove(move=id):
                self.handover.cancel(self._under_way(id), f"cancelled by {author}")
                self._hold(self.config.hold_s)
                return f"move {id} is taken back"
            case Hold(seconds=seconds):
                self._check_hold(seconds)
                self.hold_until = self.out.now + seconds
                return f"nothing moves by itself for {seconds:g} s" if seconds else "the rule may move ranks again"
            case Pause():
                self.paused = True
                return "nothing moves by itself until it is resumed"
            case Resume():
                self.paused, self.hold_until = False, 0.0
                return "the rule may move ranks again"
            case Raise(trajectory=id, whole_group=whole, raised=raised):
                traj = self._live(id)
                members = [m for m in traj.group.members if m.live] if whole else [traj]
                for member in members:
                    self.handover.rollout.raise_up(member, raised)
                who = f"group {traj.group.id}" if whole else f"trajectory {id}"
                return f"{who} goes before all others" if raised else f"{who} waits its turn again"
            case CancelTrajectory(trajectory=id):
                traj = self._live(id)
                self.handover.rollout.cancel(traj, f"cancelled by {author}")
                return f"trajectory {id} has failed; {'its group is dropped' if traj.group.spoilt else 'it is tried again'}"

    def _live(self, id: int) -> Trajectory:
        traj = self.handover.rollout.trajectory(id)
        if traj is None or not traj.live:
            raise Refused(f"trajectory {id} is not in flight (any more)")
        return traj

    def _check_ready(self, ready: bool) -> None:
        if not ready:
            raise Refused("the run is not under way yet, or it is ending; try again when it is training")

    def draft(self, order: Order, ready: bool) -> list[str]:
        """What the order would do now, a line each, for people; nothing is done. Raises Refused."""
        self._check_ready(ready)
        match order:
            case Allocate() | MoveRanks() | Arrange():
                return [self._effect(plan) for plan in self.allocation.plans_for(order)]
            case Undo():
                moves, plans = self._taken_back()
                self.allocation.check(plans)
                return [f"move {move.id} is taken back" for move in moves] + [self._effect(plan) for plan in plans]
            case CancelMove(move=id):
                return [f"move {self._under_way(id).id} is taken back"]
            case Raise(trajectory=id, whole_group=whole):
                traj = self._live(id)
                return [f"group {traj.group.id}" if whole else f"trajectory {id}"]
            case CancelTrajectory(trajectory=id):
                again = self.handover.rollout.may_retry(self._live(id))
                return [f"trajectory {id}: {'a fresh attempt' if again else 'its group is dropped'}"]
            case Hold(seconds=seconds):
                self._check_hold(seconds)
                return []
            case Pause() | Resume():
                return []

    def _effect(self, plan: Plan) -> str:
        units = [u for u in self.fleet.units() if set(u.ranks) & set(plan.ranks)]
        worked = {rank for u in units for rank in u.ranks}
        before = [u.name for u in units] + _spares([r for r in plan.ranks if r not in worked])
        names = [self.allocation.buckets[b].name if b >= 0 else "replica" for b, _ in plan.units]
        after = [
            f"{name} of rank {', '.join(map(str, ranks))}" for name, (_, ranks) in zip(names, plan.units, strict=True)
        ]
        return f"{' + '.join(before)} -> {' + '.join(after + _spares(plan.spare))}"

    def _begin(self, plans: list[Plan], author: str) -> str:
        moves = [self.handover.begin(plan, author, self.config.prepare_first) for plan in plans]
        self._done = moves
        self._hold(self.config.hold_s)
        return ", ".join(f"move {m.id}: {m.what}" for m in moves)

    def _hold(self, seconds: float) -> None:
        self.hold_until = max(self.hold_until, self.out.now + seconds)

    def _check_hold(self, seconds: float) -> None:
        if not 0 <= seconds < inf:
            raise Refused(f"got a hold of {seconds} s, expected 0 or more")

    def _under_way(self, id: int) -> Move:
        move = self.handover.moves.get(id)
        if move is None or move.stage not in ("draining", "preparing"):
            raise Refused(f"move {id} is not under way")
        return move

    def _taken_back(self) -> tuple[list[Move], list[Plan]]:
        """What an undo cancels, and what it begins."""
        if not self._done:
            raise Refused("there is no order to take back")
        under_way = [m for m in self._done if m.id in self.handover.moves]
        return under_way, [m.undo for m in self._done if m.stage == "ready"]

    def _undo(self, author: str) -> str:
        under_way, plans = self._taken_back()
        self.allocation.check(plans)
        for move in under_way:
            self.handover.cancel(move, f"taken back by {author}")
        said = [f"move {m.id} is taken back" for m in under_way]
        self._done = []
        if plans:
            said.append(self._begin(plans, author))
        self._hold(self.config.hold_s)
        return ", ".join(said) or "nothing to take back: the moves had failed"

    def rescue(self, reason: str) -> bool:
        """No engine is left but those that are leaving: keep these, or take ranks back from training, or that were put aside.
        False: there are none."""
        for move in list(self.handover.moves.values()):
            if move.stage in ("draining", "preparing") and any(u.role == "rollout" and u.live for u in move.leaving):
                self.handover.cancel(move, f"its engine is the last one: {reason}")
                return True
        plan = self.allocation.recall(set(), len(self.fleet.ranks)) or self.allocation.wake()
        if plan is None:
            return any(move.stage == "returning" for move in self.handover.moves.values())
        self.out.report("warning", f"ranks go back to rollout, which has no engine left: {reason}")
        self.handover.begin(plan, "", self.config.prepare_first)
        return True

    # --- by itself

    def look(self, engines: int, busy: int) -> None:
        """Called at each event: how many engines serve, and how many of them had work until now."""
        now = self.out.now
        if engines:
            self._idle_s += (now - self._looked_at) * (1.0 - busy / engines)
        self._looked_at = now

    def consumed(self, busy_s: float) -> None:
        """A batch was trained or skipped; the trainer was busy for `busy_s` with it."""
        now = self.out.now
        if self._batch_at is not None and now > self._batch_at:
            seconds = now - self._batch_at
            self.balance.consumed(seconds, min(busy_s, seconds), min(1.0, self._idle_s / seconds))
        self._batch_at, self._idle_s = now, 0.0
        if self.config.rule == "balance":
            self._by_rule()

    def _by_rule(self) -> None:
        if self.handover.moves:
            return
        lend = self.allocation.lend(set(), len(self.fleet.ranks))
        recall = self.allocation.recall(set(), len(self.fleet.ranks))
        rollout, gradient = self.allocation.counts()
        ranks = Ranks(
            len(self.fleet.trainers),
            rollout,
            gradient,
            len(lend.ranks) if lend else 0,
            len(recall.ranks) if recall else 0,
        )
        self.proposal = proposal = self.balance.propose(ranks)
        plan = None if proposal is None else lend if proposal.direction == "lend" else recall
        if proposal is None or plan is None or self.paused or self.out.now < self.hold_until:
            return
        try:
            self.allocation.check([plan])
        except Refused as x:
            self.out.report("info", f"the rule would move ranks ({proposal.reason}), but {x}")
            return
        self.out.report("info", f"ranks move by themselves: {proposal.reason}")
        self.handover.begin(plan, "", self.config.prepare_first)

    def over(self, move: Move) -> None:
        """A move has ended."""
        self.history.append(move)
        del self.history[:-HISTORY_KEPT]
        if move.stage != "ready":
            return
        for unit in move.joining:
            self.allocation.settled(unit)
        if move.role != "spare":
            self.balance.moved(
                "lend" if move.role == "gradient" else "recall", len(move.ranks), by_rule=not move.author
            )


def _spares(ranks: Sequence[int]) -> list[str]:
    return [f"spare rank {', '.join(map(str, ranks))}"] if ranks else []
