"""What the terminal can do, by the environment; and what textual must find there before it is imported.

Over SSH at most 10 frames and 2 states a second cross the line, and nothing is animated, here or there. Called by `__main__`.
"""

import locale
import os
from collections.abc import Mapping, MutableMapping

from msgspec import Struct

from tui.palette import ASCII, UNICODE, Colours, Glyphs

FPS, FPS_SSH = 20, 10
STATES_PER_S, STATES_PER_S_SSH = 2.0, 2.0
_POOR = ("dumb", "linux", "vt100", "vt102", "vt220", "ansi")
"""Terminals without the glyphs of bars and graphs, or without more than 16 colours."""


class Terminal(Struct, frozen=True):
    ssh: bool
    fps: int
    states_per_s: float
    colours: Colours
    glyphs: Glyphs


def look(environ: Mapping[str, str], *, ascii_only: bool = False, encoding: str | None = None) -> Terminal:
    """By SSH_*, NO_COLOR, TERM, COLORTERM and the locale's encoding."""
    ssh = any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"))
    term = environ.get("TERM", "dumb")
    if environ.get("NO_COLOR") or term in ("dumb", "vt100", "vt102", "vt220"):
        colours: Colours = "none"
    else:
        colours = "256" if "256" in term or environ.get("COLORTERM") or "kitty" in term else "16"
    utf8 = (encoding or locale.getpreferredencoding(False)).lower().replace("-", "") == "utf8"
    plain = ascii_only or not utf8 or term in _POOR
    return Terminal(
        ssh,
        FPS_SSH if ssh else FPS,
        STATES_PER_S_SSH if ssh else STATES_PER_S,
        colours,
        ASCII if plain else UNICODE,
    )


def prepare(environ: MutableMapping[str, str], terminal: Terminal) -> None:
    """Set what textual and rich read when they are imported. A value that the user has set stays."""
    if environ.get("NO_COLOR") == "":  # as good as not set, but not to textual
        del environ["NO_COLOR"]
    colours = {"none": "standard", "16": "standard", "256": "256"}[terminal.colours]
    for name, value in (
        ("TEXTUAL_FPS", str(terminal.fps)),
        ("TEXTUAL_ANIMATIONS", "none"),
        ("TEXTUAL_SMOOTH_SCROLL", "0"),
        ("TEXTUAL_COLOR_SYSTEM", colours),
    ):
        environ.setdefault(name, value)


def prepare_here(*, ascii_only: bool = False) -> Terminal:
    """`look` and `prepare` for this process."""
    terminal = look(os.environ, ascii_only=ascii_only)
    prepare(os.environ, terminal)
    return terminal
