"""One episode with the look-up. Called by the controller, one method at a time.

    <question> radium discoverer birthplace capital <solve>      given
    <find> radium discoverer <run>                               sampled: a query, of any words
    <result> radium discoverer curie                             given back: the best record
    <find> <run>  ->  <error> malformed                          the policy may try again
    <find> curie birthplace <run>  ->  <result> curie birthplace poland
    <find> poland capital <run>  ->  <result> poland capital warsaw
    <answer> warsaw <end>                                        sampled: closes the episode, reward 1

Six hops and three wrong queries make 78 tokens: 9 + 6 * (4 + 4) + 3 * (4 + 2) + 3.

Reward: 1 for exactly `<answer> NAME <end>` with the right name after at least one query that found a record, else 0. (So
knowing by heart is worth nothing without looking.) Where else an episode ends stands in `libra.env.calling`.
"""

from libra.config.worlds import LookupConfig
from libra.env.calling import CallingSession, CallTool, Frame
from libra.env.lookup.corpus import word
from libra.env.lookup.tasks import Task
from libra.env.lookup.tokens import ANSWER, CUT, END, ERROR, ERRORS, FIND, RESULT, RUN, TABLE, WORDS, decode, encode
from libra.env.protocol import Ended, Observation
from libra.errors import EnvError

TOOL = "lookup"
_ERROR_IDS = {error: TABLE.ids[error] for error in ERRORS}
_MALFORMED = (_ERROR_IDS["malformed"], _ERROR_IDS["syntax"])
_FRAME = Frame(call=FIND, run=RUN, result=RESULT, error=ERROR, end=END, malformed=_MALFORMED[0])


def prompt_tokens(task: Task) -> list[int]:
    """The question, and nothing of its answer."""
    return encode(f"<question> {task.question} <solve>")


class LookupSession(CallingSession):
    def __init__(self, task: Task, config: LookupConfig, call_tool: CallTool) -> None:
        super().__init__(prompt_tokens(task), _FRAME, config)
        self._task = task
        self._call_tool = call_tool

    def _judge(self, sampled: list[int]) -> Ended:
        if len(sampled) != 3 or sampled[0] != ANSWER:
            return Ended(0.0, "not an answer", False)
        if WORDS[sampled[1]] != self._task.answer:
            return Ended(0.0, "wrong")
        return Ended(1.0, "right") if self._successes else Ended(0.0, "right, but without having looked")

    async def _call(self, number: int, words: list[int]) -> Observation:
        reply = await self._call_tool(number, decode(words))
        said = reply.output.split(b"\n", 1)[0].decode(errors="replace")
        if reply.status == "error":
            tokens = [ERROR, _ERROR_IDS.get(said, _ERROR_IDS["failed"])]
        else:
            found = [TABLE.ids.get(word(name), -1) for name in said.split(" | ")]
            if len(found) != 3 or min(found) < 0:
                raise EnvError(f"the look-up succeeded with {said[:80]!r}, expected a record of its corpus")
            tokens = [RESULT, *found]
        formed = tokens[1] not in _MALFORMED
        if reply.truncated:
            tokens.append(CUT)
        return Observation(tokens, TOOL, reply.status, reply.seconds, reply.truncated, formed)
