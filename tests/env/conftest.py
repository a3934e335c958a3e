"""Parts for the tests of environments: an oracle that reads a question, and a tool without a process."""

from collections.abc import Awaitable, Callable

import pytest

from libra.env.calculator import tool
from libra.env.calculator.tasks import Task
from libra.env.tools.pool import ToolReply


def _task(question: str) -> Task:
    words = question.split()
    values, operators = [int(w) for w in words[::2]], words[1::2]
    reached = [values[0]]
    for operator, value in zip(operators, values[1:], strict=True):
        before = reached[-1]
        reached.append({"+": before + value, "-": before - value, "*": before * value}[operator])
    return Task(tuple(values), tuple(operators), tuple(reached))


@pytest.fixture
def task_of() -> Callable[[str], Task]:
    """Reads a question and works it out anew, by arithmetic of its own."""
    return _task


@pytest.fixture
def tool_here() -> Callable[[int, str], Awaitable[ToolReply]]:
    """The calculator tool called in this process."""

    async def call(number: int, argument: str) -> ToolReply:
        ok, output = tool.run(argument)
        return ToolReply("ok" if ok else "error", output.encode(), False, 0.0)

    return call
