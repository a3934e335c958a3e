"""`libra list`: one line a run, or one JSON array."""

from pathlib import Path

import msgspec

from libra.cli.arguments import List
from libra.cli.runs import RunInfo, all_runs, info

_HEAD = ("RUN", "STATE", "STEPS", "REWARD", "STARTED")


def show_runs(args: List) -> int:
    runs = [info(path) for path in all_runs(Path(args.directory))]
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(runs), indent=2).decode())
    elif not runs:
        print(f"no runs in {args.directory}; start one with: libra run configs/quickstart.toml")
    else:
        print("\n".join(_table([_HEAD, *(_row(r) for r in runs)])))
    return 0


def _row(run: RunInfo) -> tuple[str, ...]:
    return (run.name, run.state, str(run.steps), "-" if run.reward is None else f"{run.reward:.3f}", run.started)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
