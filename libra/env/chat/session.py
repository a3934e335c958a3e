"""One episode of a model that chats: turns that call a tool, and a last one that answers. Called by the controller.

    sampled turn ── ended? ── calls? ── none ──> the task judges its text: Ended
                      │ no      │ one ──> tool ──> what it said, as the template puts a tool's message
                      └─────────┴ malformed, several, unknown ──> what was wrong, likewise

A turn is of legal form if it is whole and makes exactly one call that fits its tool, or none at all and the task can read its
answer. The episode ends with 0 at the call after `max_calls`, at the error after `max_errors`, and where the next message would
leave no room for a turn: the same rules as those of the calculator's small model.
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from libra.core.events import Status
from libra.env.chat.calls import ToolCall, find_calls
from libra.env.chat.words import ChatWords, Message, Schema
from libra.env.protocol import Ended, Observation
from libra.env.tools.pool import ToolReply

CallTool = Callable[[int, str, str], Awaitable[ToolReply]]
"""(number of the call in this episode from 0, tool, argument) -> reply. Raises EnvError."""
MALFORMED = 'error: malformed; call one tool with <tool_call>[{"name": ..., "arguments": {...}}]</tool_call>'
CUT = " [cut]"
"""Put behind the output of a tool that said more than was kept."""


class Limits(Struct, frozen=True):
    """Of one episode."""

    turn_tokens: int
    trajectory_tokens: int
    max_calls: int
    max_errors: int


class ChatTask(Struct, frozen=True):
    """What a text environment has to say about one episode."""

    messages: tuple[Message, ...]
    """All of them up to the first turn of the model."""
    tools: tuple[Schema, ...]
    argument: Callable[[ToolCall], str | None]
    """What the tool is given for a call; None where the call names no tool of ours or its arguments do not fit."""
    judge: Callable[[str, int], Ended]
    """(text of the turn that calls nothing, calls that succeeded before) -> the end."""


class ChatSession:
    """Makes given tokens of given text; sampled ids are read, never made again."""

    def __init__(self, words: ChatWords, task: ChatTask, limits: Limits, call_tool: CallTool) -> None:
        self._words, self._task, self._limits, self._call_tool = words, task, limits, call_tool
        self._context_tokens = self._calls = self._errors = self._successes = 0

    async def prompt(self) -> list[int]:
        tokens = self._words.opening(self._task.messages, self._task.tools)
        self._context_tokens = len(tokens)
        return tokens

    def turn_budget(self, context_tokens: int) -> int:
        return max(0, min(self._limits.turn_tokens, self._limits.trajectory_tokens - context_tokens))

    async def act(self, sampled: list[int]) -> Observation | Ended:
        if not sampled:
            return Ended(0.0, "no room for another turn", None)
        self._context_tokens += len(sampled)
        whole = sampled[-1] in self._words.vocabulary.stop_ids
        text = self._words.decode(sampled[:-1] if whole else sampled)
        calls = find_calls(text) if whole else None
        if calls == []:
            return self._task.judge(text, self._successes)
        call = calls[0] if calls is not None and len(calls) == 1 else None
        argument = None if call is None else self._task.argument(call)
        if call is None or argument is None:
            seen = self._observation(MALFORMED, whole, "none", "error", 0.0, False, formed=False)
        elif self._calls == self._limits.max_calls:
            return Ended(0.0, f"more than {self._limits.max_calls} calls")
        else:
            seen = await self._called(call.name, argument)
        if seen.status == "ok":
            self._successes += 1
        else:
            self._errors += 1
        if self._errors > self._limits.max_errors:
            return Ended(0.0, f"more than {self._limits.max_errors} errors", seen.formed)
        self._context_tokens += len(seen.tokens)
        if self.turn_budget(self._context_tokens) == 0:
            limit = self._limits.trajectory_tokens
            return Ended(0.0, f"out of the {limit} tokens of a trajectory", seen.formed)
        return seen

    async def aclose(self) -> None:
        """Nothing to free: workers belong to the pool, and hold no state between calls."""

    async def _called(self, tool: str, argument: str) -> Observation:
        number, self._calls = self._calls, self._calls + 1
        reply = await self._call_tool(number, tool, argument)
        said = reply.output.decode(errors="replace").strip()
        content = self._words.plain(said if reply.status == "ok" else f"error: {said}")
        content += CUT if reply.truncated else ""
        return self._observation(content, True, tool, reply.status, reply.seconds, reply.truncated)

    def _observation(
        self, content: str, whole: bool, tool: str, status: Status, seconds: float, truncated: bool, formed: bool = True
    ) -> Observation:
        """A turn that ran into its budget has not said that it ends: that token is given, too."""
        tokens = self._words.continuation([{"role": "tool", "content": content}])
        return Observation(tokens[1:] if whole else tokens, tool, status, seconds, truncated, formed)


def tool_schema(name: str, description: str, arguments: Sequence[tuple[str, str]]) -> Schema:
    """A tool whose arguments, (name, what it is), are all strings."""
    properties = {key: {"type": "string", "description": what} for key, what in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
