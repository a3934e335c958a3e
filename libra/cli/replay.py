"""`libra replay`: the journal's events through a fresh core: the first difference, and what a run decided and why."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from libra.cli.arguments import Replay
from libra.cli.runs import find
from libra.config import Config
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.telemetry import replay as telemetry
from libra.telemetry.decisions import Decisions
from libra.telemetry.display import straggler_line
from libra.telemetry.paths import Paths


def replay(args: Replay) -> int:
    run_dir = find(args.run)
    told = _Told(args)
    report = telemetry.check(run_dir, watch=told.watch)
    if told.plotter is not None and args.plots:
        for path in told.plotter.draw(Path(args.plots)):
            print(f"drawn: {path}", file=sys.stderr)
    if args.json:
        print(msgspec.json.encode({"kind": "replay", **structs.asdict(report)}).decode())
    else:
        parts = f" in {report.segments} segments" if report.segments > 1 else ""
        print(f"{run_dir.name}: {report.events} events, {report.commands} commands{parts}, {report.seconds:.2f} s")
        for note in report.notes:
            print(f"  note: {note}")
    if report.ok:
        if not args.json:
            print("every command is the same")
        return 0
    print(f"libra: {run_dir.name} does not replay: {report.problem}", file=sys.stderr)
    return 1 if args.check else 0


class _Told:
    """Prints, as the events pass, what was asked for."""

    def __init__(self, args: Replay) -> None:
        self.args = args
        self.plotter = None
        self._decisions: Decisions | None = None
        self._paths: Paths | None = None

    def watch(self, event: e.AnyEvent, commands: Sequence[c.Command], core: telemetry.CoreLike) -> None:
        assert isinstance(core, Core)  # the one that `check` makes
        if self._decisions is None or self._paths is None:
            self._begin(core.config)
        assert self._decisions is not None
        assert self._paths is not None
        args = self.args
        for record in self._decisions.of(event.t, commands, core.decided):
            if args.decisions and args.traj in (None, record.traj):
                self._print("decision", record, record.line())
        self._paths.event(event)
        for command in commands:
            self._paths.command(command)
            if args.stragglers and isinstance(command, c.BatchConsumed):
                for straggler in self._paths.latest:
                    if args.traj in (None, straggler.traj):
                        self._print("straggler", straggler, f"{event.t:10.3f}  {straggler_line(straggler)}")
        if self.plotter is not None:
            self.plotter.watch(event, commands)

    def _begin(self, config: Config) -> None:
        self._decisions = Decisions(config.engine_buckets, config.bucket_names)
        self._paths = Paths(config.engine_buckets, config.rollout.groups_per_batch, config.bucket_names)
        if self.args.plots:
            from libra.sim.plots import Plotter

            self.plotter = Plotter(config)

    def _print(self, kind: str, record: Struct, line: str) -> None:
        print(msgspec.json.encode({"kind": kind, **structs.asdict(record)}).decode() if self.args.json else line)
