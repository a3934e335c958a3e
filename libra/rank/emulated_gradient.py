"""The emulated gradient role: a member of a replica, whose rounds take the cost model's seconds and sum up counts.

    FormMembers ──> Install ──(joining, later publication)──> [ Accumulate ... ──> OfferShare ]  with every version again

All members are told what each of them takes, so all know the replica's sum: its loss tokens. `[emulation.fault]` makes one
rank hang, dawdle or die at a stage of its choice.
"""

import threading
import time

from libra.rank.emulated_role import EmulatedRole
from libra.rank.emulated_share import ShareServer
from libra.rank.link import RoleLink, leave
from libra.sim.seconds import joining_s, replica_install_s, round_s
from libra.wire import messages as m


class EmulatedGradient(EmulatedRole):
    def __init__(self, link: RoleLink) -> None:
        super().__init__(link)
        self.version = -1
        self.free_s = 0.0
        self._step = -1
        """The step whose sum is open; -1: none."""
        self._loss_tokens = self._own_tokens = 0
        """In the sum: of the replica, and of this member."""
        self._misbehaved = False
        self._server = ShareServer(link.spec.token, link.spec.incarnation, lambda: self._misbehave("sharing"))

    def take(self, order: object) -> None:
        match order:
            case m.Install():
                self._install(order)
            case m.Accumulate():
                self._accumulate(order)
            case m.OfferShare():
                self.at(max(self.now, self.free_s), lambda: self._offer(order))
            case _:
                super().take(order)

    def _install(self, order: m.Install) -> None:
        if self.version >= order.version:  # it was for other members
            self.link.send(m.Installed(order.cmd, self.version, 0.0))
            return
        if self.version < 0:
            self._misbehave("joining")
            joins = self.link.spec.epoch > 0 or order.version > 0
            seconds = joining_s(self.cost, "gradient") if joins else 0.0
        else:
            seconds = replica_install_s(self.config, self.cost)

        def installed() -> None:
            self.version = max(self.version, order.version)
            if self._step < self.version:  # whatever was summed for an earlier step is of no use any more
                self._drop()
            self.link.send(m.Installed(order.cmd, self.version, seconds))

        self.at(max(self.now + seconds, self.free_s), installed)

    def _accumulate(self, order: m.Accumulate) -> None:
        self._misbehave("accumulating")
        if order.version != self.version or self._step not in (-1, order.step):
            reason = f"it holds version {self.version} and the sum of step {self._step}"
            self.link.send(m.RoundRefused(order.cmd, f"got step {order.step} on version {order.version}, but {reason}"))
            return
        self.link.doing = "round"
        self._step = order.step
        seconds = round_s(self.config, self.cost, [[row.tokens for row in slot] for slot in order.counts])
        self.free_s = max(self.now, self.free_s) + seconds

        def done() -> None:
            tokens = [sum(row.loss_tokens for row in slot) for slot in order.counts]
            self._loss_tokens += sum(tokens)
            self._own_tokens += tokens[self.index]
            self.link.send(m.RoundFinished(order.cmd, seconds))

        self.at(self.free_s, done)

    def _offer(self, order: m.OfferShare) -> None:
        if order.step != self._step:
            reason = f"a share of step {order.step} is wanted, but it holds the sum of step {self._step}"
            self.link.send(m.RoundRefused(order.cmd, reason))
            return
        version = self._server.offer(self._loss_tokens)
        note = m.ShareNote(float(self._own_tokens), [0.0] * 6, [])
        self._drop()
        self.link.send(m.ShareOffered(order.cmd, self._server.address, version, note))

    def _drop(self) -> None:
        self._step, self._loss_tokens, self._own_tokens = -1, 0, 0

    # --- faults

    def _misbehave(self, stage: str) -> None:
        """Once a process, in the thread that calls it."""
        fault = self.config.emulation.fault
        if fault.stage != stage or fault.rank != self.link.spec.rank or self._misbehaved:
            return
        self._misbehaved = True
        match fault.kind:
            case "none":
                return
            case "hang":
                threading.Event().wait()
            case "delay":
                time.sleep(fault.delay_s)
            case "die":
                leave(1, f"fault: it dies when {stage}, as configured")
