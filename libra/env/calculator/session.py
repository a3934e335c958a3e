"""One episode with the calculator. Called by the controller, one method at a time.

    <question> 43 - 12 + 7 <solve>            given
    <call> 43 - 12 <run>                      sampled: a call takes the running value, an operator, an operand
    <result> 31                               given back by the tool
    <call> 31 + <run>                         sampled: malformed
    <error> malformed                         given back; the policy may try again
    <call> 31 + 7 <run>  ->  <result> 38
    <answer> 38 <end>                         sampled: closes the episode, reward 1

Ten operations and two wrong calls make 110 tokens: 23 + 12 * (5 + 2) + 3.

Reward: 1 for exactly `<answer> V <end>` with the right V after at least one call that succeeded, else 0. (So there is
nothing to be had by guessing, nor when the tool fails every call.) The episode also ends, with 0, at the call after
`max_calls`, at the error after `max_errors`, and where the next observation leaves no room for a turn.
"""

from collections.abc import Awaitable, Callable

from libra.config.schema import CalculatorConfig
from libra.env.calculator.tasks import Task
from libra.env.calculator.tokens import (
    ANSWER,
    CALL,
    CUT,
    END,
    ERROR,
    ERRORS,
    RESULT,
    RUN,
    decode,
    encode,
    id_value,
    value_id,
)
from libra.env.calculator.tool import HIGHEST
from libra.env.protocol import Ended, Observation
from libra.env.tools.pool import ToolReply
from libra.errors import EnvError

TOOL = "calculator"
CallTool = Callable[[int, str], Awaitable[ToolReply]]
"""(number of the call in this episode from 0, argument) -> reply. Raises EnvError."""
_VALUE_IDS = {str(value): value_id(value) for value in range(HIGHEST + 1)}
_ERROR_IDS = {word: encode(word)[0] for word in ERRORS}
_MALFORMED = _ERROR_IDS["malformed"]


def prompt_tokens(task: Task) -> list[int]:
    """The question, and nothing of its answer."""
    return encode(f"<question> {task.question} <solve>")


class CalculatorSession:
    def __init__(self, task: Task, config: CalculatorConfig, call_tool: CallTool) -> None:
        self._task = task
        self._config = config
        self._call_tool = call_tool
        self._prompt = prompt_tokens(task)
        self._context_tokens = len(self._prompt)
        self._calls = 0
        self._errors = 0
        self._successes = 0

    async def prompt(self) -> list[int]:
        return list(self._prompt)

    def turn_budget(self, context_tokens: int) -> int:
        return max(0, min(self._config.turn_tokens, self._config.trajectory_tokens - context_tokens))

    async def act(self, sampled: list[int]) -> Observation | Ended:
        if not sampled:
            return Ended(0.0, "no room for another turn", None)
        self._context_tokens += len(sampled)
        if sampled[-1] == END:
            return self._judge(sampled)
        if sampled[0] == CALL and sampled[-1] == RUN:
            if self._calls == self._config.max_calls:
                return Ended(0.0, f"more than {self._config.max_calls} calls")
            seen = await self._call(decode(sampled[1:-1]))
        else:
            seen = Observation([ERROR, _MALFORMED], "none", "error", 0.0, False, False)
        if seen.tokens[0] == RESULT:
            self._successes += 1
        else:
            self._errors += 1
        if self._errors > self._config.max_errors:
            return Ended(0.0, f"more than {self._config.max_errors} errors", seen.formed)
        self._context_tokens += len(seen.tokens)
        if self.turn_budget(self._context_tokens) == 0:
            return Ended(0.0, f"out of the {self._config.trajectory_tokens} tokens of a trajectory", seen.formed)
        return seen

    async def aclose(self) -> None:
        """Nothing to free: workers belong to the pool, and hold no state between calls."""

    def _judge(self, sampled: list[int]) -> Ended:
        value = id_value(sampled[1]) if len(sampled) == 3 and sampled[0] == ANSWER else None
        if value is None:
            return Ended(0.0, "not an answer", False)
        if value != self._task.answer:
            return Ended(0.0, "wrong")
        return Ended(1.0, "right") if self._successes else Ended(0.0, "right, but without a successful call")

    async def _call(self, argument: str) -> Observation:
        number, self._calls = self._calls, self._calls + 1
        reply = await self._call_tool(number, argument)
        said = reply.output.split(b"\n", 1)[0].decode(errors="replace")
        if reply.status == "error":
            tokens = [ERROR, _ERROR_IDS.get(said, _ERROR_IDS["failed"])]
        elif (value := _VALUE_IDS.get(said)) is not None:
            tokens = [RESULT, value]
        else:
            raise EnvError(f"the calculator succeeded with {said[:80]!r}, expected a value from 0 to {HIGHEST}")
        if reply.truncated:
            tokens.append(CUT)
        return Observation(tokens, TOOL, reply.status, reply.seconds, reply.truncated, tokens[1] != _MALFORMED)
