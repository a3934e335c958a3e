"""`libra replay`: the journal's events through a fresh core, and what was different first."""

import sys

from libra.cli.arguments import Replay
from libra.cli.runs import find
from libra.telemetry import replay as telemetry


def replay(args: Replay) -> int:
    run_dir = find(args.run)
    report = telemetry.check(run_dir)
    print(f"{run_dir.name}: {report.events} events, {report.commands} commands in {report.seconds:.2f} s")
    for note in report.notes:
        print(f"  note: {note}")
    if report.ok:
        print("every command is the same")
        return 0
    print(f"libra: {run_dir.name} does not replay: {report.problem}", file=sys.stderr)
    return 1 if args.check else 0
