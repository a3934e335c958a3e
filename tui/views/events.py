"""Screen 6: what happened, newest at the end; the cursor stays there until it is moved up."""

from libra.control.messages import News
from tui.views.page import Look, Page
from tui.views.text import Line, clean, fit, matches, right, seconds


def events(look: Look) -> Page:
    news, missed = look.model.news, look.model.missed
    shown = [n for n in news if matches(look.ui.filter, n.topic, n.level, n.what)] if look.ui.filter else list(news)

    def row(i: int) -> Line:
        return _row(shown[i])

    return Page(
        head=[
            (
                (f"{len(shown)} events" + (f" of {len(news)}" if look.ui.filter else ""), "bold"),
                (f"  {missed} news missed: this view could not keep up" if missed else "", "warn"),
            ),
            (("    time topic   what", "dim"),),
        ],
        keys=[n.n for n in shown],
        row=row,
        empty="no event matches the filter"
        if look.ui.filter
        else "nothing has happened since this dashboard was opened",
    )


def _row(n: News) -> Line:
    style = {"error": "bad", "warning": "warn"}.get(n.level, "")
    word = n.topic if n.level in ("info", "") else n.level
    return ((right(seconds(n.t), 8) + " ", "dim"), (fit(word, 8), style or "title"), (clean(n.what), style))
