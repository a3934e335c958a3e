"""Gradient replicas inside a step: who takes a micro-batch, when a sum is sent, when it is given up.

    serving, holds the step's version ──> takes (Accumulate, one order at a time) ──> nothing left, or it leaves ──> OfferShare
      ──> FetchShare on every core rank ──> held       any failure, or the deadline: discarded, the core computes it

A replica that becomes ready in the middle of a step just starts taking. Near the end of a step it takes only what it can
finish, share included, before the core would have finished without it, as far as the observed paces tell; so a slow replica
helps where it can and never holds a step up. The learner calls this room on every event while a step is open.
"""

from collections.abc import Callable

from libra.core.commands import Accumulate, FetchShare, OfferShare
from libra.core.events import RoundDone, RoundRefused, ShareHeld, ShareLost, ShareOffered
from libra.core.fleet import Fleet, Unit
from libra.core.outbox import Outbox
from libra.core.training import Share, ShareState, TrainingStep

RATE = 0.3
"""Weight of the newest observation in a pace."""
FIRST_TRY = 2
"""Steps after which a replica that was not worth asking is asked once all the same; after each try in vain, twice as many."""
LAST_TRY = 64


class Pace:
    """A slow mean of observed seconds; None before the first. The first of all does not count once there is a second: a process
    that has never computed is slow."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self.count = 0

    def observe(self, seconds: float) -> None:
        self.count += 1
        if self.value is None or self.count == 2:
            self.value = seconds
        else:
            self.value += RATE * (seconds - self.value)


class Record:
    """What is known of one replica."""

    __slots__ = ("idle_steps", "pace", "try_after")

    def __init__(self) -> None:
        self.pace = Pace()
        """Seconds a token of an order's longest slot."""
        self.idle_steps = 0
        """Since it last computed: it could, and was not worth asking."""
        self.try_after = FIRST_TRY

    @property
    def due(self) -> bool:
        """Who is never asked is never found to be faster."""
        return self.idle_steps >= self.try_after

    def computed(self, seconds_a_token: float) -> None:
        self.try_after = min(2 * self.try_after, LAST_TRY) if self.due else FIRST_TRY
        self.idle_steps = 0
        self.pace.observe(seconds_a_token)


