"""Which code decided: the package's version and a digest of the sources on which the core's decisions depend.

Written into a journal's head, so that a replay which differs can say whether the code differs too. Works from an
installed wheel and from a checkout, with or without git.
"""

from hashlib import blake2b
from importlib import metadata
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def package_version(distribution: str) -> str:
    """The installed version of a distribution without importing it; "" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def code_version() -> str:
    """`0.1.0+core.1f2e3d4c`: the digest covers `libra/core/**.py` and the configuration schema (about 1 ms)."""
    digest = blake2b(digest_size=4)
    for path in [*sorted((_PACKAGE / "core").rglob("*.py")), _PACKAGE / "config" / "schema.py"]:
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{package_version('libra-rl') or 'source'}+core.{digest.hexdigest()}"
