"""Whole pictures as plain text, at 80x24, 120x40 and on a terminal without colours and glyphs: as in tests/tui/frames."""

import pytest
from tui_parts import FRAMES, model, picture, text

from libra.control.messages import DraftAnswer
from libra.control.price import Price
from tui.desk import Verdict
from tui.draft import Draft
from tui.model import LinkState, Model
from tui.palette import ASCII, UNICODE
from tui.ui import SCREENS, ScreenName, Ui
from tui.views.text import width_of


def same(name: str, shown: str, remake: bool) -> None:
    path = FRAMES / f"{name}.txt"
    if remake:
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8"), f"{path.name} differs; pytest --remake-frames writes it again"


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize(("width", "height", "kind"), [(80, 24, ""), (120, 40, ""), (80, 24, "-ascii")])
def test_every_screen_looks_as_it_did(screen: ScreenName, width: int, height: int, kind: str, remake: bool) -> None:
    shown = text(picture(model(control=True), screen, width, height, ASCII if kind else UNICODE))
    assert shown.isascii() or not kind
    same(f"{screen}-{width}x{height}{kind}", shown, remake)


def test_a_draft_stands_with_its_price(remake: bool) -> None:
    m = model(control=True)
    assert m.snapshot is not None
    draft = Draft()
    draft.less_rollout(m.snapshot)
    check = DraftAnswer("", True, "", ("engine 5 -> replica 100",), 4)
    verdict = Verdict(draft.revision, check, Price(True, "", 0.97, 40.0, 41.5, 11.0))
    same("draft-80x24", text(picture(m, "allocation", draft=draft, verdict=verdict)), remake)


def test_a_lost_link_keeps_the_last_picture_and_says_since_when(remake: bool) -> None:
    m = model()
    m.link = LinkState("lost", "demo has closed the link", since=58.0)
    shown = text(picture(m, "overview", now=100.0))
    assert "connection lost 42s ago, last frame kept, trying again" in shown
    same("lost-80x24", shown, remake)


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 8), (200, 60), (20, 3), (1, 1)])
@pytest.mark.parametrize("ranks", [10, 300])
def test_a_picture_is_as_large_as_its_terminal(screen: ScreenName, width: int, height: int, ranks: int) -> None:
    for m in (model(ranks=ranks), Model("demo")):
        lines = picture(m, screen, width, height).lines
        assert len(lines) == height
        assert {width_of(line) for line in lines} == {width}


def test_what_a_run_says_cannot_move_the_terminals_cursor() -> None:
    from msgspec import structs
    from tui_parts import news, state

    m = model()
    s = state(41)
    rows = (structs.replace(s.ranks[0], host="\x1b[2J\x07evil", doing="\x9b31m"), *s.ranks[1:])
    tail = (structs.replace(s.tail[0], signal="a\r\nb"), *s.tail[1:])
    m.take(structs.replace(s, ranks=rows, tail=tail))
    m.hear(news(99, "\x1b]52;c;AAAA\x07"))
    for screen in SCREENS:
        ui = Ui()
        ui.say("refused: \x1b[31m")
        shown = text(picture(m, screen, 120, 40, ui=ui)).replace("\n", "")
        assert shown.isprintable(), screen


def test_a_cursor_stays_with_its_rank_under_a_filter() -> None:
    m, ui = model(), Ui()
    first = picture(m, "ranks", ui=ui)
    ui.cursor.move(4, first.keys)
    assert ui.cursor.key == 5
    ui.filters["ranks"] = "rollout"
    assert picture(m, "ranks", ui=ui).selected.split()[0] == "5"
    ui.filters["ranks"] = "gradient"
    assert picture(m, "ranks", ui=ui).keys == [9, 10]
