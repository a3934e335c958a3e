"""The live frame: what `display` shows on a terminal. Only this module imports rich.

     Libra  quickstart · async · seed 0                      training  1:15  eta 2:40
     ━━━━━━━━━━━━━━━━━━━━━━━━━╸──────────────────────────────────────  57/160 steps
      reward      0.624  ▁▁▂▂▃▃▄▅▅▅▆▆▇▇   first ten 0.301
      ...

`frame` is a pure function of a view and a size. `RichDisplay` puts frames on the screen in place, at most four a second,
warnings and errors above them for good; at the end a summary table takes the frame's place. Colours go away under NO_COLOR.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from libra.core.commands import Level
from libra.telemetry.display import (
    FINISH_WAIT_S,
    Display,
    EngineRow,
    RunView,
    duration,
    number,
    roles_line,
    summary_rows,
)
from libra.telemetry.summary import WINDOW, Summary

REFRESH_S = 0.25
"""Shortest time between two frames."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES: dict[Level, str] = {"info": "", "warning": "yellow", "error": "bold red"}
_INDENT = 13
_ENGINES_LEAST = 2
"""Engine rows that a frame keeps even where reports would like their place."""


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` blocks, each the mean of an equal part of `values`; the scale is 0 to 1 unless values leave it.

    NaN has no block (a space where a whole part is NaN).
    """
    n = min(width, len(values))
    parts = [values[len(values) * i // n : len(values) * (i + 1) // n] for i in range(n)]
    means = [sum(f) / len(f) if (f := [v for v in part if math.isfinite(v)]) else math.nan for part in parts]
    finite = [m for m in means if m == m]
    low, high = min([0.0, *finite]), max([1.0, *finite])
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((m - low) / (high - low) * top)] if m == m else " " for m in means)


def bar(share: float, width: int) -> Text:
    """A progress bar, in half cells."""
    halves = round(min(max(share, 0.0), 1.0) * width * 2)
    done = "━" * (halves // 2) + "╸" * (halves % 2)
    return Text.assemble((done, "green"), ("─" * (width - len(done)), "bright_black"))


def frame(
    view: RunView, reports: Iterable[tuple[float, Level, str]] = (), width: int = 80, height: int = 24
) -> list[Text]:
    """The lines of a frame: at most `height`, none wider than `width` cells. Reports and engines share what is left."""
    lines = [_header(view, width), _progress(view, width), Text()]
    lines += _figures(view, width)
    recent = list(reports)
    room = height - len(lines)
    if view.engines and room >= 3:
        keep = max(min(len(view.engines), _ENGINES_LEAST), room - 2 - (min(len(recent), 5) + 1 if recent else 0))
        lines += [Text(), *_engines(view.engines, min(keep, room - 2))]
        room = height - len(lines)
    if recent and room >= 2:
        lines += [Text(), *(_report(t, level, text) for t, level, text in recent[-(room - 1) :])]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines[:height]


def _header(view: RunView, width: int) -> Text:
    left = Text.assemble((" Libra ", "bold"), f" {view.run} · {view.mode} · seed {view.seed}")
    right = Text.assemble((view.phase, "bold cyan"), f"  {duration(view.elapsed_s)}")
    if view.eta_s is not None:
        right.append(f"  eta {duration(view.eta_s)}")
    right.append(" ")
    left.truncate(max(width - right.cell_len - 1, 8), overflow="ellipsis")
    left.append(" " * (width - left.cell_len - right.cell_len))
    return left.append_text(right)


def _progress(view: RunView, width: int) -> Text:
    if view.phase == "training":
        share, label = view.step / max(view.steps, 1), f"{view.step}/{view.steps} steps"
        label = f"{label}, {view.label}" if view.label else label
    else:
        share, label = view.progress, view.label or f"{view.progress:.0%}"
    label = label[: max(width // 2, 8)]
    return Text.assemble(" ", bar(share, max(width - len(label) - 4, 4)), "  ", label)


def _figures(view: RunView, width: int) -> list[Text]:
    first = f"   first ten {number(view.rewards[:WINDOW])}" if len(view.rewards) > WINDOW else ""
    spark = sparkline(view.rewards, max(width - _INDENT - 9 - len(first), 8))
    flying = {stage: n for stage, n in view.in_flight.items() if n}
    stages = " · ".join(f"{stage} {n:,}" for stage, n in flying.items())
    return [
        Text.assemble(
            _name("reward"), (number(view.rewards[-WINDOW:]), "bold"), "  ", (spark, "cyan"), (first, "bright_black")
        ),
        Text.assemble(
            _name("rollout"),
            (f"{view.tokens_per_s:,.0f}", "bold"),
            " tokens/s    version ",
            (f"{view.version}", "bold"),
            "    lag ",
            (f"{view.lag}", "bold"),
            "    queue ",
            (f"{view.queue}", "bold"),
            " groups",
        ),
        Text.assemble(_name("in flight"), (f"{sum(flying.values()):,}", "bold"), f"  {stages}"),
        *([_ranks(view, width)] if view.roles else []),
    ]


def _ranks(view: RunView, width: int) -> Text:
    line = _name("ranks")
    for i, part in enumerate(roles_line(view.roles)):
        line.append(" · " if i else "").append(part, "bold yellow" if ">" in part else "")
    moves = f"epoch {view.epoch} · {view.moves} moves "
    line.truncate(max(width - len(moves) - 2, _INDENT), overflow="ellipsis", pad=True)
    return line.append(f"  {moves}", "bright_black")


def _engines(rows: Sequence[EngineRow], limit: int) -> list[Text]:
    """A header and at most `limit` lines; the last says how many engines are not shown."""
    shown = rows if len(rows) <= limit else rows[: limit - 1]
    lines = [Text(f"  {'engine':<8}{'bucket':<14}{'version':>8}{'running':>9}{'waiting':>9}   kv room", "bright_black")]
    for row in shown:
        version = "-" if row.version < 0 else str(row.version)
        text = f"  {row.id:<8}{row.bucket[:13]:<14}{version:>8}{row.running:>9,}{row.waiting:>9,}   "
        lines.append(Text(text).append_text(bar(row.kv, 10)).append(f" {row.kv:4.0%}"))
    if len(shown) < len(rows):
        lines.append(Text(f"  and {len(rows) - len(shown)} more", "bright_black"))
    return lines


def _report(t: float, level: Level, text: str) -> Text:
    mark = "" if level == "info" else f"{level}: "
    return Text.assemble((f"  {t:8.1f}s  ", "bright_black"), (mark + " ".join(text.split()), _STYLES[level]))


def _name(text: str) -> Text:
    return Text(f"  {text:<{_INDENT - 2}}", "bright_black")


class RichDisplay(Display):
    """Frames in place on a terminal. `now` is a monotonic clock in seconds."""

    def __init__(
        self, stream: TextIO, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self._console = console if console is not None else Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._now = now
        self._next = -math.inf

    def _start(self) -> None:
        self._live.start()

    def _update(self, view: RunView) -> None:
        if not self._live.is_started or self._now() < self._next or not self._ready():
            return
        self._next = self._now() + REFRESH_S
        width, height = self._console.size
        # One line less than the screen: the cursor rests there, and a full screen would scroll with each frame.
        self._live.update(Group(*frame(view, self.reports, width, max(height - 1, 1))), refresh=True)

    def _report(self, level: Level, text: str) -> None:
        if level != "info" and self._ready():
            self._console.print(_report(self._now_s, level, text))

    def _finish(self, summary: Summary) -> None:
        self._live.stop()
        table = Table(show_header=False, box=None, padding=(0, 2))
        table.add_column(style="bright_black", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in summary_rows(summary):
            style = ("green" if summary.ok else "bold red") if name == "result" else ""
            table.add_row(name, Text(value, style))
        if self._rewards:
            table.add_row("reward, each step", Text(sparkline(self._rewards, self._console.width - 26), "cyan"))
        self._console.print(table)

    def _stop(self) -> None:
        # Where nobody takes our bytes, give standard output back without writing any.
        self._console.quiet = bool(self.broken) or not self._ready(FINISH_WAIT_S)
        self._live.stop()
