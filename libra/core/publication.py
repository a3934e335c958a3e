"""Who holds which weights, and who is told to fetch what.

A version exists once *all* core ranks hold their shards of it. A unit, engine or gradient replica, has one installation under
way at a time, on all of its ranks, and always fetches the newest; so a slow one skips versions and never makes anybody wait.
Where its ranks end up with different versions (one came too late and got a newer one) it fetches again. A unit that fails to
install again and again, or does not answer, is of no use: it is reported, with the reason, and starts afresh.
"""

from collections.abc import Callable, Sequence

from libra.config.schema import DeadlineConfig
from libra.core.commands import InstallWeights
from libra.core.events import WeightsFailed, WeightsHeld, WeightsInstalled
from libra.core.fleet import CORE, Fleet, Unit
from libra.core.outbox import Outbox
from libra.core.scheduler.load import NO_WEIGHTS
from libra.core.trajectory import NO_VERSION

FAILURES_LIMIT = 3
"""Installations that may fail in a row before the unit starts afresh."""
ANSWER_MARGIN_S = 5.0
"""A rank itself gives up at `deadline.weights_s`; without any answer so much later it counts as silent."""


class Publication:
    """`fail(unit, reason, culprits)` ends the unit's roles so that they start afresh."""

    def __init__(
        self, fleet: Fleet, out: Outbox, deadline: DeadlineConfig, fail: Callable[[Unit, str, Sequence[int]], None]
    ) -> None:
        self.fleet = fleet
        self.out = out
        self.deadline = deadline
        self.newest = NO_VERSION
        """The newest version that all core ranks hold."""
        self._behind = len(fleet.trainers)
        """Core ranks that hold nothing newer than `newest`."""
        self._held: dict[int, int] = dict.fromkeys(fleet.trainers, NO_VERSION)
        self._fetching: dict[int, Unit] = {}
        """`InstallWeights` under way -> its unit."""
        self._looked_at = (NO_VERSION, NO_VERSION)
        """What `advance` saw last; until it changes, only the units that stirred are looked at."""
        self._fail = fail

    def held(self, e: WeightsHeld) -> None:
        before = self._held.get(e.rank)
        if before is None or e.version <= before:
            return
        self._held[e.rank] = e.version
        if before <= self.newest < e.version:
            self._behind -= 1
            if not self._behind:
                self.newest = min(self._held.values())
                self._behind = sum(v <= self.newest for v in self._held.values())

    def advance(self, wanted: int) -> None:
        """Tell every unit that is behind and not fetching to fetch the newest version; open those that wait for nothing else.

        `wanted`: engines that hold this version, or a newer one, keep theirs for now. Replicas need the very newest.
        """
        looked_at, stirred = (min(wanted, self.newest), self.newest), self.fleet.stirred
        if looked_at == self._looked_at and not stirred:
            return
        units = [self.fleet.unit(id) for id in stirred] if looked_at == self._looked_at else self.fleet.units()
        self._looked_at = looked_at
        stirred.clear()
        for unit in units:
            if unit is None or not unit.fetches or unit.id == CORE:
                continue
            version = unit.version
            if unit.state == "fetching" and version != NO_WEIGHTS:
                unit.state = "ready"
            if unit.state == "ready" and not unit.gated:
                unit.open()
            if not unit.command and version < (looked_at[0] if unit.role == "rollout" else self.newest):
                self._order(unit)

    def _order(self, unit: Unit) -> None:
        seq = self.out.next_seq()
        unit.command, unit.asked, unit.awaited = seq, self.newest, list(unit.ranks)
        self._fetching[seq] = unit
        self.out.put(InstallWeights(seq, unit.id, self.newest, unit.ranks))
        self.out.after(self.deadline.weights_s + ANSWER_MARGIN_S, lambda: self._silent(unit, seq))

    def installed(self, e: WeightsInstalled) -> None:
        unit = self._answered(e.cmd, e.rank)
        if unit is None:
            return
        unit.held[e.rank] = e.version
        if not unit.awaited:
            self._over(unit)
            if (version := unit.version) != NO_WEIGHTS:
                unit.failures = 0
                unit.installed(version)

    def failed(self, e: WeightsFailed) -> None:
        unit = self._answered(e.cmd, e.rank)
        if unit is None:
            return
        self._over(unit)
        unit.failures += 1
        self.out.report("warning", f"{unit.name} could not install version {e.version}: {e.reason}")
        if unit.failures >= FAILURES_LIMIT:
            self._fail(unit, f"{unit.name} failed to install weights {unit.failures} times: {e.reason}", (e.rank,))

    def _answered(self, cmd: int, rank: int) -> Unit | None:
        unit = self._fetching.get(cmd)
        if unit is None or unit.command != cmd or rank not in unit.awaited:
            return None
        unit.awaited.remove(rank)
        return unit

    def _over(self, unit: Unit) -> None:
        self._fetching.pop(unit.command, None)
        unit.command = 0
        unit.awaited.clear()
        self.fleet.stirred[unit.id] = None

    def _silent(self, unit: Unit, seq: int) -> None:
        self._fetching.pop(seq, None)
        if unit.command == seq:
            waited = self.deadline.weights_s + ANSWER_MARGIN_S
            ranks = ", ".join(str(r) for r in unit.awaited)
            reason = (
                f"{unit.name} has not answered about version {unit.asked} for {waited:g} s"
                f" (rank {ranks}; it holds version {unit.version})"
            )
            self.out.report("warning", reason)
            self._fail(unit, reason, unit.awaited)
