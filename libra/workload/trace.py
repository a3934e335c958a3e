"""The trace format: one JSON object a line, one line a trajectory. Everything that is simulated or exported speaks it.

    {"group": "astropy-6938", "sample": 0, "family": "repair", "prompt_tokens": 447, "turns": [
      {"sampled_tokens": 197, "tool": "edit", "tool_s": 0.146, "status": "ok", "observed_tokens": 2142},
      {"sampled_tokens": 83, "tool": "", "tool_s": 0.0, "status": "ok", "observed_tokens": 0}]}

| field | meaning |
|---|---|
| `group`, `sample` | the prompt, and which of its samples; together unique in a file |
| `family` | kind of task, a root of its own in the causality tree; "" for none |
| `prompt_tokens` | given tokens before the first turn, at least 1 |
| `arrival_s` | when it came (open-loop traces); optional, 0 |
| `turns` | at least one; the context of a turn is all tokens before it |
| `sampled_tokens` | what the policy generated in the turn, at least 1 |
| `tool`, `tool_s`, `status` | the call that followed: its name, seconds, and `ok`, `error` or `timeout` |
| `observed_tokens` | what it returned, appended to the context |

Only the last turn may have `tool` "" (it ended the episode); if it has a tool (a submission), its seconds count and its
observation is read by nobody. Unknown fields, missing, negative and non-finite numbers are errors that name line and field.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from libra.config.types import NatInt, NonNegFloat, PosInt
from libra.core.events import Status
from libra.errors import ConfigError
from libra.workload.jsonl import Faults, decode, read_lines


class TraceTurn(Struct, frozen=True, forbid_unknown_fields=True):
    sampled_tokens: PosInt
    tool: str
    tool_s: NonNegFloat
    status: Status
    observed_tokens: NatInt


class TraceTrajectory(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    group: Annotated[str, Meta(min_length=1)]
    sample: NatInt
    family: str
    prompt_tokens: PosInt
    turns: Annotated[tuple[TraceTurn, ...], Meta(min_length=1)]
    arrival_s: NonNegFloat = 0.0

    @property
    def sampled_tokens(self) -> int:
        return sum(t.sampled_tokens for t in self.turns)

    @property
    def tool_s(self) -> float:
        return sum(t.tool_s for t in self.turns)

    @property
    def context_tokens(self) -> int:
        """KV room that the trajectory needs at its longest: all tokens but the last observation."""
        return self.prompt_tokens + self.sampled_tokens + sum(t.observed_tokens for t in self.turns[:-1])


def parse_trace(lines: Iterable[bytes], source: str) -> list[TraceTrajectory]:
    """Trajectories in the order of their lines. Raises ConfigError with all faults found; `source` names the file in it."""
    faults = Faults(source)
    found: list[TraceTrajectory] = []
    line_of: dict[tuple[str, int], int] = {}
    for number, trajectory in decode(lines, TraceTrajectory, faults):
        first = line_of.setdefault((trajectory.group, trajectory.sample), number)
        if first != number:
            faults.add(
                number, "sample", f"group {trajectory.group!r} has its sample {trajectory.sample} on line {first}"
            )
        for i, turn in enumerate(trajectory.turns[:-1]):
            if not turn.tool:
                faults.add(
                    number, f"turns[{i}].tool", 'got "", expected a name: only the last turn may end without a call'
                )
        found.append(trajectory)
    faults.settle()
    return found


def read_trace(path: Path | str) -> list[TraceTrajectory]:
    return parse_trace(read_lines(path), str(path))


def write_trace(path: Path | str, trajectories: Iterable[TraceTrajectory]) -> None:
    with Path(path).open("wb") as f:
        for trajectory in trajectories:
            f.write(msgspec.json.encode(trajectory) + b"\n")


def require_room(trajectories: Sequence[TraceTrajectory], room_tokens: int, source: str) -> None:
    """Raise ConfigError if a trajectory is longer than the roomiest engine's KV; says which, and what would fit."""
    longest = max(trajectories, key=lambda t: t.context_tokens, default=None)
    if longest is None or longest.context_tokens <= room_tokens:
        return
    over = sum(t.context_tokens > room_tokens for t in trajectories)
    raise ConfigError(
        source,
        [
            f"{over} of {len(trajectories)} trajectories need more KV than any engine's {room_tokens} tokens; the longest,"
            f" group {longest.group!r} sample {longest.sample}, needs {longest.context_tokens}: give an engine that room"
            " (higher TP, more memory) or leave them out"
        ],
    )
