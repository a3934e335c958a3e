"""`libra list`: one line a run, or one JSON array."""

from pathlib import Path

import msgspec

from libra.cli.arguments import List
from libra.cli.runs import RunInfo, all_runs, info
from libra.cli.text import table

_HEAD = ("RUN", "STATE", "STEPS", "REWARD", "STARTED")


def show_runs(args: List) -> int:
    runs = [info(path) for path in all_runs(Path(args.directory))]
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(runs), indent=2).decode())
    elif not runs:
        print(f"no runs in {args.directory}; start one with: libra run configs/quickstart.toml")
    else:
        print("\n".join(table([_HEAD, *(_row(r) for r in runs)])))
    return 0


def _row(run: RunInfo) -> tuple[str, ...]:
    return (run.name, run.state, str(run.steps), "-" if run.reward is None else f"{run.reward:.3f}", run.started)
