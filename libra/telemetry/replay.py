"""Replay: the journal's events through a fresh core must give the journal's commands again.

    journal head --> Core(config) --handle(event)--> commands --digest--> equal to the journal's record?
    journal events ------------------^                  |
                     `--> Answers: does the event's `cmd` name a command that is owed an answer?

Invariant: the first difference ends the check and is named; nothing is repaired or skipped. `watch` sees every event with its
commands, and the core after it: what a run decided and why can be told from its journal at any time. Called by `libra replay`
and by tests; no torch, no processes, no clock inside.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e
from libra.errors import CoreError, JournalError
from libra.telemetry import segments
from libra.telemetry.journal import CommandChain, JournalReader
from libra.telemetry.version import code_version

_SHOWN = 8
"""Commands printed of an event that gives other ones now."""

ANSWERED_BY: dict[type[c.Command], tuple[type[e.Answer], ...]] = {
    c.StartRole: (e.RoleReady,),
    c.FormGroup: (e.GroupFormed,),
    c.WarmStart: (e.WarmStarted,),
    c.InstallWeights: (e.WeightsInstalled, e.WeightsFailed),
    c.OpenTrajectory: (e.TurnReady, e.TrajectoryFailed),
    c.Generate: (e.TurnGenerated,),
    c.Act: (e.ToolReturned, e.EpisodeEnded, e.TrajectoryFailed),
    c.Round: (e.RoundDone,),
    c.Accumulate: (e.RoundDone, e.RoundRefused),
    c.OfferShare: (e.ShareOffered, e.ShareLost, e.RoundRefused),
    c.FetchShare: (e.ShareHeld, e.ShareLost),
    c.CloseStep: (e.StepDone,),
    c.SaveCheckpoint: (e.CheckpointSaved, e.CheckpointFailed),
    c.LoadCheckpoint: (e.CheckpointLoaded,),
    c.SetTimer: (e.TimerFired,),
}
"""Which events may answer which command. Those that name ranks are answered once by each of them."""


class CoreLike(Protocol):
    """What replay needs of a core."""

    def handle(self, event: e.AnyEvent) -> Sequence[c.Command]: ...


class ReplayReport(Struct, frozen=True):
    """What a replay found. `problem` is empty where `ok`; `notes` are things worth knowing that are no failure."""

    events: int
    commands: int
    ok: bool
    problem: str
    seconds: float
    notes: tuple[str, ...] = ()
    segments: int = 1


class Answers:
    """Which commands are still owed an answer; refuses an answer to anything else."""

    def __init__(self) -> None:
        self._kinds: list[type[c.Command]] = []
        self._owed: dict[int, set[int] | None] = {}

    def issued(self, commands: Sequence[c.Command]) -> str:
        """Take note of new commands; returns what is wrong with their numbers, or ""."""
        for command in commands:
            if command.seq != len(self._kinds) + 1:
                return f"command {type(command).__name__} has number {command.seq}, expected {len(self._kinds) + 1}"
            self._kinds.append(type(command))
            match command:
                case c.FormGroup(members=ranks):
                    self._owed[command.seq] = set(ranks)
                case c.WarmStart(ranks=ranks) | c.InstallWeights(ranks=ranks) | c.CloseStep(ranks=ranks):
                    self._owed[command.seq] = set(ranks)
                case c.LoadCheckpoint(ranks=ranks):
                    self._owed[command.seq] = set(ranks)
                case c.Round(ranks=ranks) | c.Accumulate(ranks=ranks):
                    self._owed[command.seq] = set(ranks)
                case c.OfferShare(ranks=ranks) | c.FetchShare(ranks=ranks):
                    self._owed[command.seq] = set(ranks)
                case _ if type(command) in ANSWERED_BY:
                    self._owed[command.seq] = None
        return ""

    def answered(self, event: e.Answer) -> str:
        """Cross the answer off; returns what is wrong with it, or ""."""
        if not 1 <= event.cmd <= len(self._kinds):
            return f"it answers command {event.cmd}, but only {len(self._kinds)} commands had been issued"
        kind = self._kinds[event.cmd - 1]
        if not isinstance(event, ANSWERED_BY.get(kind, ())):
            return f"it answers command {event.cmd}, a {kind.__name__}, which no {type(event).__name__} can answer"
        if event.cmd not in self._owed:
            return f"it answers command {event.cmd} ({kind.__name__}), which has had its last answer already"
        ranks = self._owed[event.cmd]
        if ranks is not None:
            rank = getattr(event, "rank", -1)
            if rank not in ranks:
                return (
                    f"it answers command {event.cmd} ({kind.__name__}) for rank {rank}; still owed by {sorted(ranks)}"
                )
            ranks.remove(rank)
        if not ranks:
            del self._owed[event.cmd]
        return ""


Watch = Callable[[e.AnyEvent, Sequence[c.Command], CoreLike], None]


def check(
    run_dir: Path, make_core: Callable[[Config], CoreLike] | None = None, watch: Watch | None = None
) -> ReplayReport:
    """Replay the journal of `run_dir`, each of its segments by itself, and compare. A difference is a report, no exception.

    Raises JournalError where the journal itself cannot be read or its configuration is not of this code's schema.
    """
    began = time.perf_counter()
    total = ReplayReport(0, 0, True, "", 0.0)
    found = segments.directories(run_dir)
    for directory in found:
        part = _check(directory, make_core, watch)
        where = f"{directory.name}: " if len(found) > 1 else ""
        total = ReplayReport(
            total.events + part.events,
            total.commands + part.commands,
            part.ok,
            f"{where}{part.problem}" if part.problem else "",
            time.perf_counter() - began,
            (*total.notes, *(f"{where}{note}" for note in part.notes)),
            len(found),
        )
        if not total.ok:
            break
    return total


def _check(directory: Path, make_core: Callable[[Config], CoreLike] | None, watch: Watch | None) -> ReplayReport:
    """One segment."""
    reader = JournalReader(directory)
    try:
        config = msgspec.json.decode(reader.head.config, type=Config)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise JournalError(
            f"{directory}: the configuration in the head does not fit this code's schema: {error}; "
            f"it was written by {reader.head.code}, this is {code_version()}"
        ) from error
    core = make_core(config) if make_core is not None else segments.core_of(directory, config)
    chain, answers = CommandChain(), Answers()
    events = commands = 0
    problem = ""
    notes: list[str] = []
    for event, record in reader:
        where = f"event {events} ({event})"
        events += 1
        if isinstance(event, e.Answer) and (wrong := answers.answered(event)):
            problem = f"{where}: {wrong}"
            break
        try:
            given = core.handle(event)
        except CoreError as error:
            if record is None:
                notes.append(f"{where} is the journal's last; the core refuses it, now as then: {error}")
            else:
                problem = f"{where}: the core refuses it now: {error}; then it gave {record.count} commands"
            break
        if record is None:
            notes.append(f"{where} is the journal's last and has no command record: nothing to compare")
            break
        if wrong := answers.issued(given):
            problem = f"{where}: {wrong}"
            break
        now = chain.record(given)
        if now != record:
            problem = (
                f"{where}: the journal has {record.count} commands from number {record.first}, digest "
                f"{record.digest.hex()}; now there are {now.count} from {now.first}, digest {now.digest.hex()}: "
                f"{_shown(given)}"
            )
            break
        commands += now.count
        if watch is not None:
            watch(event, given, core)
    if reader.torn is not None:
        notes.append(str(reader.torn))
    if problem and reader.head.code != code_version():
        notes.append(f"the code differs: written by {reader.head.code}, this is {code_version()}")
    return ReplayReport(events, commands, not problem, problem, 0.0, tuple(notes))


def _shown(commands: Sequence[c.Command]) -> str:
    text = ", ".join(map(str, commands[:_SHOWN])) or "none"
    return text if len(commands) <= _SHOWN else f"{text}, and {len(commands) - _SHOWN} more"
