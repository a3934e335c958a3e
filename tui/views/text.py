"""Lines of styled text, cells of a fixed width, and numbers as people read them. Under every view.

A line is a tuple of spans, a span (text, style name); the names are those of `tui.palette`. What came from a run (host names,
reasons, alerts) may hold anything: `clean` takes the control characters out, and every cell passes through it.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

Span = tuple[str, str]
Line = tuple[Span, ...]
UNKNOWN = "-"

_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], "?")


def clean(text: str) -> str:
    """Without what could move a terminal's cursor or change its state."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROLS)


def fit(text: str, width: int) -> str:
    """Cut or filled to exactly `width` columns."""
    text = clean(text)
    return text[:width].ljust(width) if text.isascii() else set_cell_size(text, width)


def right(text: str, width: int) -> str:
    """At the right end of `width` columns; what does not fit loses its end."""
    text = clean(text)
    return " " * (width - cell_len(text)) + text if cell_len(text) <= width else fit(text, width)


def width_of(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def cut(line: Line, width: int) -> Line:
    """The line as exactly `width` columns, filled with blanks."""
    out: list[Span] = []
    left = width
    for text, style in line:
        columns = len(text) if text.isascii() else cell_len(text)
        if columns >= left:
            out.append((fit(text, left), style))
            return tuple(out)
        out.append((text, style))
        left -= columns
    return (*out, (" " * left, ""))


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def words(*parts: Span | str | None, gap: str = "  ") -> Line:
    """Those that are there, with a gap between them."""
    out: list[Span] = []
    for part in parts:
        if part is None or part == "":
            continue
        if out:
            out.append((gap, ""))
        text, style = (part, "") if isinstance(part, str) else part
        out.append((clean(text), style))
    return tuple(out)


def wrapped(text: str, width: int, most: int) -> list[str]:
    """Broken at blanks into at most `most` lines; the last one is cut."""
    lines, line = [], ""
    for word in clean(text).split():
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return lines if len(lines) <= most else [*lines[: most - 1], " ".join(lines[most - 1 :])]


def flowed(items: Iterable[Line], width: int) -> list[Line]:
    """One after the other, in as many lines as they need: none is cut. Blanks at the end of an item may be."""
    lines: list[Line] = [()]
    for item in items:
        if lines[-1] and width_of(lines[-1]) + len(plain(item)) > width:
            lines.append(())
        lines[-1] = (*lines[-1], *item)
    return lines


def number(value: float | None) -> str:
    """Four digits at most: 0.034, 12.3, 940, 12.3k, 4.56M."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    for scale, mark in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= scale:
            scaled = value / (1e3 if mark == "k" else scale)
            return f"{scaled:.0f}{mark}" if abs(scaled) >= 100 else f"{scaled:.1f}{mark}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """Six columns at most: 0.42s, 41.2s, 3m07s, 2h05m, 12d3h."""
    if value is None:
        return UNKNOWN
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 9.995:
        return f"{value:.2f}s"
    if value < 59.95:
        return f"{value:.1f}s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 100 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def age(value: float | None) -> str:
    """Whole seconds: 0s, 42s, 3m07s. What grows by itself changes on the screen once a second, not ten times."""
    return UNKNOWN if value is None else f"{int(value)}s" if value < 60 else seconds(float(int(value)))


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def ranges(ranks: Iterable[int]) -> str:
    """0-3,8: runs of numbers."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or UNKNOWN


def bar(share: float, width: int, glyphs: Sequence[str]) -> str:
    """A bar of `width` columns, filled by `share`; `glyphs` are (empty, full)."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return glyphs[1] * full + glyphs[0] * (width - full)


def spark(values: Sequence[float | None], width: int, steps: str, low: float | None = None) -> str:
    """The newest values, a column each, between the smallest (or `low`) and the largest; a blank where there is none."""
    shown = list(values)[-width:] if width > 0 else []
    known = [v for v in shown if v is not None]
    if not known:
        return ""
    base = min(known) if low is None else low
    top = max(known)
    last = len(steps) - 1
    return "".join(
        " "
        if v is None
        else steps[last // 2 if top <= base else min(last, max(0, round((v - base) / (top - base) * last)))]
        for v in shown
    )


def matches(needle: str, *fields: object) -> bool:
    """A filter: every word of it stands in one of the fields, whatever its case; a word after `=` is a whole field."""
    names = [str(field).lower() for field in fields]
    hay = " ".join(names)
    return all(word[1:] in names if word.startswith("=") else word in hay for word in needle.lower().split())
