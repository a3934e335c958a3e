"""What a spare child imports while it waits, so that a move does not wait for it.

It imports and touches nothing else: no device, no process group, no thread pool (a pool is made by the thread that first
computes, which is the role's own). It happens in a thread that yields to everybody, because a spare is made while others work;
the main thread keeps its priority, so nothing has to be given back that only a privileged user may take back.
"""

import contextlib
import os
import threading
import time
from pathlib import Path

NICE = 10
"""About a tenth of what a role gets of a contended core."""
AUTOGROUP = Path("/proc/self/autogroup")
"""Where it exists, cores are shared between sessions first; a thread's own priority counts inside its session only."""
AUTOGROUP_S = 2.0
"""The kernel takes an unprivileged change ten times a second at most, of all processes together."""


def preload(what: str) -> None:
    """Import what the roles of this kind need ("vllm", which includes "torch", or "nothing")."""
    if what == "vllm":
        import libra.rank.vllm_role

        libra.rank.vllm_role.preload()
    if what in ("vllm", "torch"):
        import libra.rank.engine_role
        import libra.rank.gradient_role
        import libra.rank.trainer_role
        from libra.config.schema import ModelConfig
        from libra.train.model import preload as preload_decoders

        preload_decoders(ModelConfig())


@contextlib.contextmanager
def yielding():
    """This thread takes what others leave; for a thread that ends afterwards, in a process that does nothing else meanwhile."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: threads have no priority of their own there
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    shared = _share_of_session(NICE)
    try:
        yield
    finally:
        if shared:
            _share_of_session(0)


def _share_of_session(nice: int) -> bool:
    end = time.monotonic() + AUTOGROUP_S
    while AUTOGROUP.exists():
        try:
            AUTOGROUP.write_text(str(nice))
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        except OSError:
            return False
    return False
