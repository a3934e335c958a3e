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
nothing to be had by guessing, nor when the tool fails every call.) Where else an episode ends stands in `libra.env.calling`.
"""

from libra.config.worlds import CalculatorConfig
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
from libra.env.calling import CallingSession, CallTool, Frame
from libra.env.protocol import Ended, Observation
from libra.errors import EnvError

TOOL = "calculator"
_VALUE_IDS = {str(value): value_id(value) for value in range(HIGHEST + 1)}
_ERROR_IDS = {word: encode(word)[0] for word in ERRORS}
_MALFORMED = _ERROR_IDS["malformed"]
_FRAME = Frame(call=CALL, run=RUN, result=RESULT, error=ERROR, end=END, malformed=_MALFORMED)


def prompt_tokens(task: Task) -> list[int]:
    """The question, and nothing of its answer."""
    return encode(f"<question> {task.question} <solve>")


class CalculatorSession(CallingSession):
    def __init__(self, task: Task, config: CalculatorConfig, call_tool: CallTool) -> None:
        super().__init__(prompt_tokens(task), _FRAME, config)
        self._task = task
        self._call_tool = call_tool

    def _judge(self, sampled: list[int]) -> Ended:
        value = id_value(sampled[1]) if len(sampled) == 3 and sampled[0] == ANSWER else None
        if value is None:
            return Ended(0.0, "not an answer", False)
        if value != self._task.answer:
            return Ended(0.0, "wrong")
        return Ended(1.0, "right") if self._successes else Ended(0.0, "right, but without a successful call")

    async def _call(self, number: int, words: list[int]) -> Observation:
        reply = await self._call_tool(number, decode(words))
        said = reply.output.split(b"\n", 1)[0].decode(errors="replace")
        if reply.status == "error":
            tokens = [ERROR, _ERROR_IDS.get(said, _ERROR_IDS["failed"])]
        elif (value := _VALUE_IDS.get(said)) is not None:
            tokens = [RESULT, value]
        else:
            raise EnvError(f"the calculator succeeded with {said[:80]!r}, expected a value from 0 to {HIGHEST}")
        formed = tokens[1] != _MALFORMED
        if reply.truncated:
            tokens.append(CUT)
        return Observation(tokens, TOOL, reply.status, reply.seconds, reply.truncated, formed)
