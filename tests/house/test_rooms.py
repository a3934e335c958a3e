"""What holds for the house as a whole: import weight, file sizes, names, configurations that load."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_chat import chat_model

import libra
from libra.config import load, preflight
from libra.config.worlds import WorkloadConfig
from libra.sim.plan import plan

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for room in ("libra", "tui") for p in (ROOT / room).rglob("*.py"))
LONGEST_FILE_LINES = 500
WITHOUT_TORCH = (
    "errors",
    "config",
    "core",
    "wire",
    "checkpoint",
    "env",
    "telemetry",
    "control",
    "controller",
    "cli",
    "rank.supervisor",
    "workload",
    "sim",
    "launch",
)


def modules_of(rooms: tuple[str, ...]) -> list[str]:
    names = [f"libra.{room}" for room in rooms]
    every = [m.name for m in pkgutil.walk_packages(libra.__path__, "libra.")]
    return [m for m in every if any(m == n or m.startswith(f"{n}.") for n in names) and not m.endswith("__main__")]


@pytest.mark.process
def test_controllers_and_supervisors_import_neither_torch_nor_transformers():
    names = modules_of(WITHOUT_TORCH)
    assert len(names) > 10
    code = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_short_and_says_what_it_is_for(path):
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE_LINES
    assert path.name == "__init__.py" or text.startswith('"""'), "the module has no docstring"
    assert path.name != "utils.py"


def test_nothing_unpickles():
    guilty = [p for p in SOURCES if "import pickle" in p.read_text() or "from pickle" in p.read_text()]
    assert guilty == []


RUNS = sorted(p for p in (ROOT / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_every_run_in_configs_loads_and_could_start(path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # A model with the heads of SmolLM2 stands in for it, so nothing is downloaded here.
    chat_model(tmp_path / "libra" / "models" / "smollm2-135m-instruct", hidden=288, heads=9, kv_heads=3)
    config = load(path)
    if isinstance(config.env, WorkloadConfig):
        assert plan(config).config.devices == config.devices
    else:
        preflight.check(config, 1 + config.devices, machine=False)


def test_the_quickstart_is_five_processes():
    assert load(ROOT / "configs" / "quickstart.toml").devices == 4
