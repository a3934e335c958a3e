"""The tool protocol in a model's text: what calls a turn makes, and how tools are described where a template has no place.

    <tool_call>[{"name": "calculator", "arguments": {"expression": "43 - 12"}}]</tool_call>       SmolLM2-Instruct: a list
    <tool_call>{"name": "calculator", "arguments": {"expression": "43 - 12"}}</tool_call>         Qwen2.5 and kin: one each

Both are read. Whatever else stands between the tags is malformed, and is told so; text around the tags does no harm.
Called by chat sessions.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from libra.env.chat.words import Schema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAGGED = re.compile(re.escape(OPEN) + r"(.*?)" + re.escape(CLOSE), re.DOTALL)


class ToolCall(Struct, frozen=True, forbid_unknown_fields=True):
    """One call, as the model wrote it."""

    name: str
    arguments: dict[str, Any]


def find_calls(text: str) -> list[ToolCall] | None:
    """The calls in a turn: [] where it makes none, None where it tries to and is malformed."""
    if OPEN not in text and CLOSE not in text:
        return []
    bodies = _TAGGED.findall(text)
    left = _TAGGED.sub("", text)
    if not bodies or OPEN in left or CLOSE in left:
        return None
    calls: list[ToolCall] = []
    for body in bodies:
        try:
            calls += _decoded(body)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None
    return calls or None


def _decoded(body: str) -> list[ToolCall]:
    """A list of calls, or a single one."""
    raw = msgspec.json.decode(body)
    return msgspec.convert(raw if isinstance(raw, list) else [raw], list[ToolCall])


def protocol(tools: Sequence[Schema]) -> str:
    """What the system message says where the template has no place for tools: the form that SmolLM2-Instruct was trained on."""
    offered = json.dumps([_function(tool) for tool in tools])
    return (
        f"You have access to the following tools:\n<tools>{offered}</tools>\n\n"
        f'A tool is called with nothing but\n{OPEN}[{{"name": "func_name", "arguments": {{"argument": "value"}}}}]{CLOSE}'
    )


def _function(tool: Schema) -> Mapping[str, Any]:
    return tool.get("function", tool)
