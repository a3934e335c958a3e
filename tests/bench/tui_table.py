"""The control of `tests.bench.tui`: the ranks in Textual's DataTable, cells updated where they changed, headers the same."""

from textual.app import App, ComposeResult
from textual.widgets import DataTable, Static

from tui.feed import Feed
from tui.model import Model
from tui.palette import palette
from tui.source import Source
from tui.terminal import Terminal
from tui.ui import Ui
from tui.views.page import Look
from tui.views.ranks import ranks
from tui.views.text import Line

COLUMNS = ("rank", "role", "unit", "bucket", "queue", "kv", "seen", "doing", "host", "busy")


class Table(App[None]):
    CSS = (
        "Screen { background: ansi_default; color: ansi_default; } DataTable { height: 1fr; background: ansi_default; }"
    )
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, model: Model, feed: Feed, source: Source, terminal: Terminal) -> None:
        super().__init__(ansi_color=True)
        self._model, self._feed, self._source, self._terminal = model, feed, source, terminal
        self._shown: dict[int, tuple[str, ...]] = {}
        self._styles = palette(terminal.colours)

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield DataTable(cursor_type="row")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for name in COLUMNS:
            table.add_column(name, key=name)
        self._source.start()
        self.set_interval(1 / self._terminal.states_per_s, self._tick)

    def _tick(self) -> None:
        self._feed.give(self._model)
        if self._model.snapshot is None:
            return
        page = ranks(Look(self._model, Ui(), self._terminal.glyphs, max(100, self.size.width), 60))
        self.query_one("#head", Static).update(f"step {self._model.snapshot.run.step}  {self._model.snapshot.t:.0f}s")
        table = self.query_one(DataTable)
        for i, key in enumerate(page.keys):
            assert isinstance(key, int)
            cells = _cells(page.row(i))
            before = self._shown.get(key)
            if before is None:
                table.add_row(*cells, key=str(key))
            elif before != cells:
                for name, old, new in zip(COLUMNS, before, cells, strict=True):
                    if old != new:
                        table.update_cell(str(key), name, new)
            self._shown[key] = cells


def _cells(line: Line) -> tuple[str, ...]:
    return tuple(text for text, _ in line)
