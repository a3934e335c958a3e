"""The calculator for a pretrained model that chats: the same questions and the same tool, in the model's own words.

    system      what there is to call, and in which form
    user, assistant, tool, assistant          one example, so that the form has been seen
    user        What is 43 - 12?
    assistant   <tool_call>[{"name": "calculator", "arguments": {"expression": "43 - 12"}}]</tool_call>      sampled
    tool        31
    assistant   The answer is 31.                                                                             sampled

Reward: 1 for exactly `The answer is V.` with the right V after at least one call that succeeded, else 0. A small model rarely
gets there at first; a format stage beside it (`[reward]`) makes rewards within a group differ. Made by the registry.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from libra.config.pretrained import copy_tokenizer
from libra.config.schema import ModelConfig
from libra.config.worlds import CalculatorConfig
from libra.env.calculator.session import TOOL
from libra.env.calculator.tasks import Task, draw_task
from libra.env.chat.calls import ToolCall, protocol
from libra.env.chat.session import ChatSession, ChatTask, Limits, tool_schema
from libra.env.chat.words import ChatWords, Message
from libra.env.faults import draw_fault
from libra.env.protocol import Demonstration, Ended, Split
from libra.env.tools.pool import ToolPool, ToolReply, call_in
from libra.errors import ConfigError

_TOOL_FILE = Path(__file__).with_name("tool.py")
_SCHEMA = tool_schema(TOOL, "One operation on two numbers.", [("expression", "number, +, - or *, number")])
_ANSWER = re.compile(r"\s*the answer is:? (-?\d{1,4})\.?\s*", re.IGNORECASE)
_EXAMPLE = ("26", "+", "8", "34")


class _Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    expression: str


class ChatCalculator:
    """See `libra.env.protocol.Environment`. Calls have no side effects, so a trajectory resumes by replaying them."""

    resume: Literal["replay", "snapshot", "restart"] = "replay"

    def __init__(self, config: CalculatorConfig, model: ModelConfig) -> None:
        self._config, self._model = config, model
        self._words = ChatWords(model)
        self.vocabulary = self._words.vocabulary
        self._limits = Limits(config.turn_tokens, config.trajectory_tokens, config.max_calls, config.max_errors)
        self._pool: ToolPool | None = None
        prompt = len(self._words.opening(self._messages("99 * 99"), (_SCHEMA,)))
        if prompt + config.turn_tokens > config.trajectory_tokens:
            raise ConfigError(
                "the calculator",
                [
                    f"env.trajectory_tokens = {config.trajectory_tokens}: the prompt takes {prompt} tokens of this model and a "
                    f"turn {config.turn_tokens}; raise it to {prompt + 3 * config.turn_tokens} or so"
                ],
            )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with ToolPool({TOOL: _TOOL_FILE}, self._config.tool) as self._pool:
            try:
                yield
            finally:
                self._pool = None

    def open(self, split: Split, seed: int, ordinal: int, fault_key: tuple[int, ...]) -> ChatSession:
        async def call_tool(number: int, tool: str, argument: str) -> ToolReply:
            return await call_in(self._pool, tool, argument, draw_fault(self._config.fault, seed, fault_key, number))

        task = draw_task(self._config, seed, split, ordinal)
        chat = ChatTask(
            self._messages(task.question), (_SCHEMA,), argument_of, lambda text, done: judge(task, text, done)
        )
        return ChatSession(self._words, chat, self._limits, call_tool)

    def encode(self, text: str) -> list[int]:
        return self._words.encode(text)

    def decode(self, tokens: list[int]) -> str:
        return self._words.decode(tokens)

    def demonstrations(self, seed: int, n: int, give_up: float, malformed: float) -> list[Demonstration]:
        raise ConfigError(
            "warm_start", ["a pretrained model has no demonstrations to begin with; set warm_start.steps = 0"]
        )

    def save_tokenizer(self, directory: Path) -> None:
        copy_tokenizer(Path(self._model.pretrained), directory)

    def _messages(self, question: str) -> tuple[Message, ...]:
        offer = "" if self._words.takes_tools else protocol((_SCHEMA,)) + "\n\n"
        left, operator, right, value = _EXAMPLE
        return (
            {"role": "system", "content": f'{offer}Use the calculator, then reply "The answer is N."'},
            {"role": "user", "content": f"What is {left} {operator} {right}?"},
            {"role": "assistant", "content": _call(f"{left} {operator} {right}")},
            {"role": "tool", "content": value},
            {"role": "assistant", "content": f"The answer is {value}."},
            {"role": "user", "content": f"What is {question}?"},
        )


def argument_of(call: ToolCall) -> str | None:
    """The expression of a call of the calculator; None where it is another tool's, or its arguments are not ours."""
    if call.name != TOOL:
        return None
    try:
        return msgspec.convert(call.arguments, _Arguments).expression
    except msgspec.ValidationError:
        return None


def judge(task: Task, text: str, successes: int) -> Ended:
    """The end of an episode whose last turn is `text`."""
    said = _ANSWER.fullmatch(text)
    if said is None:
        return Ended(0.0, "not an answer", False)
    if int(said[1]) != task.answer:
        return Ended(0.0, "wrong")
    return Ended(1.0, "right") if successes else Ended(0.0, "right, but without a successful call")


def _call(expression: str) -> str:
    return f'<tool_call>[{{"name": "{TOOL}", "arguments": {{"expression": "{expression}"}}}}]</tool_call>'