class Sharing:
    """`hand_out()` is the learner's: micro-batches have come back to the queue."""

    def __init__(self, fleet: Fleet, out: Outbox, share_s: float, hand_out: Callable[[], None]) -> None:
        self.fleet = fleet
        self.out = out
        self.share_s = share_s
        self.core_pace = Pace()
        """Seconds a token of a round's longest slot."""
        self.records: dict[int, Record] = {}
        """Of each replica that has computed."""
        self.transfer = Pace()
        """Seconds from the offer to the last core rank that holds the share."""
        self._hand_out = hand_out

    # --- handing out

    def advance(self, step: TrainingStep, loss_tokens: int) -> None:
        """Feed the replicas that may take, and have those that are done send their sums."""
        for replica in self.fleet.replicas.values():
            share = step.shares.get(replica.id)
            if share is None:
                if self._may_take(step, replica):
                    share = step.shares[replica.id] = Share(replica)
                else:
                    continue
            if share.state == "taking":
                if replica.state == "serving" and step.queue and self._worth(step, replica):
                    self._order(step, share, loss_tokens)
                elif share.work:
                    self._offer(step, share)
                else:
                    share.state = "discarded"
        if step.computed and not step.closing and not step.waits and not step.ready_to_close:
            step.waits = True
            self.out.after(self.share_s, lambda: self._expired(step))

    def awaited(self, step: TrainingStep) -> bool:
        """Whether a replica will take part in the step as soon as it holds the version."""
        coming = (r for r in self.fleet.replicas.values() if r.state == "serving" and r.id not in step.shares)
        return any(replica.version != step.version - 1 for replica in coming)

    def _may_take(self, step: TrainingStep, replica: Unit) -> bool:
        return bool(step.queue) and self._ready(step, replica) and self._worth(step, replica)

    def _ready(self, step: TrainingStep, replica: Unit) -> bool:
        return replica.state == "serving" and replica.version == step.version - 1 and not replica.command

    def _worth(self, step: TrainingStep, replica: Unit) -> bool:
        """Whether it would send what it takes now before the core and the other replicas have done the rest without it."""
        record, core, transfer_s = self.records.get(replica.id), self.core_pace.value, self.transfer.value
        if record is None or record.due or record.pace.value is None or core is None or transfer_s is None:
            return True
        ahead = sum(step.round_tokens.get(cmd, 0) for cmd in step.unanswered) * len(step.ranks)
        left = ahead + sum(b.tokens for b in step.queue)
        speed = len(step.ranks) / core
        for share in step.shares.values():
            other = self.records.get(share.replica.id)
            if share.replica is not replica and not share.settled and other is not None and other.pace.value:
                speed += len(share.replica.ranks) / other.pace.value
        return step.queue[0].tokens * record.pace.value + transfer_s <= left / speed

    def _order(self, step: TrainingStep, share: Share, loss_tokens: int) -> None:
        ranks = share.replica.ranks
        slots = step.take(len(ranks))
        share.work += [b for b in slots if b is not None]
        share.longest_tokens = max(b.tokens for b in slots if b is not None)
        self._await(share, "working", ranks)
        share.command = self.out.put(
            Accumulate(self.out.next_seq(), step.version - 1, share.replica.id, ranks, slots, loss_tokens)
        )

    def _offer(self, step: TrainingStep, share: Share) -> None:
        ranks = share.replica.ranks
        self._await(share, "offering", ranks)
        share.command = self.out.put(OfferShare(self.out.next_seq(), step.version - 1, share.replica.id, ranks))

    def _await(self, share: Share, state: ShareState, ranks: tuple[int, ...]) -> None:
        share.state = state
        share.awaited = list(ranks)
        share.since = self.out.now

    # --- answers

    def round_done(self, step: TrainingStep, e: RoundDone) -> None:
        share = step.share_of(e.cmd, e.rank)
        if share is None or share.state != "working":
            return
        share.awaited.remove(e.rank)
        if not share.awaited:
            share.state = "taking"
            share.command = 0
            record = self.records.setdefault(share.replica.id, Record())
            record.computed((self.out.now - share.since) / max(1, share.longest_tokens))

    def offered(self, step: TrainingStep, e: ShareOffered) -> None:
        share = step.share_of(e.cmd, e.rank)
        if share is None or share.state != "offering":
            return
        share.awaited.remove(e.rank)
        if not share.awaited:
            began = share.since
            self._await(share, "fetching", step.ranks)
            share.since = began
            seq = self.out.next_seq()
            share.command = self.out.put(
                FetchShare(seq, step.version - 1, share.replica.id, share.replica.ranks, step.ranks)
            )

    def held(self, step: TrainingStep, e: ShareHeld) -> None:
        share = step.share_of(e.cmd, e.rank)
        if share is None or share.state != "fetching":
            return
        share.awaited.remove(e.rank)
        if not share.awaited:
            share.state = "held"
            share.command = 0
            self.transfer.observe(self.out.now - share.since)

    def lost(self, step: TrainingStep, e: ShareLost | RoundRefused) -> None:
        share = step.share_of(e.cmd, e.rank)
        if share is not None:
            self._discard(step, share, e.reason)

    def closed(self, step: TrainingStep) -> None:
        """No more work is handed out."""
        for replica in self.fleet.replicas.values():
            record = self.records.get(replica.id)
            if record and self._ready(step, replica) and replica.id not in step.shares:
                record.idle_steps += 1

    # --- giving up

    def withdraw(self, step: TrainingStep, replica: Unit, reason: str) -> None:
        """The replica is gone, or must go now."""
        share = step.shares.get(replica.id)
        if share is not None and not share.settled:
            self._discard(step, share, reason)

    def forget(self, replica: Unit) -> None:
        """Its pace is of no use any more."""
        self.records.pop(replica.id, None)

    def _expired(self, step: TrainingStep) -> None:
        if step.closing:
            return
        step.waits = False
        for share in list(step.shares.values()):
            if not share.settled:
                self._discard(step, share, f"no share within {self.share_s:g} s after the core's last round")

    def _discard(self, step: TrainingStep, share: Share, reason: str) -> None:
        if step.closing:
            return
        count, tokens = len(share.work), sum(b.tokens for b in share.work)
        step.discard(share)
        if count:
            self.out.report(
                "warning",
                f"{share.replica.name} lost its share of step {step.version - 1} ({count} micro-batches, {tokens} tokens,"
                f" computed by the core): {reason}",
            )
        self._hand_out()
