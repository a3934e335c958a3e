"""Every error that Libra raises on purpose.

    LibraError
    ├── ConfigError        the user's file or command line is wrong: all problems at once
    ├── PreflightError     the configuration cannot run here (ranks, ports, disk, sizes)
    ├── RunGone            there is no such run, or it does not run
    ├── JournalError       a journal cannot be read or does not replay
    ├── WireError          a peer broke the framing or the vocabulary of a link
    ├── RoleError          a role process cannot do what it was told
    │   ├── NonFiniteError     NaN or infinity where a finite number is needed
    │   ├── RefusedError       a gradient replica cannot take this order now; it goes on
    │   └── PeerError          another rank of the same group is gone or hangs
    ├── WeightsError       a pull of weights failed
    │   └── Superseded         the version asked for was overwritten while it was read
    ├── CheckpointError    a checkpoint cannot be written, or is not whole, or of another format
    ├── EnvError           an environment's infrastructure failed (never a wrong answer)
    └── CoreError          an event that contradicts the core's state: a fault of ours

A message says what happened, what was got, what was expected and how to mend it.
"""


class LibraError(Exception):
    """Base of all errors raised on purpose; the command line prints it without a traceback."""


class ConfigError(LibraError):
    """The configuration is wrong. `problems` holds one line for each fault, all of a file's at once."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        lines = "\n".join(f"  - {p}" for p in problems)
        super().__init__(f"{source}: {len(problems)} problem{'s' if len(problems) != 1 else ''}\n{lines}")


class PreflightError(LibraError):
    """The configuration is well formed but cannot run on this machine or with these ranks."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("preflight failed\n" + "\n".join(f"  - {p}" for p in problems))


class RunGone(LibraError):
    """There is no such run, or it does not run (any more)."""


class JournalError(LibraError):
    """A journal cannot be read, or replaying it gives other commands."""


class WireError(LibraError):
    """A frame that is too long, torn, or not of the vocabulary."""


class RoleError(LibraError):
    """A role process cannot do what it was told."""


class NonFiniteError(RoleError):
    """NaN or infinity in a loss, gradient or weight; names the step and the batch."""


class RefusedError(RoleError):
    """A gradient replica cannot take the order: it holds another version, or another step is open. Nothing has changed."""


class PeerError(RoleError):
    """A collective broke: another rank of the group has ended, or did not answer in time."""


class WeightsError(LibraError):
    """A pull of weights failed: time-out, digest mismatch, or a shard that does not fit."""


class Superseded(WeightsError):
    """The version asked for was overwritten by a newer one while it was being read."""


class CheckpointError(LibraError):
    """A checkpoint cannot be written or read; says which file, and what is wrong with it."""


class EnvError(LibraError):
    """An environment's infrastructure failed; its trajectory becomes `failed`, never reward 0."""


class CoreError(LibraError):
    """An event that contradicts the core's state."""
