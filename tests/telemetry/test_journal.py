"""The journal: what is written is read, a torn tail is cut, damage is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from libra.config.schema import Config
from libra.core.commands import Act, Command, Generate, Report
from libra.core.events import AnyEvent, RunStarted, StopRequested, ToolReturned, TurnGenerated
from libra.errors import JournalError
from libra.telemetry.journal import FORMAT, CommandChain, CommandRecord, Head, JournalReader, JournalWriter

EVENTS: list[AnyEvent] = [
    RunStarted(0.0),
    TurnGenerated(1.5, 1, 7, 0, 12, 3, 3, "stop"),
    ToolReturned(1.75, 2, 7, "calculator", "ok", 4, 0.25, 40, 12),
    StopRequested(2.0, False, "uid 1000"),
]
COMMANDS: list[list[Command]] = [[Generate(1, 7, 0, 12)], [Act(2, 7)], [], [Report(3, "info", "stopping"), Act(4, 7)]]


def head() -> Head:
    """A head whose configuration is short: what is in it does not matter to the journal."""
    return msgspec.structs.replace(Head.of(Config(), "f00d"), config=b"{}")


def write(directory: Path, repeat: int = 1, **options: int) -> JournalWriter:
    with JournalWriter(directory, head(), **options) as writer:
        for event, commands in zip(EVENTS * repeat, COMMANDS * repeat, strict=True):
            writer.event(event)
            writer.commands(commands)
    return writer


def test_gives_back_events_with_chained_command_records(tmp_path: Path) -> None:
    write(tmp_path)
    reader = JournalReader(tmp_path)
    pairs = list(reader)
    chain = CommandChain()
    assert [event for event, _ in pairs] == EVENTS
    assert [record for _, record in pairs] == [chain.record(commands) for commands in COMMANDS]
    assert [(r.first, r.count) for _, r in pairs if r is not None] == [(1, 1), (2, 1), (0, 0), (3, 2)]
    assert reader.torn is None


def test_head_holds_what_a_core_is_built_from(tmp_path: Path) -> None:
    JournalWriter(tmp_path, Head.of(Config(), "f00d")).close()
    read = JournalReader(tmp_path).head
    assert msgspec.json.decode(read.config, type=Config) == Config()
    assert (read.format, read.run, read.incarnation, read.seed) == (FORMAT, "run", "f00d", 0)
    assert "+core." in read.code


def test_digest_depends_on_every_earlier_command() -> None:
    one, other = CommandChain(), CommandChain()
    one.record([Act(1, 7)])
    other.record([Act(1, 8)])
    assert one.record([Act(2, 7)]).digest != other.record([Act(2, 7)]).digest


def test_files_rotate_within_the_bound_and_read_as_one(tmp_path: Path) -> None:
    bound = len(msgspec.msgpack.encode(head())) + 400
    writer = write(tmp_path, repeat=50, max_file_bytes=bound)
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert len(sizes) == writer.files > 10
    assert max(sizes) <= bound
    assert [event for event, _ in JournalReader(tmp_path)] == EVENTS * 50


def test_an_event_larger_than_a_file_has_one_to_itself(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, head(), max_file_bytes=100) as writer:
        for event in EVENTS:
            writer.event(event)
            writer.commands([])
    assert writer.files == len(EVENTS)
    assert [event for event, _ in JournalReader(tmp_path)] == EVENTS


def test_any_torn_tail_is_cut_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "000000.journal"
    with JournalWriter(tmp_path, head()) as writer:
        ends = [path.stat().st_size]
        for event, commands in zip(EVENTS, COMMANDS, strict=True):
            writer.event(event)
            ends.append(path.stat().st_size)
            writer.commands(commands)
            ends.append(path.stat().st_size)
    data, pairs = path.read_bytes(), list(JournalReader(tmp_path))
    for size in range(ends[0], ends[-1]):
        path.write_bytes(data[:size])
        reader = JournalReader(tmp_path)
        whole = sum(end <= size for end in ends[1:])
        lonely = [(EVENTS[whole // 2], None)] if whole % 2 else []
        assert list(reader) == pairs[: whole // 2] + lonely
        if size in ends:
            assert reader.torn is None
        else:
            assert reader.torn is not None
            assert (reader.torn.offset, reader.torn.lost_bytes) == (ends[whole], size - ends[whole])


def test_zeros_after_a_power_cut_are_a_torn_tail(tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "000000.journal").open("ab") as file:
        file.write(bytes(100))
    reader = JournalReader(tmp_path)
    assert [event for event, _ in reader] == EVENTS
    assert reader.torn is not None
    assert reader.torn.lost_bytes == 100


def test_a_file_begun_but_not_written_is_a_torn_tail(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "000001.journal").touch()
    reader = JournalReader(tmp_path)
    assert [event for event, _ in reader] == EVENTS
    assert reader.torn is not None


def test_every_flipped_byte_in_the_middle_is_named_damage(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "000000.journal"
    data = path.read_bytes()
    last = len(data) - 12 - len(msgspec.msgpack.encode(CommandRecord(3, 2, bytes(8))))
    for offset in range(last):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 0x5A]) + data[offset + 1 :])
        with pytest.raises(JournalError, match=r"000000.journal is damaged at offset \d+"):
            list(JournalReader(tmp_path))


@pytest.mark.parametrize("keep", ["nothing", "half"])
def test_a_file_that_is_cut_before_the_last_is_damage(tmp_path: Path, keep: str) -> None:
    write(tmp_path, repeat=20, max_file_bytes=500)
    path = tmp_path / "000001.journal"
    path.write_bytes(b"" if keep == "nothing" else path.read_bytes()[:-3])
    with pytest.raises(JournalError, match=r"000001.journal is damaged at offset"):
        list(JournalReader(tmp_path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, repeat=20, max_file_bytes=500)
    (tmp_path / "000001.journal").unlink()
    with pytest.raises(JournalError, match=r"gap: expected 000001.journal, found 000002.journal"):
        list(JournalReader(tmp_path))


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    JournalWriter(tmp_path, msgspec.structs.replace(head(), format=99)).close()
    with pytest.raises(JournalError, match=rf"has journal format 99, this code reads format {FORMAT}"):
        JournalReader(tmp_path)


def test_a_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="holds no journal"):
        JournalReader(tmp_path)


def test_a_second_run_cannot_append_to_a_journal(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(JournalError, match="holds a journal already"):
        JournalWriter(tmp_path, head())


def test_events_and_commands_take_turns(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, head()) as writer:
        with pytest.raises(JournalError, match="without an event"):
            writer.commands([])
        writer.event(EVENTS[0])
        with pytest.raises(JournalError, match="no commands yet"):
            writer.event(EVENTS[1])


def test_nothing_follows_a_record_that_the_disk_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with JournalWriter(tmp_path, head()) as writer:
        writer.event(EVENTS[0])
        writer.commands(COMMANDS[0])
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
        with pytest.raises(JournalError, match="only 5 of"):
            writer.event(EVENTS[1])
        monkeypatch.undo()
        with pytest.raises(JournalError, match="closed"):
            writer.event(EVENTS[1])
    reader = JournalReader(tmp_path)
    assert [event for event, _ in reader] == EVENTS[:1]
    assert reader.torn is not None


@pytest.mark.process
def test_a_killed_writer_loses_nothing_that_it_said_was_written(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from libra.config.schema import Config\n"
        "from libra.core.events import RunStarted\n"
        "from libra.telemetry.journal import Head, JournalWriter\n"
        "writer = JournalWriter(Path(sys.argv[1]), Head.of(Config(), 'f00d'), 20_000)\n"
        "for i in range(10_000_000):\n"
        "    writer.event(RunStarted(float(i)))\n"
        "    print(i, flush=True)\n"
        "    writer.commands([])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(2000):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    said = 1999 + len(child.stdout.read().split("\n")) - 1
    child.wait(timeout=30)
    child.stdout.close()
    events = [event.t for event, _ in JournalReader(tmp_path)]
    assert events == [float(i) for i in range(len(events))]
    assert len(events) > said
