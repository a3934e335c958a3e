"""Stands in for libra.launch under the real torchrun: does what $STUB says, and tells in $STUB_DIR what it saw."""

import os
import signal
import sys
import threading
from pathlib import Path

rank, stub = os.environ["RANK"], os.environ["STUB"]
directory = Path(os.environ["STUB_DIR"])
end = threading.Event()


def note(number: int, _frame: object) -> None:
    with (directory / f"signals-{rank}").open("a") as f:
        f.write(f"{signal.Signals(number).name}\n")
    if stub == "first" or (stub == "second" and number == signal.SIGTERM):
        end.set()


if stub == "fail":
    if rank == "2":
        sys.exit(7)
elif stub == "ok":
    (directory / f"args-{rank}").write_text("\n".join([os.environ["LIBRA_RUN_DIR"], *sys.argv[1:]]))
    sys.exit(0)
else:
    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
fresh = directory / f".ready-{rank}"
fresh.write_text(str(os.getpid()))
fresh.rename(directory / f"ready-{rank}")
end.wait(60)
