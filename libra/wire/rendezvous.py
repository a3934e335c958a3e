"""How the ranks of one launch find the controller.

Rank 0 listens on a Unix socket in a private directory (0700), then writes `controller.json` (0600, by rename) beside the
error files that torchrun makes for its workers. That directory is unique for each launch and each restart and exists before
the workers do, so nobody can read the word of an earlier attempt. The others poll for it.

The file holds the address, the run's token and its incarnation: who can read it may join the run, so it is the user's alone.
"""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from libra.errors import LibraError

POLL_S = 0.05
LOCK = "lock"
MAX_SOCKET_PATH = 100
"""Unix socket paths end at 107 bytes; some room is left for systems with less."""


class Meeting(msgspec.Struct, frozen=True):
    """What a rank must know to reach the controller."""

    address: str
    """Path of the controller's Unix socket."""
    token: str
    incarnation: str


class PrivateDirectory:
    """A directory of ours alone for sockets, removed at the end; short enough for a Unix socket's path.

    With a `group` (its number) its members may pass through, to those sockets that are open to them.

    A killed controller cannot remove its own: the next one does. A lock that ends with its process tells the two apart, also
    where several containers share a temporary directory and process numbers mean nothing.
    """

    def __init__(self, group: int | None = None) -> None:
        own = () if group is not None else (os.environ.get("XDG_RUNTIME_DIR"),)  # no group gets through that one
        for base in (*own, tempfile.gettempdir(), "/tmp"):
            if base and len(os.fsencode(base)) < MAX_SOCKET_PATH - 32 and os.access(base, os.W_OK):
                _sweep(Path(base))
                self.path = Path(tempfile.mkdtemp(prefix="libra-", dir=base))
                self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if group is not None:
                    os.chown(self.path, -1, group)
                    self.path.chmod(0o710)
                return
        raise LibraError("no writable directory with a path short enough for a Unix socket; set TMPDIR to one")

    def remove(self) -> None:
        os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove what controllers of this user that are gone have left in `base`."""
    for path in base.glob("libra-*"):
        with contextlib.suppress(OSError):  # locked: alive; not ours; or somebody was faster
            if path.stat().st_uid == os.getuid():
                with (path / LOCK).open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)


def meeting_file() -> Path:
    """Where this launch's `controller.json` lies. Raises LibraError outside torchrun, and on several hosts."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not error_file:
        raise LibraError(
            "this process was not started by torchrun; use `libra run CONFIG` or `torchrun -m libra.launch CONFIG`"
        )
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1:
        raise LibraError(
            f"the launch spans {os.environ['GROUP_WORLD_SIZE']} hosts; this version runs on one: start torchrun with --nnodes 1"
        )
    return Path(error_file).parent.parent / "controller.json"


def announce(meeting: Meeting, path: Path) -> None:
    """Publish the meeting; only after the controller listens."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".controller-")  # mkstemp makes it 0600
    try:
        os.write(fd, msgspec.json.encode(meeting))
        os.close(fd)
        Path(temporary).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def read(path: Path) -> Meeting | None:
    """The controller's word; None where there is none (yet, or any more). LibraError where it is something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Meeting)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, json.JSONDecodeError) as e:
        raise LibraError(f"{path} is not a controller's word: {e}") from None


def find(path: Path, deadline_s: float) -> Meeting:
    """Wait for the controller's word. Raises LibraError after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while (meeting := read(path)) is None:
        if time.monotonic() > end:
            raise LibraError(
                f"rank 0 did not announce itself in {path} within {deadline_s:g} s; see its output for the reason"
            )
        time.sleep(POLL_S)
    return meeting
