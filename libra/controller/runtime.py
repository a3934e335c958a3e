"""The live shell around the core: the one place where events meet commands.

    links, sessions, timers, signals ── post(event) ──> queue ──> journal ──> core ──> journal ──> carry_out(command)
                                                          └── one at a time, to the end, before the next ──┘

`post` may be called from any task of the loop. The events that wait are bounded by what the core has ordered: each trajectory,
rank and timer has at most one answer under way. Nothing is done that the core did not command.
"""

import gc
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from libra.core.commands import Command
from libra.core.coordinator import Core
from libra.core.events import AnyEvent
from libra.telemetry.journal import JournalWriter


class Observer(Protocol):
    """Follows the run, at constant cost, and changes nothing of it: `event`, then each `command` of that event."""

    def event(self, event: AnyEvent, /) -> None: ...
    def command(self, command: Command, /) -> None: ...


YOUNG_OBJECTS = 50_000
"""New objects between two looks at the youngest generation."""
OLD_ROUNDS = 1000
"""Looks at the middle generation between two at all objects."""


def calm_collector() -> None:
    """Let the garbage collector look at what is new and leave what is old alone.

    The core lives in one process with everything that a run remembers, and a full collection of that takes longer than any
    decision may. Events, commands and loads hold no cycles; what does is made once, or dies with its request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, OLD_ROUNDS)


class Runtime:
    """`carry_out(command)` must not wait; what takes time becomes a task whose result is posted."""

    def __init__(
        self,
        core: Core,
        journal: JournalWriter,
        observers: Sequence[Observer],
        carry_out: Callable[[Command], None],
        clock: Callable[[], float],
    ) -> None:
        self.core = core
        self._journal = journal
        self._observers = observers
        self._carry_out = carry_out
        self.clock = clock
        """Seconds since the run began."""
        self._queue: deque[AnyEvent] = deque()
        self._busy = False
        self._last_t = 0.0

    def post(self, event: AnyEvent) -> None:
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                self._handle(self._queue.popleft())
        finally:
            self._busy = False

    def _handle(self, event: AnyEvent) -> None:
        if event.t < self._last_t:  # made before an event that was handled first
            event = msgspec.structs.replace(event, t=self._last_t)
        self._last_t = event.t
        self._journal.event(event)
        commands = self.core.handle(event)
        self._journal.commands(commands)
        for observer in self._observers:
            observer.event(event)
            for command in commands:
                observer.command(command)
        for command in commands:
            self._carry_out(command)
