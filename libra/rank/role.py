"""A child of a supervisor: `python -m libra.rank.role PIPE_FD PARENT_PID PRELOAD`, started by a supervisor only.

    spare (imports PRELOAD, says so, waits) ── SpawnRole on the pipe ──> its log is its output, it becomes what that says

It ends with a reason: in its log, and in a last word to the controller where the link still stands. What it printed as a spare
stands at the head of that log.
"""

import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec

from libra.config.schema import Config
from libra.rank.link import RoleLink
from libra.rank.pipe import SupervisorPipe, leave
from libra.rank.preload import preload, yielding
from libra.wire import messages as m
from libra.wire.child import die_with_parent, ignore_interrupt

COPY_BYTES = 1 << 16
"""Of a spare's own output, kept for its log."""


def main() -> NoReturn:
    fd, parent, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    die_with_parent(parent)
    ignore_interrupt()
    pipe = SupervisorPipe(socket.socket(fileno=fd))
    threading.Thread(target=_prepare, args=(pipe, what), daemon=True).start()
    order = pipe.order()
    _log_to(Path(order.log))
    link: RoleLink | None = None
    try:
        config = msgspec.json.decode(order.spec.config, type=Config)
        role = _role(order.spec, config)
        link = RoleLink(order.spec, config, pipe)
        role(link).run()
    except Exception as e:
        traceback.print_exc()
        if link is not None:
            link.send(m.Complaint(f"{type(e).__name__}: {e}", traceback.format_exc()))
        leave(1, f"{type(e).__name__}: {e}")
    leave(0, "done")


def _role(spec: m.RoleSpec, config: Config):
    """The class of the role: imported before the link, for a role that has said hello is watched for progress."""
    if spec.emulated:
        from libra.rank.emulated import role_class

        return role_class(spec.role)
    match spec.role:
        case "trainer":
            from libra.rank.trainer_role import TrainerRole as Role
        case "rollout":
            Role = _engine_class(config.bucket[spec.bucket].engine)
        case "gradient":
            from libra.rank.gradient_role import GradientRole as Role
    return Role


def _engine_class(engine: str):
    if engine == "vllm":
        from libra.rank.vllm_role import VllmRole as Role
    else:
        from libra.rank.engine_role import EngineRole as Role
    return Role


def _prepare(pipe: SupervisorPipe, what: str) -> None:
    try:
        if what != "nothing":
            with yielding():
                preload(what)
    except Exception as e:
        traceback.print_exc()
        leave(1, f"the imports of a spare failed: {type(e).__name__}: {e}")
    pipe.beat(0, "spare")


def _log_to(path: Path) -> None:
    """From now on everything that this process writes goes to `path`, behind what it wrote so far."""
    sys.stdout.flush()
    sys.stderr.flush()
    early = os.pread(1, COPY_BYTES, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.write(log, early)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)


if __name__ == "__main__":
    main()
