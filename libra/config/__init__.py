"""The ground: what a run is told. `load` a file, `check` it against this machine, `dump` it for the record."""

from libra.config.load import dump, load
from libra.config.schema import Config

__all__ = ["Config", "dump", "load"]
