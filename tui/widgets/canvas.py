"""A widget that draws lines of styled text and sends only the columns that changed.

`show` compares with what is there and refreshes one region a changed line, from its first changed column to its last; textual
sends nothing else. So the bytes on the line follow what changes on the screen, not what the run has.
"""

from collections.abc import Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from tui.views.text import Line, cut, width_of

GAP = 8
"""Unchanged columns between two changes that are sent again rather than jumped over: a jump costs as much."""


class Canvas(Widget):
    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; background: ansi_default; color: ansi_default; }"

    def __init__(self, styles: Mapping[str, Style], id: str | None = None) -> None:
        super().__init__(id=id)
        self._styles = styles
        self.lines: list[Line] = []

    def show(self, lines: Sequence[Line]) -> None:
        before, self.lines = self.lines, list(lines)
        regions = []
        for y in range(max(len(before), len(self.lines))):
            old, new = (before[y] if y < len(before) else ()), (self.lines[y] if y < len(self.lines) else ())
            if old != new:
                regions += [Region(x0, y, x1 - x0, 1) for x0, x1 in changed(old, new)]
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self.lines):
            return Strip.blank(width)
        segments = [Segment(text, self._styles[style]) for text, style in cut(self.lines[y], width) if text]
        return Strip(segments, width)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return max((width_of(line) for line in self.lines), default=1)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self.lines))


def changed(old: Line, new: Line) -> list[tuple[int, int]]:
    """Columns [from, to) in which two lines differ. Lines with wide characters count as changed as a whole."""
    a, b = _cells(old), _cells(new)
    if a is None or b is None:
        return [(0, max(width_of(old), width_of(new)))]
    blank = (" ", "")
    spans: list[tuple[int, int]] = []
    for x in range(max(len(a), len(b))):
        if (a[x] if x < len(a) else blank) != (b[x] if x < len(b) else blank):
            if spans and x - spans[-1][1] < GAP:
                spans[-1] = (spans[-1][0], x + 1)
            else:
                spans.append((x, x + 1))
    return spans


def _cells(line: Line) -> list[tuple[str, str]] | None:
    cells = [(character, style) for text, style in line for character in text]
    return cells if len(cells) == width_of(line) else None
