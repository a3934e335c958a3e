"""Manners of a child process: it never outlives its parent, and Ctrl-C is its parent's business.

Called first thing by roles (children of a supervisor) and by tool workers (children of the controller). Standard library
only, and importable from its file alone, because tool workers start without `site` and without this package on their path.

A child is started with `start_new_session=True`, ends at EOF of a pipe that its parent holds (that is the child's own
reading loop), and by the kernel's parent-death signal, set here; the second covers a child that is not reading.
Linux ties that signal to the *thread* that forked: start children from a thread that lives as long as the process
(the main one), never from a pool of threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


def die_with_parent(parent: int | None = None) -> bool:
    """Have the kernel kill this process (SIGKILL) once its parent is gone; exit at once if it is gone already.

    `parent` is the pid that the parent knows as its own, handed down by it. It closes the race of a parent that dies
    before this call; without it only a death during the call is noticed. Returns False where the system has no such
    signal (not Linux): there the EOF of the pipe must do.
    """
    expected = os.getppid() if parent is None else parent
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG) refused: {os.strerror(number)}")
    if os.getppid() != expected:
        os._exit(1)  # orphaned before the signal was set: nobody is left to report to
    return True


def ignore_interrupt() -> None:
    """Ctrl-C is answered by the parent, which ends its children in good order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
