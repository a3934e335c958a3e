"""Dialogs: help, a question that needs an answer, a word to be typed. Each ends with `esc`; a question's focus is on Cancel."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from tui.views.text import Line
from tui.widgets.canvas import Canvas

_BOX = """
    width: auto; min-width: 40; max-width: 96%; height: auto; max-height: 96%;
    border: ascii; padding: 0 1; background: ansi_default; color: ansi_default;
"""
CSS = f"""
ModalScreen {{ align: center middle; background: transparent; }}
.box {{ {_BOX} }}
.box Canvas {{ width: auto; height: auto; }}
.box VerticalScroll {{ width: auto; height: auto; max-height: 85vh; scrollbar-size: 0 0; }}
.buttons {{ width: auto; height: 1; margin-top: 1; }}
Button, Button:hover, Button.-primary, Button.-error {{
    height: 1; min-width: 12; border: none; margin-right: 2; background: ansi_default; color: ansi_default;
    text-style: none;
}}
Button:focus {{
    text-style: bold reverse; background: ansi_default; color: ansi_default; border: none; background-tint: transparent;
}}
Input {{ width: 40; height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }}
Input:focus {{ border: none; background-tint: transparent; }}
#filter {{ dock: bottom; width: 1fr; }}
"""


class _Dialog:
    def __init__(self, lines: Sequence[Line], styles: Mapping[str, Style]) -> None:
        self.canvas = Canvas(styles)
        self.canvas.lines = list(lines)


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss"),
        Binding("j,down", "roll(1)"),
        Binding("k,up", "roll(-1)"),
        Binding("pagedown,space", "roll(10)"),
        Binding("pageup", "roll(-10)"),
        Binding("g,home", "roll(-1000)"),
        Binding("G,end", "roll(1000)"),
    ]

    def __init__(self, lines: Sequence[Line], styles: Mapping[str, Style]) -> None:
        super().__init__()
        self._dialog = _Dialog(lines, styles)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"), VerticalScroll():
            yield self._dialog.canvas

    def action_roll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


class Question(ModalScreen[str]):
    """Dismissed with the chosen answer's id, "" for Cancel."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "answer('')"),
        Binding("left,h,shift+tab", "app.focus_previous"),
        Binding("right,l,tab", "app.focus_next"),
    ]

    def __init__(self, lines: Sequence[Line], answers: Mapping[str, str], styles: Mapping[str, Style]) -> None:
        super().__init__()
        self._dialog = _Dialog(lines, styles)
        self._answers = answers
        self._hint = _Dialog([(("tab chooses, enter takes it, esc cancels", "dim"),)], styles)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield self._dialog.canvas
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel")
                for id, text in self._answers.items():
                    yield Button(text, id=id)
            yield self._hint.canvas

    def on_mount(self) -> None:
        self.query_one("#cancel", Button).focus()

    def tell(self, lines: Sequence[Line], *, possible: bool) -> None:
        """Other lines: what the draft's check or price says by now. Where it is not possible, only Cancel is left."""
        if list(lines) != self._dialog.canvas.lines:
            self._dialog.canvas.lines = list(lines)
            self._dialog.canvas.refresh(layout=True)
        for button in self.query(Button):
            if button.id != "cancel":
                button.display = possible
        if not possible:
            self.query_one("#cancel", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss("" if event.button.id == "cancel" else event.button.id or "")

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)


class Ask(ModalScreen[str]):
    """A word to be typed; dismissed with it, "" for none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "none")]

    def __init__(self, lines: Sequence[Line], value: str, styles: Mapping[str, Style]) -> None:
        super().__init__()
        self._dialog = _Dialog(lines, styles)
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield self._dialog.canvas
            yield Input(self._value, id="word")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_none(self) -> None:
        self.dismiss("")
