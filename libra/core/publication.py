"""Who holds which weights, and which engine is told to fetch what.

A version exists once *all* core ranks hold their shards of it. An engine has one installation under way at a time and always
fetches the newest, so a slow engine skips versions and never makes anybody wait. An engine that fails to install again and
again, or does not answer, is of no use: it is reported, with the reason, and replaced.
"""

from collections.abc import Callable

from libra.config.schema import DeadlineConfig
from libra.core.commands import InstallWeights
from libra.core.events import WeightsFailed, WeightsHeld, WeightsInstalled
from libra.core.fleet import Engine, Fleet
from libra.core.outbox import Outbox
from libra.core.trajectory import NO_VERSION

FAILURES_LIMIT = 3
"""Installations that may fail in a row before the engine is replaced."""
ANSWER_MARGIN_S = 5.0
"""The engine itself gives up at `deadline.weights_s`; without any answer so much later it counts as silent."""


class Publication:
    """`replace(engine, reason)` is the coordinator's: end the engine's roles so that they start afresh."""

    def __init__(
        self, fleet: Fleet, out: Outbox, deadline: DeadlineConfig, replace: Callable[[Engine, str], None]
    ) -> None:
        self.fleet = fleet
        self.out = out
        self.deadline = deadline
        self.newest = NO_VERSION
        """The newest version that all core ranks hold."""
        self._settled = (NO_VERSION, False)
        """(newest, only_fresh) when all engines were last looked at; until it changes, only those that stirred are."""
        self._behind = len(fleet.trainers)
        """Core ranks that hold nothing newer than `newest`."""
        self._held: dict[int, int] = dict.fromkeys(fleet.trainers, NO_VERSION)
        self._replace = replace

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

    def advance(self, only_fresh: bool) -> None:
        """Tell every engine that is up, behind and not already fetching to fetch the newest version.

        `only_fresh`: only those that hold no weights at all; without any an engine is of no use to anybody.
        """
        stirred = self.fleet.stirred
        if (self.newest, only_fresh) != self._settled:
            self._settled = (self.newest, only_fresh)
            engines = self.fleet.engines
        elif stirred:  # asked after every event: what it costs must not grow with the engines
            engines = [self.fleet.engines[id] for id in sorted(stirred)]
        else:
            return
        stirred.clear()
        for engine in engines:
            load = engine.load
            if only_fresh and load.version != NO_VERSION:
                continue
            if load.version < self.newest and load.up and not engine.installing:
                seq = self.out.next_seq()
                engine.installing = self.out.put(InstallWeights(seq, engine.id, self.newest))
                engine.installing_version = self.newest
                self.out.after(
                    self.deadline.weights_s + ANSWER_MARGIN_S, lambda engine=engine, seq=seq: self._silent(engine, seq)
                )

    def installed(self, e: WeightsInstalled) -> None:
        engine = self.fleet.engines[e.engine]
        if engine.installing == e.cmd:
            engine.installing = 0
            self.fleet.stirred[engine.id] = None
            engine.failures = 0
            engine.load.installed(e.version)

    def failed(self, e: WeightsFailed) -> None:
        engine = self.fleet.engines[e.engine]
        if engine.installing != e.cmd:
            return
        engine.installing = 0
        engine.failures += 1
        self.fleet.stirred[engine.id] = None
        self.out.report("warning", f"engine {e.engine} could not install version {e.version}: {e.reason}")
        if engine.failures >= FAILURES_LIMIT:
            self._replace(engine, f"engine {e.engine} failed to install weights {engine.failures} times: {e.reason}")

    def _silent(self, engine: Engine, seq: int) -> None:
        if engine.installing == seq:
            waited = self.deadline.weights_s + ANSWER_MARGIN_S
            reason = (
                f"engine {engine.id} has not answered about version {engine.installing_version} for {waited:g} s"
                f" (it holds version {engine.load.version})"
            )
            self.out.report("warning", reason)
            self._replace(engine, reason)
