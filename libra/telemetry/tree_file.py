"""runs/NAME/causality.tree: what scheduling learnt, saved every few steps and at the end; and where another run starts from.

    live run, simulation ──save──> causality.tree ──start(config)──> Core(config, learned=...)
                                        └ copied to causality-start.tree of the run that starts from it, for its replay

One msgpack array, `TreeFile`; its format comes first for ever, and another one is refused by name. Written by
write-then-rename: a reader sees the old file or the whole new one. Called by the controller, the command line and `replay`.
"""

import os
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from libra.config.rundir import find_tree
from libra.config.schema import Config
from libra.core.learned import Learned, carried_over
from libra.core.placement import tree_config
from libra.errors import ConfigError
from libra.telemetry.version import code_version

FORMAT = 1
"""Version of this format."""


class TreeFile(Struct, frozen=True, tag="libra-tree", array_like=True):
    format: int
    code: str
    run: str
    version: int
    """Newest policy version that something was learned under."""
    tasks: str
    """Digest of the environment's table and the seed: equal ones have the same prompts under the same numbers."""
    learned: Learned


def write(path: Path, config: Config, learned: Learned) -> None:
    """Raises OSError where it cannot be written; an older file is then still whole."""
    file = TreeFile(FORMAT, code_version(), config.run.name, learned.tree.now, tasks_of(config), learned)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.msgpack.encode(file))
    fresh.replace(path)


def read(path: Path) -> TreeFile:
    """Raises ConfigError naming the file, and its format where that is not ours."""
    try:
        data = path.read_bytes()
        raw = msgspec.msgpack.decode(data)
    except OSError as e:
        raise ConfigError(str(path), [f"cannot be read: {e.strerror}"]) from e
    except msgspec.DecodeError as e:
        raise ConfigError(str(path), [f"is no saved tree: {e}"]) from e
    if not isinstance(raw, list) or len(raw) < 3 or raw[0] != "libra-tree":
        raise ConfigError(str(path), ["is no saved tree; expected the causality.tree of a run"])
    if raw[1] != FORMAT:
        raise ConfigError(
            str(path),
            [f"has tree format {raw[1]}, this code reads format {FORMAT}; use the code that wrote it ({raw[2]})"],
        )
    try:
        return msgspec.msgpack.decode(data, type=TreeFile)
    except (msgspec.ValidationError, msgspec.DecodeError) as e:
        raise ConfigError(str(path), [f"does not fit this code ({code_version()}): {e}"]) from e


def start(config: Config) -> Learned | None:
    """What `scheduler.tree_from` names, as this run may use it; None where it names nothing. Raises ConfigError."""
    if not config.scheduler.tree_from:
        return None
    path = find_tree(config)
    if path is None:
        raise ConfigError(
            config.run.name, [f"scheduler.tree_from: got {config.scheduler.tree_from!r}, which is not there"]
        )
    file = read(path)
    return carried_over(file.learned, tree_config(config.scheduler), file.tasks == tasks_of(config))


def tasks_of(config: Config) -> str:
    """What the numbers of prompts mean."""
    return blake2b(msgspec.json.encode((config.env, config.run.seed)), digest_size=8).hexdigest()
