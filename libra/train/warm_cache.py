"""The warm start's cache: one safetensors file a key, in the user's cache directory or where the configuration says.

The key is a digest of everything that shapes the weights, so a stale file cannot be hit; a file is written aside and
renamed, so concurrent runs see none or a whole one; a damaged file is a warning and a miss. Called by `libra.train.warm_start`.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from libra.config.schema import Config
from libra.errors import WeightsError
from libra.train.sharded import read_state, save_state

log = logging.getLogger(__name__)
FORMAT = 1
"""Raise it when the recipe of `warm_start` or the initialisation of `model` changes."""


def cache_path(config: Config, vocabulary: int, sample: Sequence[Any]) -> Path:
    """Where the warm start of this configuration is, or would be.

    `sample` are some demonstrations: they put the environment's grammar and scripts under the key.
    """
    key = {
        "format": FORMAT,
        "torch": str(torch.__version__),
        "model": config.model,
        "vocabulary": vocabulary,
        "warm_start": msgspec.structs.replace(config.warm_start, cache=""),
        "env": {k: v for k, v in msgspec.to_builtins(config.env).items() if k not in ("tool", "fault")},
        "temperature": config.rollout.temperature,
        "max_grad_norm": config.trainer.max_grad_norm,
        "seed": config.run.seed,
        "sample": sample,
    }
    digest = hashlib.blake2b(msgspec.json.encode(key, order="sorted"), digest_size=16).hexdigest()
    return directory(config.warm_start.cache) / f"warm-{digest}.safetensors"


def directory(configured: str) -> Path:
    """`configured`, or ${XDG_CACHE_HOME:-~/.cache}/libra where it is empty."""
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "libra"


def read(path: Path) -> tuple[dict[str, torch.Tensor], float] | None:
    """The cached state and the loss noted with it; None where there is none, or none that is whole."""
    try:
        state, notes = read_state(path)
        return state, float(notes["loss"])
    except FileNotFoundError:
        return None
    except (WeightsError, KeyError, ValueError) as e:
        log.warning("the cached warm start is ignored and made again: %s", e)
        return None


def write(path: Path, state: dict[str, torch.Tensor], loss: float) -> None:
    """Keeps a state. A directory that cannot be written is a warning: the run goes on without a cache."""
    try:
        save_state(path, state, {"loss": repr(loss)})
    except OSError as e:
        log.warning("the warm start is not cached: %s (set warm_start.cache to a directory that can be written)", e)
