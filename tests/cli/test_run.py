"""`libra run`: dry runs, refusals, and being torchrun: arguments, outcomes and Ctrl-C, with real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from libra.cli.main import main
from libra.config import load

ROOT = Path(__file__).parents[2]
WITH_STUB = "import sys; from libra.cli import main, run; run.LAUNCH_MODULE = 'stub_launch'; sys.exit(main.main())"
DEADLINE_S = 60.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(f'[run]\nname = "job"\ndirectory = "{tmp_path}/runs"\n[allocation]\ntrainer = 1\n')
    return path


@pytest.fixture
def start(tmp_path: Path, config: Path):
    """Starts `libra run` with the stub; whatever is left of it at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def starter(stub: str, *args: str) -> subprocess.Popen[str]:
        env = os.environ | {"STUB": stub, "STUB_DIR": str(tmp_path), "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_STUB, "run", str(config), *args],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield starter
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came"
        time.sleep(0.02)


def pids(tmp_path: Path, count: int) -> list[int]:
    """The workers' pids, once all of them are ready."""
    until(lambda: len(list(tmp_path.glob("ready-*"))) == count)
    return [int(p.read_text()) for p in tmp_path.glob("ready-*")]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_dry_run_prints_what_would_run_and_makes_nothing(tmp_path, config, capsys):
    assert main(["run", str(config), "--dry-run", "--seed", "3", "--trainer.lr=1e-4"]) == 0
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(capsys.readouterr().out)
    got = load(resolved)
    assert (got.run.name, got.run.seed, got.trainer.lr) == ("job", 3, 1e-4)
    assert not (tmp_path / "runs").exists()


def test_without_a_name_the_next_free_one_is_taken(tmp_path, config, capsys):
    (tmp_path / "runs" / "job").mkdir(parents=True)
    (tmp_path / "runs" / "job-2").mkdir()
    assert main(["run", str(config), "--dry-run"]) == 0
    assert 'name = "job-3"' in capsys.readouterr().out


def test_a_name_that_is_taken_is_refused_with_a_free_one(tmp_path, config, capsys):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert main(["run", str(config), "--dry-run", "--name", "mine"]) == 2
    assert "choose another --name (mine-2 is free)" in capsys.readouterr().err


def test_bad_configuration_is_exit_code_2_and_one_message(config, capsys):
    assert main(["run", str(config), "--trainer.lrr", "1"]) == 2
    err = capsys.readouterr().err
    assert "did you mean trainer.lr?" in err
    assert "Traceback" not in err


def test_a_configuration_that_cannot_run_is_exit_code_2(config, capsys):
    assert main(["run", str(config), "--model.heads", "5"]) == 2
    assert "preflight failed" in capsys.readouterr().err


@pytest.mark.process
def test_rank_0_gets_the_configuration_the_overrides_and_the_directory(tmp_path, config, start):
    process = start("ok", "--name", "mine", "--trainer.lr", "1e-4")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    run_dir, *args = (tmp_path / "args-0").read_text().splitlines()
    assert run_dir == str(tmp_path / "runs" / "mine")
    assert args == [str(config), "--trainer.lr", "1e-4", "--run.name=mine"]
    assert len(list(tmp_path.glob("args-*"))) == 3
    assert err == ""
    assert out.startswith("run mine in ")


@pytest.mark.process
def test_a_rank_that_fails_ends_the_run_with_one_line_and_no_orphan(tmp_path, start):
    process = start("fail")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert err == "libra: job failed: rank 2 exited with 7\n"
    workers = [int(p.read_text()) for p in tmp_path.glob("ready-*")]
    assert all(gone(pid) for pid in workers)


@pytest.mark.process
@pytest.mark.parametrize(("stub", "presses"), [("first", 1), ("second", 2), ("never", 3)])
def test_ctrl_c_once_twice_and_thrice_leaves_nothing_behind(tmp_path, start, stub, presses):
    process = start(stub)
    workers = pids(tmp_path, 3)
    for seen in ["SIGINT", "SIGTERM", None][:presses]:
        process.send_signal(signal.SIGINT)
        if seen is not None:
            until(lambda seen=seen: all(seen in read(tmp_path / f"signals-{rank}") for rank in range(3)))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert err == "libra: job ended after SIGINT\n"
    assert all(gone(pid) for pid in workers)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
