"""The look-up as an `Environment`: tasks, sessions and demonstrations under one configuration. Made by the registry.

While it runs, the corpus lies as a database in a temporary directory of its own; each tool worker opens it read-only.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from libra.config.worlds import LookupConfig
from libra.env.faults import draw_fault
from libra.env.lookup import tokens as words
from libra.env.lookup.corpus import build
from libra.env.lookup.demonstrations import demonstrations
from libra.env.lookup.session import TOOL, LookupSession
from libra.env.lookup.tasks import draw_task, longest
from libra.env.protocol import Demonstration, Split, Vocabulary
from libra.env.tools.pool import ToolPool, ToolReply, call_in
from libra.errors import ConfigError

_LEAST_OUTPUT_BYTES = 64
_TOOL_FILE = Path(__file__).with_name("tool.py")


class Lookup:
    """See `libra.env.protocol.Environment`. Queries change nothing, so a trajectory resumes by replaying them."""

    resume: Literal["replay", "snapshot", "restart"] = "replay"
    vocabulary: Vocabulary = words.VOCABULARY

    def __init__(self, config: LookupConfig) -> None:
        _check(config)
        self._config = config
        self._pool: ToolPool | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix="libra-lookup-") as directory:
            database = Path(directory) / "facts.db"
            build(database)
            tools, variables = {TOOL: _TOOL_FILE}, {"LIBRA_LOOKUP": str(database)}
            async with ToolPool(tools, self._config.tool, variables) as self._pool:
                try:
                    yield
                finally:
                    self._pool = None

    def open(self, split: Split, seed: int, ordinal: int, fault_key: tuple[int, ...]) -> LookupSession:
        async def call_tool(number: int, argument: str) -> ToolReply:
            return await call_in(self._pool, TOOL, argument, draw_fault(self._config.fault, seed, fault_key, number))

        return LookupSession(draw_task(self._config, seed, split, ordinal), self._config, call_tool)

    def encode(self, text: str) -> list[int]:
        return words.encode(text)

    def decode(self, tokens: list[int]) -> str:
        return words.decode(tokens)

    def demonstrations(self, seed: int, n: int, give_up: float, malformed: float) -> list[Demonstration]:
        return demonstrations(self._config, seed, n, give_up, malformed)

    def save_tokenizer(self, directory: Path) -> None:
        words.save_tokenizer(directory)


def _check(config: LookupConfig) -> None:
    """Relations between values that would make every long question unanswerable."""
    problems = []
    if config.max_hops > longest():
        problems.append(
            f"env.max_hops = {config.max_hops}: the corpus has questions of at most {longest()} hops; lower it"
        )
    needed = config.max_hops + 3 + 8 * config.max_hops + 3
    if config.trajectory_tokens < needed:
        problems.append(
            f"env.trajectory_tokens = {config.trajectory_tokens}: {config.max_hops} hops take {needed} tokens without a "
            "single mistake; raise it or lower env.max_hops"
        )
    if config.max_calls < config.max_hops:
        problems.append(f"env.max_calls = {config.max_calls}: {config.max_hops} hops need as many calls; raise it")
    if config.turn_tokens < 4:
        problems.append(f"env.turn_tokens = {config.turn_tokens}: a query takes 4 tokens; raise it")
    if config.tool.output_bytes < _LEAST_OUTPUT_BYTES:
        problems.append(
            f"env.tool.output_bytes = {config.tool.output_bytes}: a record takes up to {_LEAST_OUTPUT_BYTES}; raise it"
        )
    if problems:
        raise ConfigError("the look-up", problems)
