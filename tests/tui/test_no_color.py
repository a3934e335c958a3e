"""NO_COLOR on a real terminal: the same picture as ever, and not one byte that sets a colour."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pty_reader import OnTerminal  # of tests/live
from tui_parts import FRAMES

from tui.ui import SCREENS, ScreenName

REPOSITORY = Path(__file__).parents[2]
PROGRAM = f"""
import sys
sys.path += {[str(REPOSITORY), str(Path(__file__).parent)]!r}
from tui.terminal import prepare_here
terminal = prepare_here()
from tui_parts import Still, model
from tui.app import Dashboard
from tui.feed import Feed
app = Dashboard(model(control=True), Feed(), Still(), terminal, clock=lambda: 100.0)
app.ui.trajectory = 401
app.run(mouse=False)
"""
"""A dashboard with a made-up run, begun as `python -m tui` begins it: environment first."""
_SGR = re.compile(rb"\x1b\[([\d;:]*)m")


def colours(raw: bytes) -> list[bytes]:
    """What sets a colour among what a program sent. 39 and 49, the terminal's own, do not."""
    return [code.group() for code in _SGR.finditer(raw) if any(_is_colour(n) for n in re.split(rb"[;:]", code[1]) if n)]


def _is_colour(parameter: bytes) -> bool:
    n = int(parameter)
    return n // 10 in (3, 4, 9, 10) and n % 10 != 9


def pictures(environ: dict[str, str]) -> Iterator[tuple[ScreenName, bytes]]:
    """Each screen as soon as it stands on a terminal of 80x24 as it should, and what was sent until then."""
    with OnTerminal([sys.executable, "-c", PROGRAM], REPOSITORY, environ=environ) as terminal:
        for n, screen in enumerate(SCREENS, 1):
            terminal.press(f"{n}")
            terminal.until((FRAMES / f"{screen}-80x24.txt").read_text(encoding="utf-8").rstrip("\n"))
            yield screen, terminal.raw
        terminal.press("q")
        assert terminal.wait() == 0


@pytest.mark.process
def test_without_colours_each_screen_is_the_same_text_and_no_colour_is_sent() -> None:
    for screen, raw in pictures({"NO_COLOR": "1", "COLORTERM": "truecolor"}):
        assert not colours(raw), screen
        assert b"\x1b[2;39;49m" in raw, "what was grey is dim: textual alone would make it plain"


@pytest.mark.process
def test_with_colours_they_would_be_seen() -> None:
    """The control: the same reading finds the colours that are there otherwise, also where NO_COLOR is there but empty."""
    for screen, raw in pictures({"NO_COLOR": "", "COLORTERM": "truecolor"}):
        assert b"\x1b[38;5;74m" in colours(raw) or b"\x1b[1;38;5;74m" in colours(raw), screen
