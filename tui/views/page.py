"""A screen's content before it is cut to the terminal: fixed lines, a table whose rows are made when in view, fixed lines.

`keys` names every row (for the cursor and for `enter`), `row(i)` draws one: a thousand ranks cost what is seen of them.
"""

from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct

from tui.model import Model
from tui.palette import Glyphs
from tui.ui import Ui
from tui.views.text import Line


class Look(Struct, frozen=True):
    """What a view draws for: `width` and `height` of its own part of the screen, and `now`, monotonic seconds."""

    model: Model
    ui: Ui
    glyphs: Glyphs
    width: int
    height: int
    now: float = 0.0


def _no_row(_: int) -> Line:
    return ()


class Page(Struct, frozen=True):
    head: Sequence[Line] = ()
    keys: Sequence[Hashable] = ()
    row: Callable[[int], Line] = _no_row
    foot: Sequence[Line] = ()
    empty: str = ""
    """Said where the table has no rows."""
