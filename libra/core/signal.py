"""A tool return reduced to what the scheduler may know of it: (tool, size class, status).

The size class counts the observation's tokens; both thresholds are inclusive (500 is small, 5,000 is medium). The status
comes from the tool's own exit state and from nothing else: "0 errors found" on a clean exit is `ok`, "all fine" with exit
code 1 is `error`, a killed tool that printed nothing is `timeout`. Only an environment that has no exit state at all
(a remote service that answers in prose) may plug in a reading of the text; none is plugged in by default.

Environments call `status_of` when a tool has answered; the core makes a `Signal` from the `ToolReturned` event.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from libra.core.events import Status
from libra.errors import ConfigError

Size = Literal["small", "medium", "large"]
TextFallback = Callable[[str], Status]
"""Reads a status out of an observation's text; used only where the tool has no exit state."""


class Signal(Struct, frozen=True, array_like=True, order=True):
    """What one tool return tells. Sequences of these are the keys of the causality tree."""

    tool: str
    size: Size
    status: Status


class SizeClasses(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Upper bounds, inclusive, of the two smaller classes, in tokens of the observation."""

    small_tokens: int = 500
    medium_tokens: int = 5000

    def __post_init__(self) -> None:
        if not 0 <= self.small_tokens < self.medium_tokens:
            got = f"small_tokens = {self.small_tokens}, medium_tokens = {self.medium_tokens}"
            raise ConfigError("size classes", [f"got {got}; expected 0 <= small_tokens < medium_tokens"])

    def of(self, observation_tokens: int) -> Size:
        if observation_tokens <= self.small_tokens:
            return "small"
        return "medium" if observation_tokens <= self.medium_tokens else "large"


DEFAULT_SIZES = SizeClasses()


def signal_of(tool: str, observation_tokens: int, status: Status, sizes: SizeClasses = DEFAULT_SIZES) -> Signal:
    """The signal of a tool return with `observation_tokens` tokens."""
    return Signal(tool, sizes.of(observation_tokens), status)


class ToolExit(Struct, frozen=True):
    """How a tool's process ended. `code` None: it was killed at its deadline and never exited by itself.

    A negative code is the signal that the process died of (a crash, not a deadline): an error.
    """

    code: int | None


def status_of(exit_state: ToolExit | None, text: str, fallback: TextFallback | None = None) -> Status:
    """The status of a tool return. `text` is looked at only without an exit state and with a `fallback`.

    Without either nothing says that the call failed, so it is `ok`.
    """
    if exit_state is not None:
        if exit_state.code is None:
            return "timeout"
        return "ok" if exit_state.code == 0 else "error"
    return "ok" if fallback is None else fallback(text)


class LinePrefixes(Struct, frozen=True, kw_only=True):
    """A text fallback: the status of the first line that begins with one of the markers, else `ok`.

    Whole words in the middle of a line never count; an environment names the prefixes that its tools really print.
    """

    error: tuple[str, ...] = ()
    timeout: tuple[str, ...] = ()

    def __call__(self, text: str) -> Status:
        for line in text.splitlines():
            if self.timeout and line.startswith(self.timeout):
                return "timeout"
            if self.error and line.startswith(self.error):
                return "error"
        return "ok"
