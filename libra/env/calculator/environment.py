"""The calculator as an `Environment`: tasks, sessions and demonstrations under one configuration. Made by the registry."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from libra.config.worlds import CalculatorConfig
from libra.env.calculator import tokens as words
from libra.env.calculator.demonstrations import demonstrations
from libra.env.calculator.session import TOOL, CalculatorSession
from libra.env.calculator.tasks import draw_task
from libra.env.faults import draw_fault
from libra.env.protocol import Demonstration, Split, Vocabulary
from libra.env.tools.pool import ToolPool, ToolReply, call_in
from libra.errors import ConfigError

_LEAST_OUTPUT_BYTES = 16
_TOOL_FILE = Path(__file__).with_name("tool.py")


class Calculator:
    """See `libra.env.protocol.Environment`. Calls have no side effects, so a trajectory resumes by replaying them."""

    resume: Literal["replay", "snapshot", "restart"] = "replay"
    vocabulary: Vocabulary = words.VOCABULARY

    def __init__(self, config: CalculatorConfig) -> None:
        _check(config)
        self._config = config
        self._pool: ToolPool | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with ToolPool({TOOL: _TOOL_FILE}, self._config.tool) as self._pool:
            try:
                yield
            finally:
                self._pool = None

    def open(self, split: Split, seed: int, ordinal: int, fault_key: tuple[int, ...]) -> CalculatorSession:
        async def call_tool(number: int, argument: str) -> ToolReply:
            return await call_in(self._pool, TOOL, argument, draw_fault(self._config.fault, seed, fault_key, number))

        return CalculatorSession(draw_task(self._config, seed, split, ordinal), self._config, call_tool)

    def encode(self, text: str) -> list[int]:
        return words.encode(text)

    def decode(self, tokens: list[int]) -> str:
        return words.decode(tokens)

    def demonstrations(self, seed: int, n: int, give_up: float, malformed: float) -> list[Demonstration]:
        return demonstrations(self._config, seed, n, give_up, malformed)

    def save_tokenizer(self, directory: Path) -> None:
        words.save_tokenizer(directory)


def _check(config: CalculatorConfig) -> None:
    """Relations between values that would make every long question unanswerable."""
    problems = []
    if config.max_operand <= config.max_operations:
        problems.append(
            f"env.max_operand = {config.max_operand}: {config.max_operations} operations need "
            f"{config.max_operations + 1} distinct operands from 1 on; raise it or lower env.max_operations"
        )
    longest = 2 * config.max_operations + 3 + 7 * config.max_operations + 3
    if config.trajectory_tokens < longest:
        problems.append(
            f"env.trajectory_tokens = {config.trajectory_tokens}: {config.max_operations} operations take {longest} "
            "tokens without a single mistake; raise it or lower env.max_operations"
        )
    if config.max_calls < config.max_operations:
        problems.append(
            f"env.max_calls = {config.max_calls}: {config.max_operations} operations need as many calls; raise it"
        )
    if config.turn_tokens < 5:
        problems.append(f"env.turn_tokens = {config.turn_tokens}: a call takes 5 tokens; raise it")
    if config.tool.output_bytes < _LEAST_OUTPUT_BYTES:
        problems.append(
            f"env.tool.output_bytes = {config.tool.output_bytes}: a result or an error takes up to "
            f"{_LEAST_OUTPUT_BYTES}; raise it"
        )
    if problems:
        raise ConfigError("the calculator", problems)
