"""The Mooncake trace format (Qin et al., FAST 2025), which serving benchmarks read: one JSON object a request.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ..., 2353]}

`timestamp` is milliseconds since the first request; `hash_ids` names the blocks of 512 input tokens, the last one partial:
equal ids mean an equal block after an equal prefix. Other fields (sessions, delays: other tools' additions) are ignored.

Importing keeps a request what it is: a trajectory of one turn, its own group. The format has no turns, tools or groups, so
exporting loses them; what it keeps is lengths, arrival, and which prefix is shared with whom.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from libra.config.types import NatInt, NonNegFloat, PosInt
from libra.workload.jsonl import Faults, decode, read_lines
from libra.workload.trace import TraceTrajectory, TraceTurn

BLOCK_TOKENS = 512


class MooncakeRequest(Struct, frozen=True):
    timestamp: NonNegFloat
    """Milliseconds."""
    input_length: PosInt
    output_length: PosInt
    hash_ids: tuple[NatInt, ...]


def read_mooncake(path: Path | str, block_tokens: int = BLOCK_TOKENS) -> list[MooncakeRequest]:
    """Requests in the order of the file. Raises ConfigError, also where the ids do not cover the input.

    The published traces name the partial block at the end; writers that leave it out are accepted.
    """
    faults = Faults(str(path))
    found: list[MooncakeRequest] = []
    for number, request in decode(read_lines(path), MooncakeRequest, faults):
        full, rest = divmod(request.input_length, block_tokens)
        if len(request.hash_ids) not in (full, full + (rest > 0)):
            what = f"got {len(request.hash_ids)} ids, expected {full + (rest > 0)} blocks of {block_tokens} tokens"
            faults.add(number, "hash_ids", f"{what} for input_length {request.input_length}")
        found.append(request)
    faults.settle()
    return found


def to_trajectories(requests: Iterable[MooncakeRequest]) -> list[TraceTrajectory]:
    return [
        TraceTrajectory(
            group=f"request-{i}",
            sample=0,
            family="mooncake",
            prompt_tokens=r.input_length,
            turns=(TraceTurn(r.output_length, "", 0.0, "ok", 0),),
            arrival_s=r.timestamp / 1000,
        )
        for i, r in enumerate(requests)
    ]


class _Ids:
    """Hands out block ids, 0, 1, 2, ... in the order of first use."""

    def __init__(self) -> None:
        self._next = 0
        self._of_prompt: dict[tuple[str, int, int], int] = {}

    def fresh(self) -> int:
        self._next += 1
        return self._next - 1

    def prompt_block(self, trajectory: TraceTrajectory, block: int) -> int:
        """Shared by the samples of a group with the same prompt."""
        key = (trajectory.group, trajectory.prompt_tokens, block)
        if key not in self._of_prompt:
            self._of_prompt[key] = self.fresh()
        return self._of_prompt[key]


def from_trajectories(
    trajectories: Sequence[TraceTrajectory], decode_tokens_per_s: float, block_tokens: int = BLOCK_TOKENS
) -> list[MooncakeRequest]:
    """One request a turn, by time. A trace has no decode times: `decode_tokens_per_s` is the pace that spaces the turns."""
    ids = _Ids()
    requests: list[MooncakeRequest] = []
    for trajectory in trajectories:
        at_s, context = trajectory.arrival_s, trajectory.prompt_tokens
        blocks: list[int] = []
        for i, turn in enumerate(trajectory.turns):
            while len(blocks) < context // block_tokens:
                whole_prompt_block = (len(blocks) + 1) * block_tokens <= trajectory.prompt_tokens
                blocks.append(ids.prompt_block(trajectory, len(blocks)) if whole_prompt_block else ids.fresh())
            partial: tuple[int, ...] = ()
            if context % block_tokens:
                partial = (ids.prompt_block(trajectory, -1) if i == 0 else ids.fresh(),)
            requests.append(MooncakeRequest(round(at_s * 1000), context, turn.sampled_tokens, (*blocks, *partial)))
            at_s += turn.sampled_tokens / decode_tokens_per_s + turn.tool_s
            context += turn.sampled_tokens + turn.observed_tokens
    return sorted(requests, key=lambda r: r.timestamp)


def write_mooncake(path: Path | str, requests: Iterable[MooncakeRequest]) -> None:
    with Path(path).open("wb") as f:
        for request in requests:
            f.write(msgspec.json.encode(request) + b"\n")
