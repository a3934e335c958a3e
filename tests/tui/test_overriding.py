"""The whole way of an order, by keys alone, against a pretended controller: what is asked, shown, given and said."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from textual.pilot import Pilot
from textual.widgets import Button
from tui_parts import PLAIN, TERMINAL, PretendOffice, Still, model, picture, state, text

from libra.control.messages import DraftAnswer
from libra.control.snapshot import Snapshot
from libra.core.orders import Arrange, CancelTrajectory, Hold, MoveRanks, Pause, Raise, Undo
from tui.app import Dashboard
from tui.desk import Verdict
from tui.dialogs import Question
from tui.feed import Feed
from tui.model import LinkState, Model
from tui.terminal import Terminal
from tui.ui import SCREENS, ScreenName
from tui.views.help import KEYS, works
from tui.widgets.canvas import Canvas

PATIENCE = 400
"""Turns of the event loop that a thread gets to answer."""


def dashboard(office: PretendOffice | None, terminal: Terminal = TERMINAL, directory: Path = Path()) -> Dashboard:
    m = Model("demo", office is not None)
    m.link = LinkState("live")
    app = Dashboard(m, Feed(), Still(), terminal, office, directory)
    app.feed.put(state(40))
    return app


async def until(pilot, condition) -> None:
    for _ in range(PATIENCE):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError(f"did not come:\n{text(pilot.app.picture)}")


def shown(app: Dashboard) -> str:
    return text(app.picture)


@asynccontextmanager
async def began(app: Dashboard, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[None]]:
    """The dashboard, once it has a state to show."""
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.model.snapshot is not None)
        await pilot.pause()
        yield pilot


@pytest.mark.anyio
async def test_a_rank_is_moved_by_keys_alone() -> None:
    office = PretendOffice()
    app = dashboard(office)
    async with began(app) as pilot:
        await pilot.press("4", "j", "j", "m")  # trainer, engine 0, engine 1
        await until(pilot, lambda: "predicted -3 % throughput" in shown(app))
        assert "valid: ranks (4,) go to gradient" in shown(app)
        assert "11.0s transition" in shown(app)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, Question)
        assert app.focused is app.screen.query_one("#cancel", Button)
        await pilot.press("enter")  # on Cancel
        await pilot.pause()
        assert office.given == []
        assert "nothing was ordered" in shown(app)
        await pilot.press("enter", "tab", "enter")
        await until(pilot, lambda: "accepted: move 2: engine 4 -> replica 9, allocation 5" in shown(app))
        assert office.given == [(MoveRanks((4,), "gradient"), 4)]
        assert "draft," not in shown(app)


@pytest.mark.anyio
async def test_what_the_core_forbids_is_said_at_once_and_is_not_priced() -> None:
    office = PretendOffice()
    app = dashboard(office)
    async with began(app) as pilot:
        await pilot.press("4", "j", "m")
        await until(pilot, lambda: "not possible: rank 3 is the last one" in shown(app))
        assert office.priced == []
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, Question), "there is nothing to ask"
        assert "esc drops it" in shown(app)


@pytest.mark.anyio
async def test_a_draft_that_turns_out_impossible_while_it_is_asked_about_leaves_only_cancel() -> None:
    office = PretendOffice()
    app = dashboard(office)
    async with began(app) as pilot:
        await pilot.press("4", "j", "j", "m")
        await until(pilot, lambda: "valid" in shown(app))
        await pilot.press("enter", "tab")
        await pilot.pause()
        assert app.focused is app.screen.query_one("#go", Button)
        check = DraftAnswer("", False, "its host is lost", (), 5)
        app.ordering.heard(Verdict(app.ordering.draft.revision, check))  # type: ignore[union-attr]
        await until(pilot, lambda: not app.screen.query_one("#go", Button).display)
        await until(pilot, lambda: app.focused is app.screen.query_one("#cancel", Button))
        await pilot.press("tab", "enter")
        await pilot.pause()
        assert office.given == []


@pytest.mark.anyio
async def test_a_dialog_says_how_it_is_answered() -> None:
    app = dashboard(PretendOffice())
    async with began(app) as pilot:
        await pilot.press("4", "u")
        await pilot.pause()
        told = "".join(text for canvas in app.screen.query(Canvas) for line in canvas.lines for text, _ in line)
        assert "tab chooses, enter takes it, esc cancels" in told


@pytest.mark.anyio
async def test_a_refusal_is_shown_with_its_reason() -> None:
    office = PretendOffice()
    office.refuses = "the allocation is 5 by now, and the order was for 4"
    app = dashboard(office)
    async with began(app) as pilot:
        await pilot.press("4", "u", "tab", "enter")
        await until(pilot, lambda: "refused: the allocation is 5 by now" in shown(app))
        assert office.given == [(Undo(), 4)]


@pytest.mark.anyio
async def test_several_units_go_in_one_order() -> None:
    office = PretendOffice()
    app = dashboard(office)
    async with began(app) as pilot:
        await pilot.press("4", "minus", "minus", "plus", "j", "j", "x")
        await until(pilot, lambda: "valid" in shown(app))
        await pilot.press("enter", "tab", "enter")
        await until(pilot, lambda: office.given)
        order = Arrange((MoveRanks((8,), "gradient"), MoveRanks((4,), "spare")))
        assert office.given == [(order, 4)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("keys", "order"),
    [
        (("4", "p", "tab", "enter"), Pause()),
        (("4", "L", "enter", "tab", "enter"), Hold(600.0)),
        (("3", "j", "exclamation_mark", "tab", "enter"), Raise(401)),
        (("3", "j", "exclamation_mark", "tab", "tab", "enter"), Raise(401, whole_group=True)),
        (("3", *"jjjjjj", "exclamation_mark", "tab", "enter"), Raise(406, raised=False)),
        (("3", "enter", "X", "tab", "enter"), CancelTrajectory(400)),
    ],
)
async def test_each_order_is_asked_for_and_given(keys: tuple[str, ...], order: object) -> None:
    office = PretendOffice()
    app = dashboard(office)
    async with began(app) as pilot:
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await until(pilot, lambda: office.given)
        assert office.given == [(order, 4)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "keys", [("4", "enter"), ("4", "m"), ("4", "u"), ("4", "p"), ("4", "L"), ("3", "X"), ("3", "exclamation_mark")]
)
async def test_without_control_no_key_orders_or_asks(keys: tuple[str, ...]) -> None:
    app = dashboard(None)
    async with began(app) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        assert not isinstance(app.screen, Question)
        assert "looking only: `libra top demo --control` may give orders" in shown(app)


@pytest.mark.anyio
async def test_a_draft_forgets_a_unit_that_is_gone() -> None:
    office = PretendOffice()
    app = dashboard(office)
    async with began(app) as pilot:
        await pilot.press("4", "minus")
        await until(pilot, lambda: "draft, 1 change" in shown(app))
        s: Snapshot = state(41)
        app.feed.put(type(s)(**{**{f: getattr(s, f) for f in s.__struct_fields__}, "engines": s.engines[:-1]}))
        await until(pilot, lambda: "draft," not in shown(app))


@pytest.mark.anyio
async def test_space_stops_the_picture_and_goes_on_with_the_newest() -> None:
    app = dashboard(None)
    async with began(app) as pilot:
        await pilot.press("space")
        app.feed.put(state(48))
        await pilot.pause(0.2)
        assert "step 5/60" in shown(app)
        assert "picture stopped" in shown(app)
        await pilot.press("space")
        assert "step 6/60" in shown(app)


@pytest.mark.anyio
@pytest.mark.parametrize("keys", [["j"] * 60, ["down"] * 60, ["pagedown"] * 6, ["G"]])
async def test_help_rolls_to_its_last_line_on_a_small_terminal(keys: list[str]) -> None:
    app = dashboard(PretendOffice())
    async with began(app) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        canvas = app.screen.query_one("Canvas")
        assert canvas.region.bottom > 24, "it does not fit"
        await pilot.press(*keys)
        await pilot.pause()
        assert canvas.region.bottom <= 24
        await pilot.press("g")
        await pilot.pause()
        assert canvas.region.y >= 0


@pytest.mark.anyio
async def test_tab_goes_round_the_screens_and_round_the_buttons_of_a_dialog() -> None:
    app = dashboard(PretendOffice())
    async with began(app) as pilot:
        seen = [app.ui.screen]
        for _ in SCREENS:
            await pilot.press("tab")
            seen.append(app.ui.screen)
        assert seen == [*SCREENS, SCREENS[0]]
        await pilot.press("shift+tab")
        assert app.ui.screen == SCREENS[-1]
        await pilot.press("4", "u", "tab")
        assert app.focused is not None
        assert app.focused.id != "cancel"
        assert app.ui.screen == "allocation"


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("width", [40, 80])
def test_the_bottom_lines_name_every_key_of_a_screen_whole(
    screen: ScreenName, control: bool, replay: bool, width: int
) -> None:
    m = model(control=control and not replay)
    m.link = LinkState("replay" if replay else "live")
    shown = text(picture(m, screen, width, 24))
    for key in KEYS:
        if works(key, screen, control=m.control, replay=replay) and (key.screens or key.mode):
            assert re.search(rf"(^|  ){re.escape(key.shown)} \w+($|  )", shown, re.MULTILINE), key.shown


@pytest.mark.anyio
async def test_help_tells_every_key_that_is_bound() -> None:
    app = dashboard(PretendOffice())
    async with began(app, (100, 70)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        lines = app.screen.query_one("Canvas").lines  # type: ignore[attr-defined]
        told = "\n".join("".join(part for part, _ in line) for line in lines)
        for key in KEYS:
            if key.mode != "replay":
                assert f"  {key.shown} " in told
                assert key.what in told
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


@pytest.mark.anyio
async def test_a_picture_is_saved_as_text_and_svg_and_a_row_is_copied(tmp_path: Path) -> None:
    app = dashboard(None, PLAIN, tmp_path)
    async with began(app) as pilot:
        await pilot.press("2", "j", "y")
        assert app.clipboard.split()[:2] == ["2", "trainer"]
        await pilot.press("s")
        await until(pilot, lambda: "saved libra-demo-ranks" in shown(app))
        saved = sorted(tmp_path.iterdir())  # noqa: ASYNC240 - a directory of two files
        assert [path.suffix for path in saved] == [".svg", ".txt"]
        assert "rank role" in saved[1].read_text()
        svg = saved[0].read_text()
        assert svg.startswith("<svg")
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.anyio
async def test_leaving_ends_the_threads() -> None:
    office = PretendOffice()
    app = dashboard(office)
    async with began(app) as pilot:
        await pilot.press("q")
    for _ in range(PATIENCE):
        if office.closed:
            return
        await anyio.sleep(0.02)
    raise AssertionError("the desk's thread has not closed its office")
