"""What the keys of orders do: change the draft, ask the person, give the order, show the answer. Between `app` and `desk`.

Every order passes a dialog whose focus is on Cancel, and carries the epoch that the person saw when it opened.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from libra.cli.text import seconds_of
from libra.control.snapshot import MoveRow, Snapshot
from libra.core.orders import CancelMove, CancelTrajectory, Hold, Order, Pause, Raise, Resume, Undo
from tui.desk import Answered, Desk, Verdict
from tui.dialogs import Ask, Question
from tui.draft import Draft, Unit, units
from tui.views.allocation import judged
from tui.views.text import Line, age, wrapped

if TYPE_CHECKING:
    from tui.app import Dashboard

WIDTH = 70


class Ordering:
    def __init__(self, app: "Dashboard", desk: Desk) -> None:
        self._app = app
        self._desk = desk
        self.draft = Draft()
        self.verdict = Verdict()
        self._asked = (-1, -1)
        """Revision and epoch that the desk was last asked about."""
        self._open: tuple[Question, list[Line]] | None = None
        """The dialog about a draft while it stands, and the changes that it asks about, which are what is then ordered."""

    # --- what comes in

    def heard(self, word: Verdict | Answered) -> None:
        """From the desk, on the loop."""
        if isinstance(word, Verdict):
            if word.revision == self.draft.revision:
                self.verdict = word
        elif word.answer is None:
            self._app.ui.say(f"no answer, and nobody knows whether it was done: {word.problem}", "bad")
        elif word.answer.accepted:
            self._app.ui.say(f"accepted: {word.answer.reason or 'done'}, allocation {word.answer.epoch}", "ok")
        else:
            self._app.ui.say(f"refused: {word.answer.reason}", "bad")
        if self._open is not None:
            dialog, changes = self._open
            dialog.tell(self._asks(changes), possible=not self._forbidden())
        self._app.draw()

    def took(self, s: Snapshot) -> None:
        """A new state: marks that no longer say anything go, and a draft is judged again where the allocation has changed."""
        if self.draft:
            self.draft.prune(units(s))
            self._ask(s)

    # --- keys

    def do(self, name: str) -> None:
        s = self._app.model.snapshot
        if s is None:
            return
        match name:
            case "more":
                self._changed(self.draft.more_rollout(s), s)
            case "less":
                self._changed(self.draft.less_rollout(s), s)
            case "move" | "reshape" | "drain":
                self._unit(name, s)
            case "auto":
                self._auto(s)
            case "hold":
                self._hold(s)
            case "undo":
                self._confirm(Undo(), [(("take the last order back", "bold"),)], {"go": "Undo"}, s)
            case "raise":
                self._raise(s)
            case "cancel":
                self._cancel(s)
            case "order":
                self._order(s)
            case _:
                raise AssertionError(f"no such order key: {name}")

    def drop(self) -> bool:
        """Forget the draft; whether there was one."""
        had = bool(self.draft)
        self.draft.clear()
        self.verdict = Verdict()
        return had

    def _unit(self, name: str, s: Snapshot) -> None:
        key = self._app.ui.cursor.key
        if isinstance(key, tuple) and key[:1] == ("move",):
            move = next((m for m in s.allocation.moves if m.id == key[1]), None)
            if name == "drain" and move is not None:
                self._call_off(move, s)
            else:
                self._app.ui.say("this is a move under way: x calls it off", "warn")
            return
        unit = next((u for u in units(s) if u.ranks == key), None)
        if unit is None:
            self._app.ui.say("this unit is gone", "warn")
            return
        self._changed(self._edit(name, unit, s), s)

    def _edit(self, name: str, unit: Unit, s: Snapshot) -> str:
        if name == "move":
            return self.draft.move(unit, s)
        return self.draft.reshape(unit, s) if name == "reshape" else self.draft.drain(unit)

    def _changed(self, problem: str, s: Snapshot) -> None:
        if problem:
            self._app.ui.say(problem, "warn")
        self._ask(s)

    def _ask(self, s: Snapshot) -> None:
        order, wanted = self.draft.order(), (self.draft.revision, s.allocation.epoch)
        if order is None:
            self.verdict = Verdict()
        elif wanted != self._asked:
            self._asked = wanted
            self._desk.ask(self.draft.revision, order)

    def _order(self, s: Snapshot) -> None:
        order = self.draft.order()
        if order is None:
            self._app.ui.say("there is no draft: + - m b x make one", "warn")
            return
        if why := self._forbidden():
            self._app.ui.say(f"not possible: {why}; change the draft, or esc drops it", "bad")
            return
        changes: list[Line] = [
            ((line, ""),)
            for text in self.draft.difference(s, self._app.glyphs.arrow)
            for line in wrapped(text, WIDTH, 2)
        ]
        dialog = self._confirm(order, self._asks(changes), {"go": "Order"}, s, then=self.drop)
        self._open = dialog, changes

    @property
    def _stale(self) -> bool:
        """The verdict is of an older draft."""
        return self.verdict.revision != self.draft.revision

    def _forbidden(self) -> str:
        """Why the draft cannot be ordered, if the core has said so."""
        check = self.verdict.check
        return "" if check is None or check.valid or self._stale else check.reason

    def _asks(self, changes: list[Line]) -> list[Line]:
        """The changes, and what the core and the simulator say of them by now."""
        told = [((text, style),) for text, style in judged(self.verdict, self._stale, WIDTH)]
        return [(("order this?", "bold"),), (), *changes, (), *told]

    def _auto(self, s: Snapshot) -> None:
        a = s.allocation
        held = a.hold_until is not None and a.hold_until > s.t
        if a.paused or held:
            self._confirm(Resume(), [(("let the rule move ranks again", "bold"),)], {"go": "Resume"}, s)
        else:
            self._confirm(Pause(), [(("stop automatic moves until they are resumed", "bold"),)], {"go": "Pause"}, s)

    def _hold(self, s: Snapshot) -> None:
        def typed(word: str | None) -> None:
            seconds = seconds_of(word or "")
            if not word:
                return
            if not seconds:
                self._app.ui.say(f"got {word!r}, expected a time such as 90, 60s, 5m or 2h", "warn")
                self._app.draw()
                return
            self._confirm(Hold(seconds), [((f"no automatic move for {age(seconds)}", "bold"),)], {"go": "Hold"}, s)

        self._app.push_screen(Ask([(("hold automatic moves for", "bold"),)], "10m", self._app.styles_by_name), typed)

    def _call_off(self, move: MoveRow, s: Snapshot) -> None:
        self._confirm(
            CancelMove(move.id), [((f"call off move {move.id}: {move.what}", "bold"),)], {"go": "Call off"}, s
        )

    def _selected(self, s: Snapshot) -> int:
        key = self._app.ui.cursor.key if self._app.ui.screen == "stragglers" else self._app.ui.trajectory
        if not isinstance(key, int) or key < 0:
            self._app.ui.say("no trajectory is chosen", "warn")
            return -1
        return key

    def _raise(self, s: Snapshot) -> None:
        id = self._selected(s)
        if id < 0:
            return
        row = next((t for t in s.tail if t.id == id), None)
        lines: list[Line] = [((f"place trajectory {id} before all others?", "bold"),)]
        if row is not None and row.raised:
            lines = [((f"trajectory {id} is raised: place it like the others again?", "bold"),)]
            self._confirm(Raise(id, raised=False), lines, {"go": "Like the others"}, s)
            return
        group = {"group": f"Group {row.group}"} if row is not None and row.group >= 0 else {}

        def chosen(answer: str) -> Order:
            return Raise(id, whole_group=answer == "group")

        self._confirm(chosen, lines, {"go": "Raise it", **group}, s)

    def _cancel(self, s: Snapshot) -> None:
        id = self._selected(s)
        if id < 0:
            return
        lines: list[Line] = [
            ((f"end trajectory {id} as failed?", "bold"),),
            (("what it has sampled is lost; it is tried again, or its group dropped,", ""),),
            (("as after any failure", ""),),
        ]
        self._confirm(CancelTrajectory(id), lines, {"go": "End it"}, s)

    def _confirm(
        self,
        order: Order | Callable[[str], Order],
        lines: list[Line],
        answers: dict[str, str],
        s: Snapshot,
        then: Callable[[], object] = lambda: None,
    ) -> Question:
        epoch = s.allocation.epoch
        dialog = Question(lines, answers, self._app.styles_by_name)

        def answered(answer: str | None) -> None:
            self._open = None
            if answer:
                chosen = order(answer) if callable(order) else order
                then()
                taken = self._desk.give(chosen, epoch)
                self._app.ui.say(
                    "given, waiting for the answer" if taken else "too many orders wait for answers", "dim"
                )
            else:
                self._app.ui.say("nothing was ordered", "dim")
            self._app.draw()

        self._app.push_screen(dialog, answered)
        return dialog
