"""`libra run`: check everything, then be torchrun for one controller and the devices, in this process.

    libra run --> resolve (a file, or the run that --resume names), preflight
              --> torchrun (here) --> rank 0 controller, ranks 1.. supervisors (their own sessions)

What rank 0 needs travels as libra.launch's own arguments and LIBRA_RUN_DIR. torchrun passes a first Ctrl-C on as SIGINT, a
second as SIGTERM, and kills after its time-out; whatever is left when it returns, we kill. No traceback of torchrun's
reaches people: its log is kept quiet, and each outcome is one line and an exit code.
"""

import contextlib
import logging
import math
import os
import signal
import sys
import time
from pathlib import Path

from libra.cli.arguments import Run
from libra.cli.resuming import config_of, to_resume
from libra.cli.runs import why_it_ended
from libra.config import Config, dump, preflight
from libra.config.rundir import LOG_DIRECTORY, RUN_DIR_ENV, Resolved, resolve
from libra.controller import resume
from libra.core.checkpoints import ANSWER_MARGIN_S
from libra.errors import PreflightError
from libra.sim.plan import plan
from libra.telemetry import tree_file

LAUNCH_MODULE = "libra.launch"
STOP_MARGIN_S = 30
"""Added to what an orderly end may take, before torchrun kills."""
KILL_WAIT_S = 5.0
"""How long killed workers may take to be gone."""
POLL_S = 0.02


def run(args: Run) -> int:
    """Start the run and wait for its end. Returns the exit code."""
    overrides = args.all_overrides()
    run_dir = to_resume(args)
    if run_dir is not None:
        resolved, resumption = resume.resolve(run_dir, overrides)
        what = ["--resume", str(resolved.run_dir)]
        said = f"resuming run {resolved.run_dir.name} from {resumption.path.name}"
    else:
        resolved = resolve(config_of(args), overrides)
        tree_file.start(resolved.config)  # can it be read?
        what = [str(Path(config_of(args)).absolute())]
        said = f"run {resolved.config.run.name}"
    preflight.check(resolved.config, source=args.config or str(run_dir))
    if resolved.config.emulated:
        plan(resolved.config)
    if args.dry_run:
        print(dump(resolved.config), end="")
        return 0
    print(f"{said} in {_nearby(resolved.run_dir)}", flush=True)
    os.environ[RUN_DIR_ENV] = str(resolved.run_dir)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the default, a thread a core in every process, is 2x to 8x slower
    return _torchrun(resolved, [*what, *overrides], args.restarts)


def shutdown_timeout_s(config: Config) -> int:
    """Seconds from Ctrl-C to SIGKILL: an open step may run into `stalled_s`, a checkpoint that is being written and that of
    the end have `checkpoint_s` each, then all roles have `stop_s`, then killing."""
    deadline = config.deadline
    saving_s = 2 * (deadline.checkpoint_s + ANSWER_MARGIN_S) if config.checkpoint.every else 0.0
    return math.ceil(deadline.stalled_s + saving_s + 2 * deadline.stop_s + STOP_MARGIN_S)


def _torchrun(resolved: Resolved, launch_args: list[str], restarts: int) -> int:
    try:
        from torch.distributed import run as torchrun
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except ImportError as e:
        raise PreflightError([f'torch cannot be imported ({e}); install it with: pip install "torch==2.13.0"']) from e

    config = resolved.config
    options = ["--standalone", f"--nproc-per-node={1 + config.devices}", f"--max-restarts={restarts}"]
    options += [f"--shutdown-timeout={shutdown_timeout_s(config)}", "--module", LAUNCH_MODULE]
    logging.disable(logging.ERROR)  # this process is nothing but torchrun from here on; outcomes are told below
    try:
        torchrun.run(torchrun.parse_args([*options, *launch_args]))
    except SignalException as e:
        name = signal.Signals(e.sigval).name
        print(f"libra: {config.run.name} ended after {name}{_because(resolved)}", file=sys.stderr)
        return 128 + e.sigval
    except ChildFailedError as e:
        rank, failure = e.get_first_failure()
        who = "the controller (rank 0)" if rank == 0 else f"rank {rank}"
        how = f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"exited with {failure.exitcode}"
        logs = resolved.run_dir / LOG_DIRECTORY
        where = f"; logs: {_nearby(logs)}" if logs.is_dir() else ""
        print(f"libra: {config.run.name} failed: {who} {how}{_because(resolved)}{where}", file=sys.stderr)
        return 2 if (rank, failure.exitcode) == (0, 2) else 1
    finally:
        _kill_children()
    return 0


def _kill_children() -> None:
    """A third Ctrl-C makes torchrun leave its workers behind; each leads a session of its own, so its group can be killed."""
    killed: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            for pid in map(int, (task / "children").read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(pid) == pid:
                        os.killpg(pid, signal.SIGKILL)
                        killed.add(pid)
    deadline = time.monotonic() + KILL_WAIT_S
    while killed and time.monotonic() < deadline:
        killed -= {pid for pid in killed if _reaped(pid)}
        time.sleep(POLL_S)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _because(resolved: Resolved) -> str:
    reason = why_it_ended(resolved.run_dir)
    return f": {reason}" if reason else ""


def _nearby(path: Path) -> Path:
    """Relative to the working directory where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
