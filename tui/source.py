"""Where states come from: `Source`, and `Live`, a run's view socket followed by a thread that connects again when it is lost.

The thread ends with `stop`, or with the run. It is a daemon: a read that still waits for its deadline holds nobody up.
"""

import contextlib
import threading
from pathlib import Path
from typing import Protocol

from libra.config.rundir import is_alive, read_pid
from libra.control.client import View
from libra.control.messages import STANDING_TOPICS
from libra.errors import LibraError, RunGone
from tui.feed import Feed

SILENCE_S = 5.0
"""Without a word for so long the link counts as lost."""
RETRY_S, MOST_RETRY_S = 0.5, 5.0


class Source(Protocol):
    """Fills a feed from a thread of its own."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def show(self, trajectory: int) -> None:
        """This trajectory turn by turn from now on; -1: none."""
        ...


class Live:
    def __init__(self, run_dir: Path, feed: Feed, states_per_s: float, silence_s: float = SILENCE_S) -> None:
        self._run_dir = run_dir
        self._feed = feed
        self._states_per_s = states_per_s
        self._silence_s = silence_s
        self._trajectory = -1
        self._link: View | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="libra-top-live", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def show(self, trajectory: int) -> None:
        self._trajectory = trajectory
        link = self._link
        if link is not None:
            with contextlib.suppress(LibraError, OSError):  # its reader has noticed too, and will ask again
                self._watch(link)

    def _watch(self, link: View) -> None:
        link.watch(self._states_per_s, STANDING_TOPICS, self._trajectory)

    def _run(self) -> None:
        wait_s = RETRY_S
        while not self._over.is_set():
            try:
                with View(self._run_dir, self._silence_s) as link:
                    self._link = link
                    self._watch(link)
                    while not self._over.is_set():
                        word = link.next()
                        if wait_s:
                            self._feed.say("live")
                            wait_s = 0.0
                        self._feed.put(word)
            except RunGone as e:
                if not self._lives():
                    self._feed.say("over", str(e))
                    return
                self._feed.say("lost", str(e))
            except (LibraError, OSError) as e:
                self._feed.say("lost", str(e))
            self._link = None
            wait_s = min(MOST_RETRY_S, max(RETRY_S, 2 * wait_s))
            self._over.wait(wait_s)

    def _lives(self) -> bool:
        pid = read_pid(self._run_dir)
        return pid is not None and is_alive(pid)
