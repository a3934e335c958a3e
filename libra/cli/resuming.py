"""Which run is to go on, by what was typed and by what torchrun says. Used by `libra run` and `libra.launch`."""

import os
from pathlib import Path

from libra.cli.arguments import Run
from libra.cli.runs import find
from libra.config.rundir import CONFIG_FILE, RUN_DIR_ENV
from libra.errors import ConfigError

RESTARTS_ENV = "TORCHELASTIC_RESTART_COUNT"
"""Set by torchrun: how often it has started these processes again."""


def to_resume(args: Run) -> Path | None:
    """The run to go on with; None: a new one.

    After a restart by torchrun it is the one that these processes began: named by `libra run`, or by --name.
    """
    if args.resume is not None:
        if args.config is not None:
            raise ConfigError("run", [f"got CONFIG {args.config!r} and --resume {args.resume!r}; expected one of them"])
        return find(args.resume)
    if int(os.environ.get(RESTARTS_ENV, "0")) == 0:
        return None
    if given := os.environ.get(RUN_DIR_ENV):
        return Path(given) if (Path(given) / CONFIG_FILE).is_file() else None
    if args.name is None:
        raise ConfigError("run", ["torchrun has restarted this run, which has no --name to be found by; give it one"])
    return find(args.name)


def config_of(args: Run) -> str:
    """The file that was named. Raises ConfigError where none was."""
    if args.config is None:
        raise ConfigError(
            "run", ["expected a configuration, as in: libra run configs/quickstart.toml; or --resume RUN"]
        )
    return args.config
