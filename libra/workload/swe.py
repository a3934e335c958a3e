"""Import of recorded SWE-agent runs: one JSON object a run, as published with serving studies of coding agents.

Fields used: `instance`, and of each of `turns`: `in` (prompt tokens), `out` (sampled tokens), `tool_s`, `cmd` (first word of
the call; absent in some recordings). The observation of a turn is `in` of the next minus its own `in` and `out`.

Status is always `ok`: the recordings hold no exit state (`err` is a regular expression's guess, which is no fact).

A value may be null there. What cannot be known is left out and counted, never invented: a trailing turn with a null goes;
a run with a null further up, or whose context shrinks (cut history: the observation cannot be told), goes whole.
"""

from pathlib import Path

from msgspec import Struct, field

from libra.config.types import NonNegFloat, PosInt
from libra.workload.jsonl import Faults, decode, read_lines
from libra.workload.trace import TraceTrajectory, TraceTurn

UNNAMED_TOOL = "shell"
"""Name of a call whose first word was not recorded."""


class SweTurn(Struct, frozen=True):
    in_tokens: PosInt | None = field(name="in")
    out: PosInt | None
    tool_s: NonNegFloat | None
    cmd: str = UNNAMED_TOOL

    @property
    def whole(self) -> bool:
        return self.in_tokens is not None and self.out is not None and self.tool_s is not None


class SweRun(Struct, frozen=True):
    instance: str
    turns: tuple[SweTurn, ...]


class SweImport(Struct, frozen=True):
    trajectories: list[TraceTrajectory]
    turns_dropped: int
    """Trailing turns with a null."""
    runs_with_nulls: int
    """Runs left out for a null before their last turn, or without any whole turn."""
    runs_with_cuts: int
    """Runs left out because their context shrinks."""


def import_swe(path: Path | str) -> SweImport:
    """Runs of one instance become the samples of one group, in the order of the file. Raises ConfigError."""
    faults = Faults(str(path))
    found: list[TraceTrajectory] = []
    samples: dict[str, int] = {}
    dropped = nulls = cuts = 0
    for _, run in decode(read_lines(path), SweRun, faults):
        turns = run.turns
        while turns and not turns[-1].whole:
            turns = turns[:-1]
        if not turns or not all(t.whole for t in turns):
            nulls += 1
            continue
        dropped += len(run.turns) - len(turns)
        trajectory = _trajectory(run.instance, samples.get(run.instance, 0), turns)
        if trajectory is None:
            cuts += 1
            continue
        samples[run.instance] = trajectory.sample + 1
        found.append(trajectory)
    faults.settle()
    return SweImport(found, dropped, nulls, cuts)


def _trajectory(instance: str, sample: int, turns: tuple[SweTurn, ...]) -> TraceTrajectory | None:
    """None where the context shrinks. All turns are whole."""
    made: list[TraceTurn] = []
    for i, turn in enumerate(turns):
        following = turns[i + 1].in_tokens if i + 1 < len(turns) else None
        assert turn.in_tokens is not None
        assert turn.out is not None
        assert turn.tool_s is not None
        observed = 0 if following is None else following - turn.in_tokens - turn.out
        if observed < 0:
            return None
        made.append(TraceTurn(turn.out, turn.cmd or UNNAMED_TOOL, turn.tool_s, "ok", observed))
    first = turns[0].in_tokens
    assert first is not None
    return TraceTrajectory(instance, sample, "repair", first, tuple(made))
