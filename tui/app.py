"""The Textual application: keys to the state of the view, feed to the model, the frame to the canvas. No logic of its own.

States are drawn at most `terminal.states_per_s` times a second; keys at once. What waits is a thread's (source, desk).
"""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from libra.cli.text import seconds_of
from tui import dialogs
from tui.desk import Answered, Desk, Office, Verdict
from tui.dialogs import Ask, Help
from tui.draft import Draft
from tui.feed import Feed
from tui.model import Model
from tui.ordering import Ordering
from tui.palette import palette
from tui.replaying import Replay, Want
from tui.saving import save
from tui.source import Source
from tui.terminal import Terminal
from tui.ui import SCREENS, ScreenName, Ui
from tui.views.frame import Picture, frame
from tui.views.help import KEYS, help_lines, works
from tui.views.text import Line, wrapped
from tui.widgets.canvas import Canvas

_HELP = "esc closes this, j and k roll it"
_NO_DRAFT, _NO_VERDICT = Draft(), Verdict()


class Dashboard(App[None]):
    CSS = dialogs.CSS + "Screen { background: ansi_default; color: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        model: Model,
        feed: Feed,
        source: Source,
        terminal: Terminal,
        office: Office | None = None,
        directory: Path = Path(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`office`: where drafts are checked and orders given; None for a look only. `directory`: where pictures are saved."""
        super().__init__(ansi_color=True)
        self.model, self.feed, self.source, self.terminal = model, feed, source, terminal
        self.ui = Ui()
        self.glyphs = terminal.glyphs
        self.styles_by_name = palette(terminal.colours)
        self.picture = Picture([], (), "")
        self._canvas = Canvas(self.styles_by_name, id="picture")
        self._directory = directory
        self._clock = clock
        self._drawn = 0.0
        self._due = False
        self._desk = Desk(office, self._delivered) if office is not None else None
        self.ordering = Ordering(self, self._desk) if self._desk is not None else None
        self._loop: asyncio.AbstractEventLoop | None = None
        for key in KEYS:
            self.bind(key.name, key.action, show=False)
        self.bind("ctrl+c", "leave", show=False)

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._here = contextvars.copy_context()  # textual's own, which a call from another thread would lack
        self.feed.wake = self._waked
        self.source.start()
        if self._desk is not None:
            self._desk.start()
        self._arrived()
        self.set_interval(1.0, self._second)
        self.draw()

    def on_unmount(self) -> None:
        self.source.stop()
        if self._desk is not None:
            self._desk.stop()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    # --- what comes in

    def _waked(self) -> None:
        """In the source's thread."""
        self._on_loop(self._arrived)

    def _delivered(self, word: Verdict | Answered) -> None:
        """In the desk's thread."""
        if self.ordering is not None:
            self._on_loop(self.ordering.heard, word)

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: the person has left
                self._loop.call_soon_threadsafe(call, *args, context=self._here)

    def _arrived(self) -> None:
        if not self._due and not self.ui.paused:
            self._due = True
            wait_s = self._drawn + 1 / self.terminal.states_per_s - self._clock()
            self.set_timer(max(0.001, wait_s), self._tick)

    def _tick(self) -> None:
        self._due = False
        if not self.ui.paused:
            self._take()
            if self.model.snapshot is not None:  # the first one is shown as soon as it comes
                self._drawn = self._clock()
            self.draw()

    def _take(self) -> None:
        before = self.model.snapshot
        self.feed.give(self.model)
        s = self.model.snapshot
        if self.ordering is not None and s is not None and s is not before:
            self.ordering.took(s)

    def _second(self) -> None:
        """The ages of what does not come."""
        if self.model.link.stage == "lost":
            self.draw()

    # --- what goes out

    def draw(self) -> None:
        width, height = self.size
        ordering = self.ordering
        draft, verdict = (ordering.draft, ordering.verdict) if ordering else (_NO_DRAFT, _NO_VERDICT)
        self.picture = frame(self.model, self.ui, draft, verdict, self.glyphs, width, height, self._clock())
        self._canvas.show(self.picture.lines)

    def _show_trajectory(self) -> None:
        self.source.show(self.ui.trajectory if self.ui.screen == "trajectory" else -1)

    # --- keys

    async def run_action(self, action, default_namespace=None, namespaces=None) -> bool:  # type: ignore[no-untyped-def]
        """The last answer stands until the next key."""
        self.ui.say("")
        done = await super().run_action(action, default_namespace, namespaces)
        if self.is_running:
            self.draw()
        return done

    def action_leave(self) -> None:
        self.exit()

    def action_help(self) -> None:
        lines = help_lines(control=self.model.control, replay=isinstance(self.source, Replay))
        self.push_screen(Help([((_HELP, "dim"),), (), *lines], self.styles_by_name))

    def action_screen(self, name: ScreenName) -> None:
        self.ui.go(name)
        self._show_trajectory()

    def action_focus_next(self) -> None:
        """What textual's own screens make of tab: in a dialog the next button, else the next screen."""
        self._tabbed(1)

    def action_focus_previous(self) -> None:
        self._tabbed(-1)

    def _tabbed(self, by: int) -> None:
        if len(self.screen_stack) > 1:
            (self.screen.focus_next if by > 0 else self.screen.focus_previous)()
        else:
            self.action_screen(SCREENS[(SCREENS.index(self.ui.screen) + by) % len(SCREENS)])

    def action_down(self) -> None:
        self._move(1)

    def action_up(self) -> None:
        self._move(-1)

    def action_page(self, by: int) -> None:
        self._move(by * max(1, self.size.height - 8))

    def action_first(self) -> None:
        self._move(-len(self.picture.keys))

    def action_last(self) -> None:
        self._move(len(self.picture.keys))

    def _move(self, by: int) -> None:
        cursor = self.ui.cursor
        cursor.move(by, self.picture.keys)
        cursor.follow = cursor.index == len(self.picture.keys) - 1

    def action_enter(self) -> None:
        key = self.ui.cursor.key
        match self.ui.screen:
            case "ranks":
                self._rank_detail(key)
            case "stragglers" if isinstance(key, int):
                self.ui.trajectory = key
                self.action_screen("trajectory")
            case "allocation" if self.ordering is not None:
                self.ordering.do("order")
            case "allocation":
                self.ui.say(self._why_no_orders(), "warn")
            case "events":
                news = next((n for n in self.model.news if n.n == key), None)
                if news is not None:
                    told = [*wrapped(news.what, 72, 12), "", *(f"{k}: {v}" for k, v in news.data.items())]
                    self._tell([((text, ""),) for line in told for text in wrapped(line, 72, 4)])
            case "trajectory":
                self._tell([((text, ""),) for text in wrapped(self.picture.selected, 72, 8)])
            case _:
                self.ui.say("nothing more to show here", "dim")

    def _rank_detail(self, key: object) -> None:
        s = self.model.snapshot
        row = next((r for r in s.ranks if r.rank == key), None) if s is not None else None
        if row is not None and row.role == "rollout":
            self.ui.filters["stragglers"] = f"=engine{row.unit}"
            self.action_screen("stragglers")
        elif row is not None:
            self._tell([((f"{name}: {getattr(row, name)}", ""),) for name in row.__struct_fields__])

    def _tell(self, lines: list[Line]) -> None:
        self.push_screen(Help(lines, self.styles_by_name))

    def action_back(self) -> None:
        ui = self.ui
        if ui.screen == "allocation" and self.ordering is not None and self.ordering.drop():
            ui.say("the draft is dropped", "dim")
        elif ui.filter:
            ui.filters[ui.screen] = ""
        else:
            ui.back()
            self._show_trajectory()

    def action_pause(self) -> None:
        if isinstance(self.source, Replay):
            self.source.want(Want("play"))
            return
        self.ui.paused = not self.ui.paused
        if not self.ui.paused:
            self._take()

    def action_filter(self) -> None:
        if self.ui.screen not in ("ranks", "stragglers", "events"):
            self.ui.say("this screen has no filter", "warn")
            return

        def typed(word: str | None) -> None:
            self.ui.filters[self.ui.screen] = word or ""
            self.draw()

        self.push_screen(Ask([(("show only rows with", "bold"),)], self.ui.filter, self.styles_by_name), typed)

    def action_copy(self) -> None:
        text = self.picture.selected or "\n".join(
            "".join(part for part, _ in line).rstrip() for line in self.picture.lines
        )
        self.copy_to_clipboard(text)
        self.ui.say("copied (OSC 52: the terminal must allow it)", "dim")

    async def action_save(self) -> None:
        try:
            paths = await asyncio.to_thread(
                save,
                self._directory,
                self.model.run,
                self.ui.screen,
                self.picture.lines,
                self.styles_by_name,
                self.size.width,
            )
        except OSError as e:
            self.ui.say(f"not saved: {e}", "bad")
        else:
            self.ui.say("saved " + ", ".join(path.name for path in paths), "ok")

    def action_order(self, name: str) -> None:
        key = next(k for k in KEYS if k.action == f"order('{name}')")
        if self.ordering is None:
            self.ui.say(self._why_no_orders(), "warn")
        elif not works(key, self.ui.screen, control=True, replay=False):
            self.ui.say(
                f"{key.shown} works on screen {', '.join(str(SCREENS.index(s) + 1) for s in key.screens)}", "warn"
            )
        else:
            self.ordering.do(name)

    def _why_no_orders(self) -> str:
        if isinstance(self.source, Replay):
            return "a replay cannot be changed"
        return f"looking only: `libra top {self.model.run} --control` may give orders"

    def action_replay(self, name: Literal["step", "on", "back", "faster", "slower", "goto"]) -> None:
        source = self.source
        if not isinstance(source, Replay):
            self.ui.say("this is live; libra top --replay RUN plays a journal", "warn")
            return
        if name == "goto":

            def typed(word: str | None) -> None:
                seconds = seconds_of(word or "")
                if seconds is not None:
                    source.want(Want("seek", seconds))

            self.push_screen(Ask([(("go to (run's clock)", "bold"),)], "", self.styles_by_name), typed)
            return
        source.want(_WANTS[name])

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()


_WANTS = {
    "step": Want("step"),
    "on": Want("by", 0.05),
    "back": Want("by", -0.05),
    "faster": Want("speed", 2.0),
    "slower": Want("speed", 0.5),
}
