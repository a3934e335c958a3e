"""How ranks find the controller, without torchrun around them."""

import stat
import tempfile
from pathlib import Path

import pytest

from libra.errors import LibraError
from libra.wire.rendezvous import Meeting, PrivateDirectory, announce, find, meeting_file

MEETING = Meeting("/run/x.sock", "secret", "abc")


def test_what_is_announced_is_found_and_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "controller.json"
    announce(MEETING, path)
    assert find(path, 1.0) == MEETING
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path], "nothing temporary is left"


def test_a_silent_controller_is_an_error_after_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(LibraError, match=r"rank 0 did not announce itself .* within 0.1 s"):
        find(tmp_path / "controller.json", 0.1)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "controller.json"
    path.write_text('{"address": 7}')
    with pytest.raises(LibraError, match="not a controller's word"):
        find(path, 1.0)


def test_the_meeting_place_is_unique_to_a_launch_and_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/logs/run_x/attempt_1/3/error.json")
    assert meeting_file() == Path("/logs/run_x/attempt_1/controller.json")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(LibraError, match="spans 2 hosts"):
        meeting_file()
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    with pytest.raises(LibraError, match="libra run CONFIG"):
        meeting_file()


def test_what_a_killed_controller_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive = PrivateDirectory()
    left, other = tmp_path / "libra-left", tmp_path / "libra-notes"
    for path in (left, other):
        path.mkdir()
    (left / "lock").touch()
    private = PrivateDirectory()
    assert not left.exists(), "nobody holds its lock"
    assert alive.path.exists()
    assert other.exists(), "it has no lock: nothing of ours"
    assert stat.S_IMODE(private.path.stat().st_mode) == 0o700
    for mine in (alive, private):
        mine.remove()
        assert not mine.path.exists()
