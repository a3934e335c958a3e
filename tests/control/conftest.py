"""The virtual shell of the core's tests drives these as well."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
