"""What a person sees: frames at fixed sizes, plain lines, the end, and viewers who are slow or gone."""

import io
import os
import select
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console, Group

from libra.core.commands import FinishRun, MoveChanged
from libra.telemetry.display import (
    EngineRow,
    PlainDisplay,
    RunView,
    duration,
    number,
    open_display,
    roles_line,
    summary_rows,
)
from libra.telemetry.screen import RichDisplay, frame, sparkline
from libra.telemetry.summary import Summary, Tally

FRAME = """\
 Libra  quick · async · seed 3                         training  1:15  eta 2:40
 ━━━━━━━━━━━━━━━━────────────────────────────────────────────────  40/160 steps

  reward     0.590  ▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▅▅▅▅▅   first ten 0.290
  rollout    12,346 tokens/s    version 39    lag 1    queue 3 groups
  in flight  112  waiting 12 · generating 96 · acting 4
  ranks      1-2 core · 3 wide · 4 narrow > gradient          epoch 5 · 2 moves

  engine  bucket         version  running  waiting   kv room
  0       main                39       48        6   ━─────────  12%
  1       main                 -        0        0   ──────────   0%

      10.0s  warm start from the cache
      70.5s  warning: engine 1 is down: exit code -9
"""


def view(**changes: object) -> RunView:
    v = RunView(
        run="quick",
        mode="async",
        seed=3,
        steps=160,
        phase="training",
        step=40,
        version=39,
        rewards=[0.245 + 0.01 * i for i in range(40)],
        tokens_per_s=12345.6,
        in_flight={"opening": 0, "waiting": 12, "generating": 96, "acting": 4},
        queue=3,
        lag=1,
        elapsed_s=75.0,
        eta_s=160.0,
        engines=[EngineRow(0, "main", 39, 48, 6, 0.12), EngineRow(1, "main")],
        roles=["core", "core", "wide", "narrow > gradient"],
        epoch=5,
        moves=2,
    )
    for name, value in changes.items():
        setattr(v, name, value)
    return v


def summary(ok: bool = True) -> Summary:
    tally = Tally("quick", "async", 3)
    tally.command(FinishRun(1, ok, "all batches are consumed" if ok else "no engine is left"))
    return tally.summary()


def terminal(width: int = 80, height: int = 24) -> tuple[io.StringIO, Console]:
    out = io.StringIO()
    return out, Console(file=out, width=width, height=height, force_terminal=True, highlight=False, _environ={})


def drawn(lines: list, width: int = 80, height: int = 24) -> str:
    out = io.StringIO()
    Console(file=out, width=width, height=height, force_terminal=True, color_system=None).print(Group(*lines))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def test_frame_at_80_by_24() -> None:
    reports = [(10.0, "info", "warm start from the cache"), (70.5, "warning", "engine 1 is down:\n exit code -9")]
    assert drawn(frame(view(), reports)) == FRAME  # type: ignore[arg-type]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (20, 5), (200, 60), (80, 7)])
def test_a_frame_never_leaves_its_screen(width: int, height: int) -> None:
    roles = [f"bucket{i}" * 9 for i in range(99)]
    v = view(run="r" * 64, roles=roles, engines=[EngineRow(i, "bucket" * 9, 1, 9999, 9999, 1.0) for i in range(99)])
    lines = frame(v, [(float(i), "error", "word " * 99) for i in range(50)], width, height)
    assert len(lines) <= height
    assert max(line.cell_len for line in lines) <= width
    assert len(drawn(lines, width, height).splitlines()) == len(lines)


def test_engines_that_do_not_fit_are_counted() -> None:
    text = drawn(frame(view(engines=[EngineRow(i, "main") for i in range(40)])))
    assert "and 26 more" in text
    assert len(text.splitlines()) == 24


def test_neighbours_that_do_the_same_stand_together() -> None:
    roles = ["core"] * 32 + ["wide"] * 12 + ["gradient"] * 3 + ["lost"]
    assert roles_line(roles) == ["1-32 core", "33-44 wide", "45-47 gradient", "48 lost"]
    assert roles_line([]) == []


