"""metrics.jsonl: one JSON object a line, for plots and for people with `jq`.

    {"kind": "batch", "t": 12.3, "batch": 4, "reward": 0.4, ...}     a consumed batch (as BatchConsumed; `gap` is four)
    {"kind": "eval", "t": ..., "which": "eval_end", "reward": ...}   an evaluation
    {"kind": "report", "t": ..., "level": "warning", "what": ...}    one line for people
    {"kind": "move", "t": ..., "move": 3, "stage": "ready", ...}     a move entered a stage (every field of MoveChanged)
    {"kind": "straggler", "t": ..., "batch": 4, "traj": ...}         a trajectory that held that batch up (see `paths`)
    {"kind": "checkpoint", "t": ..., "step": 40, "bytes": ...}       a checkpoint was saved
    {"kind": "resume", "t": ..., "step": 40, "version": 38, ...}     the run goes on from that checkpoint; see `read_metrics`
    {"kind": "gauges", "t": ..., "tokens_per_s": ..., ...}           the state of now, every second or so

Invariant: a line is one `os.write`, so a reader sees whole lines only, but for a last one that a kill or a full disk cut;
`read_metrics` leaves that out. Numbers that are not finite are written as null. The controller writes it.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from libra.core.commands import BatchConsumed, Command, Evaluated, MoveChanged, Report
from libra.core.events import LogprobGap
from libra.telemetry.paths import Straggler

FILE = "metrics.jsonl"
"""Name inside a run's directory."""


class Gauges(Struct, frozen=True, kw_only=True):
    """The state of one moment. `in_flight` counts trajectories by stage; `kv` is the fuller share of an engine's room."""

    tokens_per_s: float
    queue_groups: int
    version: int
    lag: int
    in_flight: dict[str, int]
    engine_running: tuple[int, ...] = ()
    engine_waiting: tuple[int, ...] = ()
    engine_kv: tuple[float, ...] = ()
    engine_prefix_hits: tuple[float, ...] = ()
    """Share of context tokens found in the prefix cache, since the engine started."""
    engine_preemptions: tuple[int, ...] = ()
    """Since the engine started."""
    turns_by_bucket: dict[str, int] = {}
    """Since the run began, as are `bucket_moves`."""
    bucket_moves: int = 0
    epoch: int = 0
    ranks_by_role: dict[str, int] = {}
    """Now: "core", the name of a bucket, "gradient", "lost", and "wide > gradient" for one that moves."""
    prefix_kept: dict[str, float] = {}
    """Of the context tokens that placement takes for cached, the share that engines find, by bucket; 1 at first."""
    cost_factor: dict[str, float] = {}
    """Observed over predicted seconds of turns, by bucket: the slow correction of the cost model."""


class MetricsWriter:
    """Appends lines; each is in the kernel's hands when the call returns. OSError where the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()

    def command(self, t: float, command: Command) -> None:
        """Write the line of a BatchConsumed, Evaluated, MoveChanged or Report; every other command has none."""
        match command:
            case BatchConsumed():
                fields = _fields(command)
                gap: LogprobGap = fields.pop("gap")
                self._line("batch", t, fields | gap.figures())
            case Evaluated():
                fields = _fields(command)
                self._line("eval", t, {"which": fields.pop("kind"), **fields})
            case MoveChanged():
                self._line("move", t, _fields(command))
            case Report():
                self._line("report", t, _fields(command))
            case _:
                pass

    def straggler(self, t: float, straggler: Straggler) -> None:
        self._line("straggler", t, msgspec.structs.asdict(straggler))

    def checkpoint(self, t: float, step: int, n_bytes: int, copy_s: float, seconds: float) -> None:
        fields = {"step": step, "bytes": n_bytes, "copy_s": round(copy_s, 5), "seconds": round(seconds, 4)}
        self._line("checkpoint", t, fields)

    def resume(self, t: float, step: int, version: int, incarnation: str) -> None:
        self._line("resume", t, {"step": step, "version": version, "incarnation": incarnation})

    def gauges(self, t: float, gauges: Gauges) -> None:
        self._line("gauges", t, msgspec.structs.asdict(gauges))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self, kind: str, t: float, fields: dict[str, Any]) -> None:
        os.write(self._fd, self._encoder.encode({"kind": kind, "t": round(t, 4), **fields}) + b"\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines, in order; a missing file has none. ValueError names the line that is no JSON object.

    Where a run that was killed went on from an earlier checkpoint, what came after that and was done again is left out.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError) as e:
            raise ValueError(f"{path} line {number} is no JSON object: {e}") from e
        if row.get("kind") == "resume":
            rows = [r for r in rows if not _done_again(r, row["step"])]
        rows.append(row)
    return rows


def _done_again(row: dict[str, Any], step: int) -> bool:
    """Whether a run that goes on after `step` batches makes this row anew."""
    match row.get("kind"):
        case "batch" | "straggler":
            return row["batch"] >= step
        case "eval":
            return row["which"] != "eval_start" and row.get("batch", 0) >= step
        case "checkpoint":
            return row["step"] > step
        case _:
            return False


def _fields(command: Command) -> dict[str, Any]:
    fields = msgspec.structs.asdict(command)
    del fields["seq"]
    return fields
