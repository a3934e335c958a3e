"""Names, and what is whole.

    .step-000120.partial/ ──(every file written through to the disk, checkpoint.json last)──> rename ──> step-000120/
                                                                 step-000120/ ──> .step-000120.gone/ ──> removed

Invariant: a directory `step-N` is whole, unless the disk itself lost something: `whole` then finds that sizes do not fit, and
`verify` that bytes do not. What begins with a dot is nobody's: the next resume removes it. Called by controller
and command line.
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from libra.checkpoint.tensors import checked
from libra.core.saved import Best
from libra.errors import CheckpointError
from libra.wire.messages import FilePart

FORMAT = 1
"""Version of the whole format. Another one is refused by name."""
DIRECTORY = "checkpoints"
MANIFEST = "checkpoint.json"
CORE = "core.msgpack"
WEIGHTS = "weights/model.safetensors"
MOMENTS = ("optimizer/exp_avg.safetensors", "optimizer/exp_avg_sq.safetensors")
BEST = "best.json"
_NAME = re.compile(r"step-(\d{6,})\Z")
_LEFT = re.compile(r"\.(step-\d{6,}\.(partial|gone)|best\.json\.\d+)\Z")


class Manifest(Struct, frozen=True, kw_only=True):
    """checkpoint.json. `format` and `code` stay what they are for ever: they are read before anything else."""

    format: int = FORMAT
    code: str
    run: str
    incarnation: str
    step: int
    """Batches consumed."""
    version: int
    """Policy version of the weights; also the optimiser's count of steps."""
    files: dict[str, int]
    """Bytes of every other file, by its path in here."""
    parts: tuple[FilePart, ...]
    """Who wrote what of the tensors, with its CRC-32."""
    inflight: str = ""
    """Directory of the trajectories that were in flight; "": they begin anew."""


def path_of(run_dir: Path, step: int) -> Path:
    return run_dir / DIRECTORY / f"step-{step:06d}"


def read_manifest(path: Path) -> Manifest:
    """What is said about the checkpoint at `path`. CheckpointError where there is none, or of another format."""
    try:
        data = (path / MANIFEST).read_bytes()
        raw = msgspec.json.decode(data, type=dict[str, object])
    except OSError as e:
        raise CheckpointError(f"{path} is no checkpoint: its {MANIFEST} cannot be read ({e.strerror})") from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{path} is no checkpoint: its {MANIFEST} is no JSON object ({e})") from e
    if raw.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {raw.get('format')}, this code reads format {FORMAT}; use the code that wrote it"
            f" ({raw.get('code')})"
        )
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.ValidationError, msgspec.DecodeError) as e:
        raise CheckpointError(f"{path / MANIFEST} does not fit this code: {e}") from e


def whole(path: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there, in their sizes. CheckpointError names what is not."""
    manifest = read_manifest(path)
    for name, size in manifest.files.items():
        file = path / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes"
            raise CheckpointError(f"{file} {what}, expected {size} bytes: this checkpoint is not whole")
    return manifest


def verify(path: Path, manifest: Manifest) -> None:
    """Compare every byte of the tensors with what was written. CheckpointError names the file that differs."""
    for part in manifest.parts:
        if not checked(path, part):
            raise CheckpointError(f"{path / part.file} is damaged: its bytes are not those that were written (CRC-32)")


def steps(run_dir: Path) -> list[int]:
    """Of all directories that are named as checkpoints, ascending."""
    try:
        names = [p.name for p in (run_dir / DIRECTORY).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(m[1]) for name in names if (m := _NAME.match(name)))


def newest(run_dir: Path) -> tuple[Path, Manifest, list[str]]:
    """The newest whole checkpoint of a run, its manifest, and why newer ones were passed over.

    CheckpointError where there is none, with the reasons.
    """
    why: list[str] = []
    for step in reversed(steps(run_dir)):
        path = path_of(run_dir, step)
        try:
            manifest = whole(path)
            verify(path, manifest)
        except (CheckpointError, OSError) as e:
            why.append(str(e))
        else:
            return path, manifest, why
    said = "".join(f"\n  - {line}" for line in why)
    raise CheckpointError(f"{run_dir} has no checkpoint to go on from{':' if why else ''}{said}")


def best(run_dir: Path) -> Best | None:
    """The checkpoint with the best held-out reward; None where none is known."""
    try:
        return msgspec.json.decode((run_dir / DIRECTORY / BEST).read_bytes(), type=Best)
    except (OSError, msgspec.DecodeError):
        return None


# --- written by the controller


def tidy(run_dir: Path) -> None:
    """Remove what a controller that was killed left half done."""
    parent = run_dir / DIRECTORY
    for left in [p for p in parent.iterdir() if _LEFT.match(p.name)] if parent.is_dir() else ():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def begin(run_dir: Path, step: int) -> Path:
    """A fresh directory to write checkpoint `step` into."""
    partial = run_dir / DIRECTORY / f".step-{step:06d}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    for file in (WEIGHTS, MOMENTS[0]):
        (partial / file).parent.mkdir(parents=True)
    return partial


def write_through(path: Path, data: bytes) -> None:
    """Write a whole file, through to the disk."""
    with path.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def commit(partial: Path, manifest: Manifest) -> None:
    """Give it its name: from now on it is a checkpoint."""
    write_through(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    final = partial.parent / f"step-{manifest.step:06d}"
    if final.exists():  # one that was found damaged, or the run went back behind it
        _remove(final)
    for directory in (*{(partial / name).parent for name in manifest.files}, partial):
        _sync(directory)
    partial.rename(final)
    _sync(partial.parent)


def drop(run_dir: Path, dropped: Sequence[int]) -> None:
    """Remove these."""
    for step in dropped:
        if (path := path_of(run_dir, step)).exists():
            _remove(path)


def note_best(run_dir: Path, best: Best) -> None:
    """Write down which is the best."""
    fresh = run_dir / DIRECTORY / f".{BEST}.{os.getpid()}"
    write_through(fresh, msgspec.json.encode(best) + b"\n")
    fresh.replace(run_dir / DIRECTORY / BEST)


def require_room(directory: Path, n_bytes: int, min_free_bytes: int) -> None:
    """CheckpointError where `n_bytes` more would leave less than `min_free_bytes` free on the disk of `directory`."""
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if free < n_bytes + min_free_bytes:
        raise CheckpointError(
            f"the disk of {directory.parent} has {free / 1e6:,.0f} MB free, expected {n_bytes / 1e6:,.0f} MB for the"
            f" checkpoint and {min_free_bytes / 1e6:,.0f} MB left over (checkpoint.min_free_bytes); make room, or lower"
            " checkpoint.keep"
        )


def _remove(path: Path) -> None:
    """Out of the way under one rename, so that no half of it is ever taken for a whole."""
    gone = path.with_name(f".{path.name}.gone")
    if gone.exists():
        shutil.rmtree(gone)
    path.rename(gone)
    shutil.rmtree(gone)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
