"""A role process: `python -m libra.rank.role PIPE_FD PARENT_PID`, started by a supervisor only.

It takes its specification from the pipe, becomes what that says, and ends with a reason: in its log, and in a last word to the
controller where the link still stands.
"""

import socket
import sys
import traceback
from typing import NoReturn

from libra.rank.link import RoleLink, leave
from libra.wire import messages as m
from libra.wire.child import die_with_parent, ignore_interrupt
from libra.wire.frames import BlockingReader, Codec


def main() -> NoReturn:
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    ignore_interrupt()
    pipe = socket.socket(fileno=fd)
    spec = BlockingReader(pipe, Codec[m.RoleSpec](m.RoleSpec)).receive()
    try:
        link: RoleLink | None = None
        if spec.emulated:
            from libra.rank.emulated import role_class

            Role = role_class(spec.role)
        elif spec.role == "trainer":
            from libra.rank.trainer_role import TrainerRole as Role
        else:
            from libra.rank.engine_role import EngineRole as Role
        link = RoleLink(spec, pipe)
        Role(link).run()
    except Exception as e:
        traceback.print_exc()
        if link is not None:
            link.send(m.Complaint(f"{type(e).__name__}: {e}", traceback.format_exc()))
        leave(1, f"{type(e).__name__}: {e}")
    leave(0, "done")


if __name__ == "__main__":
    main()
