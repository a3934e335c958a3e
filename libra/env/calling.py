"""The frame of an episode of calls and one answer, in words: what the calculator's and the look-up's sessions have in common.

    <question> ... <solve>          given
    <call> ... <run>                sampled: a call, its words between the two
    <result> ...  |  <error> why    given back
    ... <end>                       sampled: closes the episode, which is judged

The episode also ends, with 0, at the call after `max_calls`, at the error after `max_errors`, and where the next observation
leaves no room for a turn. A turn that is no call is an error of the frame: no tool sees it. Called by the controller.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

from libra.env.protocol import Ended, Observation
from libra.env.tools.pool import ToolReply

CallTool = Callable[[int, str], Awaitable[ToolReply]]
"""(number of the call in this episode from 0, argument) -> reply. Raises EnvError."""


class Frame(Struct, frozen=True):
    """Token ids."""

    call: int
    run: int
    result: int
    error: int
    end: int
    malformed: int
    """What follows `error` where a turn was no call."""


class Limits(Protocol):
    """The part of an environment's configuration that bounds an episode."""

    @property
    def max_calls(self) -> int: ...
    @property
    def max_errors(self) -> int: ...
    @property
    def turn_tokens(self) -> int: ...
    @property
    def trajectory_tokens(self) -> int: ...


class CallingSession(ABC):
    def __init__(self, prompt: list[int], frame: Frame, limits: Limits) -> None:
        self._prompt = prompt
        self._frame = frame
        self._limits = limits
        self._context_tokens = len(prompt)
        self._calls = 0
        self._errors = 0
        self._successes = 0

    @abstractmethod
    def _judge(self, sampled: list[int]) -> Ended:
        """The end of an episode whose last turn ended with `<end>`."""

    @abstractmethod
    async def _call(self, number: int, words: list[int]) -> Observation:
        """What call `number` (from 0) gives back: `<result> ...` or `<error> ...`. Raises EnvError."""

    async def prompt(self) -> list[int]:
        return list(self._prompt)

    def turn_budget(self, context_tokens: int) -> int:
        return max(0, min(self._limits.turn_tokens, self._limits.trajectory_tokens - context_tokens))

    async def act(self, sampled: list[int]) -> Observation | Ended:
        frame, limits = self._frame, self._limits
        if not sampled:
            return Ended(0.0, "no room for another turn", None)
        self._context_tokens += len(sampled)
        if sampled[-1] == frame.end:
            return self._judge(sampled)
        if sampled[0] == frame.call and sampled[-1] == frame.run:
            if self._calls == limits.max_calls:
                return Ended(0.0, f"more than {limits.max_calls} calls")
            self._calls += 1
            seen = await self._call(self._calls - 1, sampled[1:-1])
        else:
            seen = Observation([frame.error, frame.malformed], "none", "error", 0.0, False, False)
        if seen.tokens[0] == frame.result:
            self._successes += 1
        else:
            self._errors += 1
        if self._errors > limits.max_errors:
            return Ended(0.0, f"more than {limits.max_errors} errors", seen.formed)
        self._context_tokens += len(seen.tokens)
        if self.turn_budget(self._context_tokens) == 0:
            return Ended(0.0, f"out of the {limits.trajectory_tokens} tokens of a trajectory", seen.formed)
        return seen

    async def aclose(self) -> None:  # noqa: B027 - a session may have more to free
        """Nothing to free: workers belong to the pool, and hold no state between calls."""
