"""The whole picture: where the run is, the screens' names, the screen, and one line of keys or of the last answer.

`frame` gives exactly `height` lines of exactly `width` columns. It settles the cursor (the only thing it changes), so that what
is selected and what is drawn are the same row.
"""

from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct

from tui.desk import Verdict
from tui.draft import Draft
from tui.model import Model
from tui.palette import Glyphs
from tui.ui import SCREENS, ScreenName, Ui
from tui.views.allocation import allocation
from tui.views.events import events
from tui.views.help import KEYS, works
from tui.views.overview import overview
from tui.views.page import Look, Page
from tui.views.ranks import ranks
from tui.views.stragglers import stragglers
from tui.views.text import Line, Span, age, cut, fit, flowed, plain, width_of, words, wrapped
from tui.views.trajectory import trajectory

AROUND = 3
"""Lines that are not the screen's own."""
_VIEWS: dict[ScreenName, Callable[[Look], Page]] = {
    "overview": overview,
    "ranks": ranks,
    "stragglers": stragglers,
    "trajectory": trajectory,
    "events": events,
}


def page(look: Look, draft: Draft, verdict: Verdict) -> Page:
    """The screen's content."""
    if look.model.snapshot is None:
        link = look.model.link
        return Page(empty=f"{look.model.run}: {link.what or link.stage}")
    if look.ui.screen == "allocation":
        return allocation(look, draft, verdict)
    return _VIEWS[look.ui.screen](look)


class Picture(Struct, frozen=True):
    lines: list[Line]
    keys: Sequence[Hashable]
    """Of the table's rows, all of them."""
    selected: str
    """The text of the cursor's row; "" where there is no table."""


def frame(
    model: Model, ui: Ui, draft: Draft, verdict: Verdict, glyphs: Glyphs, width: int, height: int, now: float
) -> Picture:
    bottom = _bottom(model, ui, width)
    look = Look(model, ui, glyphs, width, max(1, height - AROUND + 1 - len(bottom)), now)
    shown = page(look, draft, verdict)
    body = [*shown.head[: look.height]]
    foot = list(shown.foot[: max(0, look.height - len(body) - min(4, len(shown.keys)))])
    room = look.height - len(body) - len(foot)
    cursor = ui.cursor
    if not shown.keys:
        body += [((shown.empty, "dim"),)] if shown.empty else []
    elif room > 0:
        _settle(ui, shown, room)
        last = min(len(shown.keys), cursor.top + room)
        for i in range(cursor.top, last):
            line = shown.row(i)
            body.append(_selected(line, width) if i == cursor.index else line)
    body = body[: look.height - len(foot)]
    body += [()] * (look.height - len(foot) - len(body)) + foot
    where = (cursor.top + 1, min(len(shown.keys), cursor.top + room), len(shown.keys)) if shown.keys else None
    lines = [_header(look), _tabs(look, where), *body, *bottom]
    selected = plain(shown.row(cursor.index)) if shown.keys else ""
    return Picture([cut(line, width) for line in lines][:height], shown.keys, selected)


def _settle(ui: Ui, shown: Page, room: int) -> None:
    cursor = ui.cursor
    if ui.screen == "events" and cursor.follow:
        cursor.key, cursor.index = shown.keys[-1], len(shown.keys) - 1
    cursor.settle(shown.keys, room)


def _selected(line: Line, width: int) -> Line:
    text = "".join(part for part, _ in line)
    return ((fit(text, width), "cursor"),)


def _header(look: Look) -> Line:
    model, s = look.model, look.model.snapshot
    step = f"step {s.run.step}/{s.run.steps}" if s else ""
    left = words(("libra", "title"), (model.run, "bold"), step, f"{age(s.t)}" if s else None, _mode(look))
    return _ends(left, (_link(look),), look.width)


def _mode(look: Look) -> Span | None:
    return ("control", "draft") if look.model.control else None


def _link(look: Look) -> Span:
    """How fresh the picture is, in words."""
    link, playing, g = look.model.link, look.model.playing, look.glyphs
    if look.ui.paused:
        return (f"{g.pause} picture stopped, space goes on", "warn")
    match link.stage:
        case "live":
            missed = look.model.missed
            return (f"{g.dot} live, {missed} news missed", "warn") if missed else (f"{g.dot} live", "ok")
        case "lost":
            kept = "last frame kept" if look.model.snapshot else "no state yet"
            return (f"connection lost {age(look.now - link.since)} ago, {kept}, trying again", "bad")
        case "over":
            return ("the run has ended, last frame kept", "warn")
        case "replay" if playing is not None:
            mark = f"{g.play} x{playing.speed:g}" if playing.playing else g.pause
            return (f"replay {mark} {age(playing.now)} of {age(playing.length_s)}", "title")
        case _:
            return (link.stage, "dim")


def _tabs(look: Look, where: tuple[int, int, int] | None) -> Line:
    names: list[Span] = []
    for n, name in enumerate(SCREENS, 1):
        names += [(f"{n} {name}", "tab" if name == look.ui.screen else "dim"), (" ", "")]
    note = f"/{look.ui.filter}  " if look.ui.filter else ""
    place = f"{where[0]}-{where[1]}/{where[2]}" if where and where[2] > where[1] - where[0] + 1 else ""
    return _ends(tuple(names), ((note, "draft"), (place, "dim")), look.width)


def _bottom(model: Model, ui: Ui, width: int) -> list[Line]:
    """The last answer, else why the link is lost, else the keys of this screen."""
    if ui.said:
        return [((text, ui.said_style),) for text in wrapped(ui.said, width, 3)]
    if model.link.stage in ("lost", "over", "replay") and model.link.what:
        style = {"lost": "bad", "over": "warn"}.get(model.link.stage, "title")
        return [((text, style),) for text in wrapped(model.link.what, width, 2)]
    replay = model.link.stage == "replay"
    shown = [k for k in KEYS if works(k, ui.screen, control=model.control, replay=replay) and (k.screens or k.mode)]
    keys = [
        ((key.shown, "key"), (f" {_SHORT.get(key.shown, _named(key.action))}  ", "dim"))
        for key in (*(k for k in KEYS if k.shown in ("?", "q", "space", "enter")), *shown)
    ]
    if ui.screen == "allocation" and not (model.control or replay):
        keys.append((("--control", "key"), (" to give orders", "dim")))
    return flowed(keys, width)


def _named(action: str) -> str:
    """order('move'): move."""
    name, _, argument = action.rstrip(")").partition("(")
    return argument.strip("'") or name


_SHORT = {
    "space": "stop",
    "?": "help",
    "enter": "open",
    "q": "quit",
    "u": "undo",
    "p": "auto",
    "t": "to",
    ".": "step",
    "]": "on",
    "[": "back",
    ">": "faster",
    "<": "slower",
}


def _ends(left: Line, right: Line, width: int) -> Line:
    """One at either end; the right one wins the room."""
    right_width = width_of(right)
    if right_width >= width:
        return right
    return (*cut(left, max(0, width - right_width - 1)), (" ", ""), *right)
