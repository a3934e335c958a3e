"""Replay: equal commands pass, the first difference is named, and so is an answer without its command."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.errors import CoreError, JournalError
from libra.telemetry.journal import Head, JournalWriter
from libra.telemetry.replay import ANSWERED_BY, ReplayReport, check


class Scripted:
    """A core that gives the commands of its script, one entry an event; an exception in the script is raised."""

    def __init__(self, script: Sequence[Sequence[c.Command] | Exception]) -> None:
        self._script = list(script)

    def handle(self, event: e.AnyEvent) -> Sequence[c.Command]:
        entry = self._script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry


GROUP = c.FormGroup(1, "core", (1, 2), 0, 0)
OPEN = c.OpenTrajectory(2, 7, "train", 0, 0, 0)
TURN = c.Generate(3, 7, 0, 12)
EVENTS: list[e.AnyEvent] = [
    e.RunStarted(0.0),
    e.GroupFormed(1.0, 1, 1),
    e.GroupFormed(1.1, 1, 2),
    e.TurnReady(1.2, 2, 7, 20, 12),
]
SCRIPT: list[list[c.Command]] = [[GROUP, OPEN], [], [], [TURN]]


def record(run_dir: Path, events: Sequence[e.AnyEvent], script: Sequence[Sequence[c.Command]]) -> None:
    with JournalWriter(run_dir / "journal", Head.of(Config(), "f00d")) as writer:
        for i, event in enumerate(events):
            writer.event(event)
            if i < len(script):
                writer.commands(script[i])


def replay(run_dir: Path, script: Sequence[Sequence[c.Command] | Exception]) -> ReplayReport:
    make: Callable[[Config], Scripted] = lambda _: Scripted(script)  # noqa: E731
    return check(run_dir, make)


def test_the_same_commands_pass(tmp_path: Path) -> None:
    record(tmp_path, EVENTS, SCRIPT)
    report = replay(tmp_path, SCRIPT)
    assert (report.ok, report.problem, report.events, report.commands) == (True, "", 4, 3)


def test_the_core_itself_replays(tmp_path: Path) -> None:
    core = Core(Config())
    events: list[e.AnyEvent] = [e.RunStarted(0.0), *(e.RankJoined(0.1 * r, r, "host", "cpu") for r in (1, 2, 3))]
    with JournalWriter(tmp_path / "journal", Head.of(Config(), "f00d")) as writer:
        for event in events:
            writer.event(event)
            writer.commands(core.handle(event))
    report = check(tmp_path)
    assert report.ok, report.problem
    assert report.commands > 0


def test_the_first_difference_is_named_with_what_the_core_says_now(tmp_path: Path) -> None:
    record(tmp_path, EVENTS, SCRIPT)
    report = replay(tmp_path, [*SCRIPT[:3], [c.Generate(3, 7, 1, 12)]])
    assert not report.ok
    assert "event 3 (TurnReady(" in report.problem
    assert "Generate(seq=3, traj=7, engine=1, max_new_tokens=12)" in report.problem


def test_missing_commands_are_a_difference(tmp_path: Path) -> None:
    record(tmp_path, EVENTS, SCRIPT)
    report = replay(tmp_path, [*SCRIPT[:3], []])
    assert "the journal has 1 commands" in report.problem
    assert report.problem.endswith("none")


def test_command_numbers_have_no_gaps(tmp_path: Path) -> None:
    script = [[c.Act(2, 7)]]
    record(tmp_path, EVENTS[:1], script)
    assert "command Act has number 2, expected 1" in replay(tmp_path, script).problem


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (e.TurnReady(2.0, 9, 7, 20, 12), "answers command 9, but only 3 commands had been issued"),
        (e.TurnReady(2.0, 0, 7, 20, 12), "answers command 0, but only 3"),
        (e.TurnReady(2.0, 2, 7, 20, 12), "answers command 2 (OpenTrajectory), which has had its last answer already"),
        (e.TurnReady(2.0, 3, 7, 20, 12), "answers command 3, a Generate, which no TurnReady can answer"),
        (e.GroupFormed(2.0, 1, 2), "answers command 1 (FormGroup), which has had its last answer already"),
    ],
)
def test_an_answer_without_its_command_fails(tmp_path: Path, event: e.AnyEvent, words: str) -> None:
    script = [*SCRIPT, []]
    record(tmp_path, [*EVENTS, event], script)
    report = replay(tmp_path, script)
    assert not report.ok
    assert words in report.problem
    assert "event 4 (" in report.problem


@pytest.mark.parametrize("rank", [1, 3])
def test_a_rank_answers_once_and_only_where_it_was_asked(tmp_path: Path, rank: int) -> None:
    events = [*EVENTS[:2], e.GroupFormed(1.05, 1, rank)]
    record(tmp_path, events, SCRIPT[:3])
    assert f"for rank {rank}; still owed by [2]" in replay(tmp_path, SCRIPT[:3]).problem


def test_every_answer_answers_something() -> None:
    answers = {kind for kind in e.AnyEvent.__args__ if issubclass(kind, e.Answer)}
    assert {kind for kinds in ANSWERED_BY.values() for kind in kinds} == answers


def test_a_torn_tail_is_no_failure_and_is_told(tmp_path: Path) -> None:
    record(tmp_path, EVENTS, SCRIPT)
    path = tmp_path / "journal" / "000000.journal"
    path.write_bytes(path.read_bytes()[:-1])
    report = replay(tmp_path, SCRIPT)
    assert report.ok
    assert any("nothing to compare" in note for note in report.notes)
    assert any("torn tail" in note for note in report.notes)


def test_a_refusal_that_ended_the_run_is_reproduced(tmp_path: Path) -> None:
    record(tmp_path, EVENTS, SCRIPT[:3])
    report = replay(tmp_path, [*SCRIPT[:3], CoreError("impossible")])
    assert report.ok
    assert "now as then: impossible" in report.notes[0]


def test_a_refusal_where_there_was_none_fails(tmp_path: Path) -> None:
    record(tmp_path, EVENTS, SCRIPT)
    report = replay(tmp_path, [*SCRIPT[:3], CoreError("impossible")])
    assert "event 3" in report.problem
    assert "refuses it now: impossible" in report.problem


def test_other_code_is_mentioned_where_commands_differ(tmp_path: Path) -> None:
    head = msgspec.structs.replace(Head.of(Config(), "f00d"), code="0.0.1+core.old")
    with JournalWriter(tmp_path / "journal", head) as writer:
        writer.event(EVENTS[0])
        writer.commands(SCRIPT[0])
    report = replay(tmp_path, [[]])
    assert any("written by 0.0.1+core.old" in note for note in report.notes)


def test_a_configuration_of_another_schema_is_refused(tmp_path: Path) -> None:
    head = msgspec.structs.replace(Head.of(Config(), "f00d"), config=b'{"nonsense": 1}')
    JournalWriter(tmp_path / "journal", head).close()
    with pytest.raises(JournalError, match="does not fit this code's schema"):
        check(tmp_path)
