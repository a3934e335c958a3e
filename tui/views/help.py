"""Every key and what it does: the one place that `?`, the bottom line and the bindings are made from."""

from msgspec import Struct

from tui.ui import ScreenName
from tui.views.text import Line, fit


class Key(Struct, frozen=True):
    """`shown` is what is printed on the key; `name` textual's word for it; `action` the app's method behind it."""

    name: str
    shown: str
    action: str
    what: str
    screens: tuple[ScreenName, ...] = ()
    """Where it works; () everywhere."""
    mode: str = ""
    """control: only with --control; replay: only in a replay."""


KEYS: tuple[Key, ...] = (
    Key("q", "q", "leave", "quit; the run goes on"),
    Key("question_mark", "?", "help", "this help"),
    Key("1", "1", "screen('overview')", "overview"),
    Key("2", "2", "screen('ranks')", "ranks"),
    Key("3", "3", "screen('stragglers')", "stragglers"),
    Key("4", "4", "screen('allocation')", "allocation"),
    Key("5", "5", "screen('trajectory')", "one trajectory"),
    Key("6", "6", "screen('events')", "events"),
    Key("tab", "tab", "focus_next", "the next screen (shift-tab: the one before)"),
    Key("j,down", "j", "down", "down (also the arrow)"),
    Key("k,up", "k", "up", "up (also the arrow)"),
    Key("pagedown,ctrl+d", "pgdn", "page(1)", "a page down (also ctrl-d)"),
    Key("pageup,ctrl+u", "pgup", "page(-1)", "a page up (also ctrl-u)"),
    Key("g,home", "g", "first", "to the first row"),
    Key("G,end", "G", "last", "to the last row"),
    Key(
        "slash",
        "/",
        "filter",
        "show only rows with these words; =word: exactly; enter keeps, esc clears",
        ("ranks", "stragglers", "events"),
    ),
    Key(
        "enter",
        "enter",
        "enter",
        "open the row: its trajectories, turns or text; 4: order",
    ),
    Key("escape", "esc", "back", "back; on 4: drop the draft"),
    Key("space", "space", "pause", "stop the picture, not the run (a replay: play, stand still)"),
    Key("y", "y", "copy", "copy the row to the clipboard (OSC 52, works over SSH)"),
    Key("s", "s", "save", "save the picture as text and SVG"),
    Key("plus", "+", "order('more')", "one more unit into rollout", ("allocation",), "control"),
    Key("minus", "-", "order('less')", "one unit less in rollout", ("allocation",), "control"),
    Key("m", "m", "order('move')", "this unit to the other role", ("allocation",), "control"),
    Key("b", "b", "order('reshape')", "this unit into the next bucket", ("allocation",), "control"),
    Key("x", "x", "order('drain')", "this unit out of work; on a move: call it off", ("allocation",), "control"),
    Key("p", "p", "order('auto')", "pause the automatic moves, or resume them", ("allocation",), "control"),
    Key("L", "L", "order('hold')", "no automatic move for a time", ("allocation",), "control"),
    Key("u", "u", "order('undo')", "take the last order back", ("allocation",), "control"),
    Key(
        "exclamation_mark",
        "!",
        "order('raise')",
        "this trajectory, or its group, before all others",
        ("stragglers", "trajectory"),
        "control",
    ),
    Key("X", "X", "order('cancel')", "end this trajectory as failed", ("stragglers", "trajectory"), "control"),
    Key("full_stop", ".", "replay('step')", "one event on", (), "replay"),
    Key("right_square_bracket", "]", "replay('on')", "a twentieth of the run on", (), "replay"),
    Key("left_square_bracket", "[", "replay('back')", "a twentieth of the run back", (), "replay"),
    Key("greater_than_sign", ">", "replay('faster')", "twice as fast", (), "replay"),
    Key("less_than_sign", "<", "replay('slower')", "half as fast", (), "replay"),
    Key("t", "t", "replay('goto')", "to a time: 90, 5m, 1h", (), "replay"),
)


def works(key: Key, screen: ScreenName, *, control: bool, replay: bool) -> bool:
    return (not key.screens or screen in key.screens) and (
        not key.mode or (key.mode == "control" and control) or (key.mode == "replay" and replay)
    )


def help_lines(*, control: bool, replay: bool) -> list[Line]:
    """What `?` shows, by theme."""
    lines: list[Line] = []
    themes = (
        ("everywhere", [k for k in KEYS if not k.mode and not k.screens]),
        ("lists", [k for k in KEYS if not k.mode and k.screens]),
        ("orders (each asks before it is given)", [k for k in KEYS if k.mode == "control"]),
        ("replay", [k for k in KEYS if k.mode == "replay"]),
    )
    for name, keys in themes:
        if keys[0].mode == "replay" and not replay:
            continue
        lines.append(((name, "title"),))
        if keys[0].mode == "control" and not control:
            lines.append((("  this is a look only: `libra top RUN --control` may order", "dim"),))
        for key in keys:
            where = f"  (screen {', '.join(str(_NUMBER[s]) for s in key.screens)})" if key.screens else ""
            lines.append(((fit(f"  {key.shown}", 9), "key"), (key.what, ""), (where, "dim")))
        lines.append(())
    return lines


_NUMBER: dict[ScreenName, int] = {
    "overview": 1,
    "ranks": 2,
    "stragglers": 3,
    "allocation": 4,
    "trajectory": 5,
    "events": 6,
}
