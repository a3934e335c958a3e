"""Style names and glyphs, for four kinds of terminals. Used by the canvas (styles) and the views (glyphs).

Colours are Okabe and Ito's, which stay apart for every kind of colour vision; in 16 colours, their nearest that do. Colour
never says alone what a word or a glyph does not say too. Backgrounds are the terminal's own: light or dark, both are read.
"""

from typing import Literal

from msgspec import Struct
from rich.style import Style

Colours = Literal["none", "16", "256"]

_COMMON = {"": "", "bold": "bold", "cursor": "reverse", "tab": "bold reverse", "key": "bold"}
_256 = {
    "dim": "color(245)",
    "title": "bold color(74)",
    "ok": "color(36)",
    "warn": "bold color(214)",
    "bad": "bold color(166)",
    "trainer": "color(36)",
    "rollout": "color(74)",
    "gradient": "color(214)",
    "moving": "bold color(175)",
    "spare": "color(245)",
    "lost": "bold color(166)",
    "heat": "color(74)",
    "heat2": "color(214)",
    "draft": "bold color(175)",
}
_16 = {
    "dim": "dim",
    "title": "bold cyan",
    "ok": "green",
    "warn": "bold yellow",
    "bad": "bold red",
    "trainer": "blue",
    "rollout": "cyan",
    "gradient": "yellow",
    "moving": "bold magenta",
    "spare": "dim",
    "lost": "bold red",
    "heat": "cyan",
    "heat2": "yellow",
    "draft": "bold magenta",
}
_NONE = {
    **dict.fromkeys(_256, ""),
    "dim": "dim",
    "title": "bold",
    "warn": "bold",
    "bad": "bold reverse",
    "lost": "bold",
    "moving": "bold",
    "draft": "bold underline",
}
STYLES: frozenset[str] = frozenset({*_COMMON, *_256})


def palette(colours: Colours) -> dict[str, Style]:
    """Every style name's rich style."""
    chosen = {"none": _NONE, "16": _16, "256": _256}[colours]
    return {name: Style.parse(text) if text else Style.null() for name, text in {**_COMMON, **chosen}.items()}


class Glyphs(Struct, frozen=True):
    heat: str
    """From nothing to full, nine steps."""
    bar: tuple[str, str]
    dot: str
    arrow: str
    rule: str
    absent: str
    """Where nothing is known."""
    play: str
    pause: str


UNICODE = Glyphs("·▁▂▃▄▅▆▇█", ("·", "█"), "●", "→", "─", " ", "▶", "‖")
ASCII = Glyphs(".:-=+*x%#", (".", "#"), "*", "->", "-", " ", ">", "||")