def test_plain_lines_tell_who_does_what_when_that_changes() -> None:
    out = io.StringIO()
    with PlainDisplay(out) as display:
        for roles, epoch in ((["spare"] * 3, 0), (["core", "wide", "narrow"], 0), (["core", "wide", "gradient"], 2)):
            for _ in range(3):
                display.update(view(phase="starting" if "spare" in roles else "training", roles=roles, epoch=epoch))
    told = [line.split("] ")[1] for line in out.getvalue().splitlines() if "ranks" in line]
    assert told == ["ranks 1 core, 2 wide, 3 narrow  epoch 0", "ranks 1 core, 2 wide, 3 gradient  epoch 2"]


def test_the_summary_tells_how_often_ranks_moved_and_how_long_that_took() -> None:
    tally = Tally("quick", "async", 3)
    for move in (1, 2):
        for stage, seconds in (
            ("preparing", 0.0),
            ("draining", 3.0 + move),
            ("ready" if move == 1 else "returning", 5.0),
        ):
            tally.command(MoveChanged(1, move, stage, 1, (4,), "engine 1 -> replica 2", "", "", seconds, "gradient"))
    tally.command(MoveChanged(1, 2, "failed", 1, (4,), "engine 1 -> replica 2", "", "rank 4 is lost", 5.5, "gradient"))
    rows = dict(summary_rows(tally.summary()))
    assert rows["moves of ranks"] == "1 to gradient; 1 by rule; preparing 4.00 s, draining 1.00 s; 1 went back"
    assert "moves of ranks" not in dict(summary_rows(summary()))


def test_a_phase_shows_its_own_progress() -> None:
    text = drawn(frame(view(phase="warm start", progress=0.5, label="step 500/1000, loss 0.41", rewards=[], step=0)))
    assert "warm start  1:15" in text
    assert text.splitlines()[1].endswith("step 500/1000, loss 0.41")
    assert "reward     -" in text


def test_sparkline_scales_from_zero_to_one_unless_values_leave_it() -> None:
    assert sparkline([0.0, 0.5, 1.0], 8) == "▁▅█"
    assert sparkline([0.2, 0.2, 0.2], 8) == "▂▂▂"
    assert sparkline([-1.0, 1.0], 8) == "▁█"
    assert sparkline([0.0, 1.0] * 10, 4) == "▄▅▄▅"
    assert sparkline([float("nan"), 1.0], 8) == " █"
    assert sparkline([], 8) == ""


def test_at_most_four_frames_a_second() -> None:
    out, console = terminal()
    ticks = iter([0.0, 0.0, 0.1, 0.2, 0.26, 0.26])
    with RichDisplay(out, console, now=lambda: next(ticks)) as display:
        sizes = []
        for step in range(4):
            display.update(view(step=step))
            sizes.append(len(out.getvalue()))
    assert sizes[0] == sizes[1] == sizes[2] < sizes[3]


def test_warnings_stay_above_the_frame_and_info_does_not() -> None:
    out, console = terminal()
    with RichDisplay(out, console) as display:
        display.update(view())
        mark = len(out.getvalue())
        display.report("info", "all is well")
        assert len(out.getvalue()) == mark
        display.report("warning", "engine 1 is down")
        assert "engine 1 is down" in out.getvalue()[mark:]
    assert [text for _, _, text in display.reports] == ["all is well", "engine 1 is down"]


def test_the_terminal_is_restored_after_an_exception() -> None:
    out, console = terminal()
    before = sys.stdout

    def run() -> None:
        with RichDisplay(out, console) as display:
            display.update(view())
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        run()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    assert sys.stdout is before


def test_no_color_draws_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True)
    with RichDisplay(out, console) as display:
        display.update(view())
    assert "\x1b[32m" not in out.getvalue()
    assert "\x1b[36m" not in out.getvalue()


def test_finish_prints_a_table_that_stays() -> None:
    out, console = terminal()
    with RichDisplay(out, console) as display:
        display.update(view())
        display.finish(summary())
        end = out.getvalue()
        display.update(view())
    table = end[end.rindex("\x1b[?25h") :]
    for name, _ in summary_rows(summary()):
        assert name in table
    assert "ok: all batches are consumed" in table
    assert "reward, each step" in table
    assert out.getvalue() == end


def test_a_failed_run_says_so() -> None:
    assert ("result", "FAILED: no engine is left") in summary_rows(summary(ok=False))


