"""The lease of an engine or a gradient replica: without a word from the controller it ends by itself.

    supervisor: beat n sent at s ──> controller: HeartbeatSeen(n) ──> supervisor: until = s + lease_s ──pipe──> role

`until` counts from the moment *before* the beat was sent, so it lies before the time at which the controller, which counts
silence from the arrival of beats, calls the rank lost (`lease_s` < `lost_s`). Times are CLOCK_MONOTONIC, one for all processes
of a host. The supervisor keeps a `LeaseBook`; the role a `LeaseGuard`, which needs the supervisor for nothing once it runs: a
supervisor that is stopped extends nothing, and that is all it takes.
"""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable

UNANSWERED_BEATS = 1024
"""Beats whose send times are remembered; older ones can extend nothing any more."""
LAST_WORDS_S = 0.5
"""From the lapse until the kernel ends the role. It is given to a role that can say why it ends."""
CATCH_UP_S = 0.1
"""An extension may have arrived that the pipe's thread had no time to read."""


class LeaseBook:
    """The supervisor's side. `until_s` is how long the roles below it may go on."""

    def __init__(self, lease_s: float, hello_sent_s: float) -> None:
        self._lease_s = lease_s
        self._sent: deque[tuple[int, float]] = deque(maxlen=UNANSWERED_BEATS)
        self.until_s = hello_sent_s + lease_s

    @property
    def lapsed(self) -> bool:
        return time.monotonic() > self.until_s

    def sending(self, n: int) -> None:
        """Beat `n` is about to be sent."""
        self._sent.append((n, time.monotonic()))

    def seen(self, n: int) -> bool:
        """The controller has beat `n`. True when that extends the lease."""
        extended = False
        while self._sent and self._sent[0][0] <= n:
            number, at = self._sent.popleft()
            if number == n:
                self.until_s, extended = at + self._lease_s, True
        return extended


class LeaseGuard:
    """The role's side: calls `lapsed` from a thread of its own once the lease has run out.

    A role that cannot even run that thread (stopped, or hung in a call that holds the interpreter) is ended by the kernel's
    timer, whose signal nobody handles: one that was stopped meanwhile does not execute another instruction of its own.
    """

    def __init__(self, lapsed: Callable[[], None]) -> None:
        self._lapsed = lapsed
        self._until_s = 0.0
        self._armed = False
        self._changed = threading.Condition()

    def extend(self, until_s: float) -> None:
        """Go on until CLOCK_MONOTONIC reads `until_s`. Any thread."""
        with self._changed:
            self._until_s = until_s
            self._changed.notify()
            if self._armed:
                self._alarm(CATCH_UP_S)

    def arm(self) -> None:
        """From now on it counts. To be called before the role can do anything that others see; no lease so far: none needed."""
        with self._changed:
            if not self._until_s:
                return
            self._armed = True
            self._alarm(LAST_WORDS_S)
        threading.Thread(target=self._watch, daemon=True).start()

    def _alarm(self, least_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(self._until_s - time.monotonic() + LAST_WORDS_S, least_s))

    def _watch(self) -> None:
        while True:
            with self._changed:
                while (left := self._until_s - time.monotonic()) > 0:
                    self._changed.wait(left)
            time.sleep(CATCH_UP_S)
            if time.monotonic() > self._until_s:
                self._lapsed()
                return
