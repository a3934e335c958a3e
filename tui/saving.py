"""A picture of the screen as files: text, and SVG without fonts or scripts from elsewhere. The documents' are made so too."""

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tui.views.text import Line, plain

_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>.{unique_id}-matrix {{
font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect width="100%" height="100%" fill="#16181d"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_THEME = TerminalTheme(
    (22, 24, 29),
    (208, 210, 214),
    [
        (40, 42, 48),
        (213, 94, 0),
        (0, 158, 115),
        (230, 159, 0),
        (0, 114, 178),
        (204, 121, 167),
        (86, 180, 233),
        (208, 210, 214),
    ],
    [
        (110, 112, 118),
        (213, 94, 0),
        (0, 158, 115),
        (240, 228, 66),
        (86, 180, 233),
        (204, 121, 167),
        (140, 200, 240),
        (255, 255, 255),
    ],
)


def text_of(lines: Sequence[Line]) -> str:
    return "".join(plain(line) + "\n" for line in lines)


def svg_of(lines: Sequence[Line], styles: Mapping[str, Style], width: int, name: str) -> str:
    console = Console(
        width=width, record=True, file=io.StringIO(), color_system="256", force_terminal=True, legacy_windows=False
    )
    for line in lines:
        console.print(
            Text.assemble(*((text, styles[style]) for text, style in line)),
            no_wrap=True,
            overflow="crop",
            highlight=False,
        )
    return console.export_svg(title=name, theme=_THEME, code_format=_SVG, unique_id="libra")


def save(
    directory: Path, run: str, screen: str, lines: Sequence[Line], styles: Mapping[str, Style], width: int
) -> list[Path]:
    """Both files, named by run, screen and time; OSError where they cannot be written."""
    stem = f"libra-{run}-{screen}-{time.strftime('%Y%m%d-%H%M%S')}"
    text, picture = directory / f"{stem}.txt", directory / f"{stem}.svg"
    text.write_text(text_of(lines), encoding="utf-8")
    picture.write_text(svg_of(lines, styles, width, run), encoding="utf-8")
    return [text, picture]
