"""`libra stop`: signal the run's controller, which ends the others in good order, and wait until it is gone.

SIGINT finishes the open step first; SIGTERM (`--now`) ends at once. Only the very process that wrote the pid file is ever
signalled: its start time must match.
"""

import os
import signal
import sys
import time

from libra.cli.arguments import Stop
from libra.cli.runs import find, info, why_it_ended
from libra.config.rundir import is_alive, read_pid
from libra.errors import LibraError

POLL_S = 0.05


def stop(args: Stop) -> int:
    run_dir = find(args.run)
    pid = read_pid(run_dir)
    if pid is None:
        raise LibraError(f"{run_dir} has no readable pid file, so there is nothing to signal")
    if pid.host != os.uname().nodename:
        raise LibraError(f"{run_dir.name} was started on {pid.host}; run `libra stop` there")
    if not is_alive(pid):
        print(f"{run_dir.name} does not run ({info(run_dir).state})")
        return 0
    how = "ending it at once" if args.now else "it finishes its step first"
    print(f"stopping {run_dir.name} (pid {pid.pid}): {how}", flush=True)
    try:
        os.kill(pid.pid, signal.SIGTERM if args.now else signal.SIGINT)
    except ProcessLookupError:
        pass  # it ended between the look and the signal: that is what was wanted
    except PermissionError:
        raise LibraError(f"pid {pid.pid} belongs to another user; ask its owner to stop {run_dir.name}") from None
    deadline = time.monotonic() + args.timeout_s
    while is_alive(pid):
        if time.monotonic() > deadline:
            hint = "see its logs" if args.now else f"end it at once with: libra stop {args.run} --now"
            print(f"libra: {run_dir.name} still runs after {args.timeout_s:g} s; {hint}", file=sys.stderr)
            return 1
        time.sleep(POLL_S)
    end = info(run_dir)
    print(f"{end.name} has ended after {end.steps} steps ({why_it_ended(run_dir) or 'it left no summary'})")
    return 0