def test_plain_lines_for_steps_phases_and_reports() -> None:
    out = io.StringIO()
    with PlainDisplay(out) as display:
        warm = view(phase="warm start", step=0, rewards=[], label="step 0/1000")
        for progress in (0.0, 0.1, 0.3, 0.35, 0.99):
            warm.progress = progress
            display.update(warm)
        display.update(view(step=1, rewards=[0.25], elapsed_s=80.0))
        display.update(view(step=1, rewards=[0.25], elapsed_s=80.5))
        display.update(view(step=3, rewards=[0.25, 0.5, 0.75], elapsed_s=82.0))
        display.report("warning", "engine 1 is down")
    assert [line.split("s] ", 1)[1].split("  version")[0] for line in out.getvalue().splitlines()] == [
        "warm start: step 0/1000",
        "ranks 1-2 core, 3 wide, 4 narrow > gradient  epoch 5",
        "warm start 30%: step 0/1000",
        "warm start 99%: step 0/1000",
        "training",
        "step 1/160  reward 0.250  mean of 10 0.250",
        "step 2/160  reward 0.500  mean of 10 0.375",
        "step 3/160  reward 0.750  mean of 10 0.500",
        "warning: engine 1 is down",
    ]
    assert out.getvalue().splitlines()[4].startswith("[    80.0s] ")


def test_plain_finish_lists_the_summary() -> None:
    out = io.StringIO()
    with PlainDisplay(out) as display:
        display.finish(summary())
    for name, value in summary_rows(summary()):
        assert f"  {name:<24}{value}\n" in out.getvalue()


def test_plain_lines_survive_an_ascii_stream(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="ascii") as out, PlainDisplay(out) as display:
        display.report("info", "naïve")
    assert not display.broken
    assert "na?ve" in (tmp_path / "log").read_text()


def test_a_slow_reader_misses_lines_and_is_told(tmp_path: Path) -> None:
    read, write = os.pipe()
    filled = 0
    while select.select([], [write], [], 0)[1]:
        filled += os.write(write, bytes(1024))
    with os.fdopen(write, "w") as out, PlainDisplay(out) as display:
        display.report("info", "one")
        display.report("info", "two")
        while filled > 0:
            filled -= len(os.read(read, filled))
        display.report("info", "three")
        assert os.read(read, 4096).endswith(b"(2 lines not shown: the reader was slow)  info: three\n")
    os.close(read)
    assert not display.broken


def test_a_viewer_who_is_gone_ends_the_display_and_not_the_run() -> None:
    read, write = os.pipe()
    out = os.fdopen(write, "w")
    os.close(read)
    with PlainDisplay(out) as display:
        display.report("info", "anybody?")
        display.update(view())
        display.finish(summary())
    assert display.broken.startswith("BrokenPipeError")
    with pytest.raises(BrokenPipeError):
        out.close()


def test_a_terminal_gets_frames_and_a_pipe_gets_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    master, slave = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(slave, "w", encoding="utf-8") as tty, (tmp_path / "log").open("w") as log:
        assert isinstance(open_display(tty), RichDisplay)
        assert isinstance(open_display(log), PlainDisplay)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(open_display(tty), PlainDisplay)
        monkeypatch.setenv("TERM", "xterm")
        tty.reconfigure(encoding="ascii")
        assert isinstance(open_display(tty), PlainDisplay)
    os.close(master)


def test_a_terminal_that_takes_nothing_does_not_hold_us_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libra.telemetry.display.FINISH_WAIT_S", 0.01)
    monkeypatch.setattr("libra.telemetry.screen.FINISH_WAIT_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    before = sys.stdout
    with os.fdopen(slave, "w", encoding="utf-8") as tty, open_display(tty) as display:
        display.update(view())
        termios.tcflow(slave, termios.TCOOFF)  # what Ctrl-S does
        display.report("error", "lost")
        display.update(view())
        display.finish(summary())
        assert display.broken.startswith("the viewer took nothing")
        display.__exit__()
        assert sys.stdout is before
        termios.tcflow(slave, termios.TCOON)
    os.close(master)


def test_numbers_and_durations() -> None:
    assert [duration(s) for s in (0.0, 75.4, 3661.0, None, float("inf"))] == ["0:00", "1:15", "1:01:01", "-", "-"]
    assert [number(v) for v in (0.25, None, [], [0.25, float("nan")], float("nan"))] == [
        "0.250",
        "-",
        "-",
        "0.250",
        "-",
    ]
