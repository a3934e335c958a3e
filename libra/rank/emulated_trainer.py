"""The emulated trainer role: one core rank, whose rounds take the cost model's seconds.

    StartWarm ──> Held, Warmed        Open ──> RunRound ... ──> Close ──> StepFinished, Held
    FetchShare ──> a thread of its own asks each rank of the replica ──(the transfer's seconds)──> ShareFetched │ ShareLost

Core ranks keep step without collectives: each is told what all of them take. Gradients are counts: a step that closes must
have summed exactly the loss tokens that it was opened with, over rounds and shares, and its loss is their ratio, 1.
"""

import threading
from dataclasses import dataclass

from libra.core.events import LogprobGap
from libra.errors import RoleError
from libra.rank.emulated_role import EmulatedRole
from libra.rank.emulated_share import fetch
from libra.rank.link import RoleLink
from libra.sim.seconds import round_s, share_s
from libra.wire import messages as m


@dataclass(frozen=True)
class Fetched:
    """A note from a fetching thread: what the share holds, or the reason why it is lost."""

    order: m.FetchShare
    asked: float
    """Run seconds at the order."""
    loss_tokens: int
    reason: str = ""


class EmulatedTrainer(EmulatedRole):
    def __init__(self, link: RoleLink) -> None:
        super().__init__(link)
        self.free_s = 0.0
        """When all rounds that were ordered are done."""
        self._step: m.Open | None = None
        self._summed_tokens = 0
        """Loss tokens in this step's gradient sums, over all core ranks."""
        self._staged: dict[tuple[int, int], int] = {}
        """(step, replica) -> loss tokens of a share that lies in staging."""

    def take(self, order: object) -> None:
        match order:
            case m.StartWarm(cmd=cmd):
                self.link.send(m.Held(0, ""))
                self.link.send(m.Warmed(cmd, True, 0.0, 0.0))
            case m.Load(cmd=cmd, version=version):
                self.link.send(m.Held(version, ""))
                self.link.send(m.Loaded(cmd, 0.0))
            case m.Save(cmd=cmd):  # it has nothing to write
                self.link.send(m.Saved(cmd, 0.0, 0.0, []))
            case m.Open():
                self._step, self._summed_tokens = order, 0
            case m.RunRound():
                self._round(order)
            case m.FetchShare():
                threading.Thread(target=self._fetch, args=(order, self.now), daemon=True).start()
            case Fetched():
                self._stage(order)
            case m.Close():
                self.at(max(self.now, self.free_s), lambda: self._close(order))
            case _:
                super().take(order)

    def _round(self, order: m.RunRound) -> None:
        self.link.doing = "round"
        seconds = round_s(self.config, self.cost, [[row.tokens for row in slot] for slot in order.counts])
        self.free_s = max(self.now, self.free_s) + seconds

        def done() -> None:
            self._summed_tokens += sum(row.loss_tokens for slot in order.counts for row in slot)
            self.link.send(m.RoundFinished(order.cmd, seconds))

        self.at(self.free_s, done)

    def _close(self, order: m.Close) -> None:
        if self._step is None or self._step.step != order.step:
            raise RoleError(f"step {order.step} is to be closed, open is {self._step}")
        shares = {replica: self._staged.get((order.step, replica)) for replica in order.shares}
        missing = [replica for replica, tokens in shares.items() if tokens is None]
        total = self._summed_tokens + sum(tokens or 0 for tokens in shares.values())
        if missing or total != self._step.loss_tokens:
            raise RoleError(
                f"step {order.step}: {total} loss tokens were summed, expected {self._step.loss_tokens}; shares {shares}"
            )
        loss = total / self._step.loss_tokens
        self._staged = {key: tokens for key, tokens in self._staged.items() if key[0] > order.step}
        self._step = None
        self.link.doing = "idle"
        self.link.send(m.Held(order.version, ""))
        self.link.send(m.StepFinished(order.cmd, True, loss, 1.0, 0.0, LogprobGap(), ""))

    # --- shares

    def _fetch(self, order: m.FetchShare, asked: float) -> None:
        """A thread of its own: the rounds go on meanwhile."""
        spec = self.link.spec
        try:
            tokens = fetch(order.sources, spec.token, spec.incarnation, order.version, order.deadline_s)
            note = Fetched(order, asked, tokens)
        except OSError as e:
            note = Fetched(order, asked, 0, f"{type(e).__name__}: {e}")
        self.link.orders.put(note)

    def _stage(self, note: Fetched) -> None:
        order = note.order
        noted = sum(n.loss for n in order.notes)
        if not note.reason and order.notes and noted != note.loss_tokens:
            raise RoleError(
                f"share of step {order.step}: its notes say {noted:g} loss tokens, it holds {note.loss_tokens}"
            )
        if note.reason:
            self.link.send(m.ShareLost(order.cmd, note.reason))
            return
        core, same_node = self.config.allocation.trainer, self.config.simulation.same_node

        def staged() -> None:
            self._staged[order.step, order.replica] = note.loss_tokens
            self.link.send(m.ShareFetched(order.cmd, self.now - note.asked))

        self.at(max(self.now, note.asked + share_s(self.cost, core, same_node)), staged)
