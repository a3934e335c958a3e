"""What the person looks at: the screen, a cursor and a filter for each, the pause. Changed by `app`, read by the views.

A cursor is the key of a row (a rank, a trajectory, ...), so it stays with the thing when rows come, go or change places; where
the thing is gone it goes to the row that took its place.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

ScreenName = Literal["overview", "ranks", "stragglers", "allocation", "trajectory", "events"]
SCREENS: tuple[ScreenName, ...] = ("overview", "ranks", "stragglers", "allocation", "trajectory", "events")


class Cursor:
    """A row among rows, and the part of them that is in view."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.index = 0
        self.top = 0
        self.follow = True
        """On a list that grows at its end: stay there."""

    def settle(self, keys: Sequence[Hashable], height: int) -> None:
        """Find the row again among `keys`, and move the view so that it is in it."""
        if not keys:
            self.index = self.top = 0
            return
        if self.key is not None and not (self.index < len(keys) and keys[self.index] == self.key):
            self.index = keys.index(self.key) if self.key in keys else self.index
        self.index = min(self.index, len(keys) - 1)
        self.key = keys[self.index]
        self.top = min(self.top, self.index, max(0, len(keys) - height))
        self.top = max(self.top, self.index - height + 1, 0)

    def move(self, by: int, keys: Sequence[Hashable]) -> None:
        if keys:
            self.index = min(max(0, self.index + by), len(keys) - 1)
            self.key = keys[self.index]


class Ui:
    def __init__(self) -> None:
        self.screen: ScreenName = "overview"
        self.before: list[ScreenName] = []
        """Where `esc` goes back to."""
        self.cursors = {name: Cursor() for name in SCREENS}
        self.filters: dict[ScreenName, str] = dict.fromkeys(SCREENS, "")
        self.paused = False
        self.trajectory = -1
        """The one on the trajectory screen; -1: none."""
        self.said = ""
        """The last word on the bottom line, until a key is pressed."""
        self.said_style = ""

    @property
    def cursor(self) -> Cursor:
        return self.cursors[self.screen]

    @property
    def filter(self) -> str:
        return self.filters[self.screen]

    def go(self, screen: ScreenName) -> None:
        if screen != self.screen:
            self.before = [*self.before[-8:], self.screen]
            self.screen = screen

    def back(self) -> None:
        if self.before:
            self.screen = self.before.pop()

    def say(self, text: str, style: str = "") -> None:
        self.said, self.said_style = text, style
