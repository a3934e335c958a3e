"""`libra top`: this process becomes the dashboard, which sets its environment before anything of it is imported."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import libra


def top(words: Sequence[str]) -> NoReturn:
    """Never returns. The dashboard is imported from where this program's own code lies, not from the working directory."""
    home = str(Path(libra.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([home, *([path] if path else [])])
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tui", *words])
