"""Where the rooms of the core put their commands; numbers them, and keeps the book of timers."""

from collections.abc import Callable

from libra.core.commands import Command, Level, Report, SetTimer


class Outbox:
    """`now` is the time of the event being handled, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.last_seq = 0
        self._commands: list[Command] = []
        self._timers: dict[int, Callable[[], None]] = {}

    def next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def put(self, command: Command) -> int:
        """Add a command made with `next_seq()`; returns its number."""
        self._commands.append(command)
        return command.seq

    def take(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    def report(self, level: Level, what: str) -> None:
        self.put(Report(self.next_seq(), level, what))

    def after(self, seconds: float, action: Callable[[], None]) -> int:
        """Run `action` when the shell says that so much time has passed."""
        seq = self.put(SetTimer(self.next_seq(), self.now + seconds))
        self._timers[seq] = action
        return seq

    def fire(self, seq: int) -> None:
        action = self._timers.pop(seq, None)
        if action is not None:
            action()
