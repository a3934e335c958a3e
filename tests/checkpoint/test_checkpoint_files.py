"""Checkpoints on disk: whole or not there, refused by name, written together, kept and dropped under one rename."""

import array
import shutil
from pathlib import Path

import msgspec
import pytest

import libra.checkpoint
from libra.checkpoint import directory as disk
from libra.checkpoint.directory import MANIFEST, MOMENTS, WEIGHTS, Manifest
from libra.checkpoint.tensors import Piece, TensorFile
from libra.core.saved import Best
from libra.errors import CheckpointError

SHAPES = {"a.weight": (3, 2), "b": (4,)}
FILE = TensorFile(SHAPES, "float32", {"steps": "7"})


def values(*numbers: float) -> memoryview:
    return memoryview(array.array("f", numbers)).cast("B")


def make(run_dir: Path, step: int) -> Path:
    """A checkpoint that two ranks wrote."""
    partial = disk.begin(run_dir, step)
    parts = []
    for name in (WEIGHTS, *MOMENTS):
        first = [Piece("a.weight", 0, values(1, 2, 3, 4)), Piece("b", 0, values(7, 8))]
        second = [Piece("a.weight", 4, values(5, 6)), Piece("b", 2, values(9, 10))]
        parts.append(FILE.write(partial / name, partial, second, with_header=False))
        parts.append(FILE.write(partial / name, partial, first, with_header=True))
    disk.write_through(partial / disk.CORE, b"the core")
    files = {p.relative_to(partial).as_posix(): p.stat().st_size for p in partial.rglob("*") if p.is_file()}
    manifest = Manifest(
        code="c", run=run_dir.name, incarnation="i", step=step, version=step, files=files, parts=tuple(parts)
    )
    disk.commit(partial, manifest)
    return disk.path_of(run_dir, step)


def test_ranks_write_one_file_and_any_ranges_can_be_read(tmp_path: Path) -> None:
    path = make(tmp_path, 3)
    file = TensorFile.read(path / WEIGHTS)
    assert (file.shapes, file.dtype, file.notes) == (SHAPES, "float32", {"steps": "7"})
    found = file.pull(path / WEIGHTS, [("a.weight", 1, 5), ("b", 3, 4), ("b", 0, 0)])
    assert [list(memoryview(x).cast("f")) for x in found] == [[2, 3, 4, 5], [10], []]


def test_safetensors_reads_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    state = load_file(make(tmp_path, 3) / WEIGHTS)
    assert torch.equal(state["a.weight"], torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert torch.equal(state["b"], torch.tensor([7.0, 8.0, 9.0, 10.0]))


def test_export_finds_the_file_of_each_parameter(tmp_path: Path) -> None:
    path = make(tmp_path, 3)
    assert libra.checkpoint.weights(path) == {"a.weight": path / WEIGHTS, "b": path / WEIGHTS}


def test_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    for step in (3, 6, 9):
        make(tmp_path, step)
    path, manifest, why = disk.newest(tmp_path)
    assert (path.name, manifest.step, why) == ("step-000009", 9, [])


def truncated(path: Path) -> None:
    with (path / WEIGHTS).open("r+b") as f:
        f.truncate((path / WEIGHTS).stat().st_size - 1)


def flipped(path: Path) -> None:
    data = bytearray((path / MOMENTS[1]).read_bytes())
    data[-1] ^= 1
    (path / MOMENTS[1]).write_bytes(data)


def without_a_file(path: Path) -> None:
    (path / disk.CORE).unlink()


def without_a_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def half_a_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:40])


def of_another_format(path: Path) -> None:
    raw = msgspec.json.decode((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_bytes(msgspec.json.encode(raw | {"format": 9, "code": "2.0+core.abc"}))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (truncated, "model.safetensors has .* bytes, expected .* not whole"),
        (flipped, "exp_avg_sq.safetensors is damaged"),
        (without_a_file, "core.msgpack is missing"),
        (without_a_manifest, "is no checkpoint"),
        (half_a_manifest, "is no JSON object"),
        (of_another_format, "format 9, this code reads format 1.*2.0.core.abc"),
    ],
)
def test_what_is_not_whole_is_passed_over_by_name(tmp_path: Path, harm, says: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path, 3)
    harm(make(tmp_path, 6))
    path, _, (why,) = disk.newest(tmp_path)
    assert path.name == "step-000003"
    shutil.rmtree(path)
    with pytest.raises(CheckpointError, match=f"(?s)no checkpoint to go on from.*{says}"):
        disk.newest(tmp_path)
    assert "step-000006" in why


def test_a_killed_save_leaves_nothing_that_counts(tmp_path: Path) -> None:
    make(tmp_path, 3)
    partial = disk.begin(tmp_path, 6)
    FILE.write(partial / WEIGHTS, partial, [Piece("b", 0, values(1, 2, 3, 4))], with_header=True)
    assert disk.steps(tmp_path) == [3]
    assert disk.newest(tmp_path)[0].name == "step-000003"
    disk.tidy(tmp_path)
    assert [p.name for p in (tmp_path / disk.DIRECTORY).iterdir()] == ["step-000003"]


def test_a_damaged_one_is_replaced_by_the_next_of_its_step(tmp_path: Path) -> None:
    truncated(make(tmp_path, 3))
    assert disk.whole(make(tmp_path, 3)).step == 3


def test_what_is_dropped_is_gone_and_the_best_is_noted(tmp_path: Path) -> None:
    for step in (3, 6, 9, 12):
        make(tmp_path, step)
    disk.drop(tmp_path, (6, 9, 99))
    disk.note_best(tmp_path, Best(3, 0.75))
    assert disk.steps(tmp_path) == [3, 12]
    assert disk.best(tmp_path) == Best(3, 0.75)
    assert sorted(p.name for p in (tmp_path / disk.DIRECTORY).iterdir()) == ["best.json", "step-000003", "step-000012"]


def test_a_run_without_any_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint to go on from"):
        disk.newest(tmp_path)
    assert disk.best(tmp_path) is None


def test_room_is_asked_for_before_it_is_taken(tmp_path: Path) -> None:
    disk.require_room(tmp_path, 1, 0)
    with pytest.raises(CheckpointError, match=r"MB free, expected .* MB for the checkpoint and .* left over"):
        disk.require_room(tmp_path, 1 << 60, 1 << 20)
