"""Text for people: tables, durations, counts. Used by the commands that show runs."""

import re
from collections.abc import Sequence

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be, two blanks between them."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def duration(seconds: float) -> str:
    """42s, 3m07s, 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


def seconds_of(text: str) -> float | None:
    """What "90", "60s", "5m" or "1.5h" mean; None for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    return float(match[1]) * _UNITS_S[match[2]] if match else None
