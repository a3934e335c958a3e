"""Run directories: claiming one, telling its state, never mistaking a process, stopping a real one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from libra.cli.main import main
from libra.cli.runs import find_or_newest
from libra.config import Config, load
from libra.config.rundir import Pid, Resolved, claim, is_alive, read_pid, resolve, write_pid
from libra.errors import PreflightError, RunGone

DEADLINE_S = 60


def make_run(parent: Path, name: str, *, alive: bool = False, summary: dict[str, object] | None = None) -> Path:
    run_dir = parent / name
    claim(Resolved(Config(), run_dir))
    if not alive:
        pid = read_pid(run_dir)
        assert pid is not None
        (run_dir / "pid").write_bytes(msgspec.json.encode(msgspec.structs.replace(pid, start_ticks=1)))
    if summary is not None:
        (run_dir / "summary.json").write_text(json.dumps(summary))
    return run_dir


def test_a_claimed_directory_holds_the_resolved_configuration_and_a_living_pid(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(f'[run]\nname = "a"\nseed = 4\ndirectory = "{tmp_path}/runs"\n')
    resolved = resolve(path, (), {})
    claim(resolved)
    assert load(resolved.run_dir / "config.toml") == resolved.config
    assert (resolved.run_dir / "logs").is_dir()
    pid = read_pid(resolved.run_dir)
    assert pid is not None
    assert pid.pid == os.getpid()
    assert is_alive(pid)


def test_a_directory_can_be_claimed_once(tmp_path):
    claim(Resolved(Config(), tmp_path / "runs" / "a"))
    with pytest.raises(PreflightError, match="exists"):
        claim(Resolved(Config(), tmp_path / "runs" / "a"))


def test_the_directory_that_libra_run_chose_wins(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("")
    resolved = resolve(path, ["--run.name=b"], {"LIBRA_RUN_DIR": str(tmp_path / "c")})
    assert (resolved.run_dir, resolved.config.run.name) == (tmp_path / "c", "c")


def test_a_reused_pid_is_not_the_run(tmp_path):
    write_pid(tmp_path)
    pid = read_pid(tmp_path)
    assert pid is not None
    assert not is_alive(msgspec.structs.replace(pid, start_ticks=pid.start_ticks + 1))
    assert not is_alive(msgspec.structs.replace(pid, host="elsewhere"))


def test_an_unreadable_pid_file_is_no_process(tmp_path):
    (tmp_path / "pid").write_text("12")
    assert read_pid(tmp_path) is None


def test_without_a_name_it_is_the_newest_that_runs_or_the_newest_that_has_ended(tmp_path):
    with pytest.raises(RunGone, match="is running on this host"):
        find_or_newest(None, tmp_path, ended=True)
    make_run(tmp_path, "a-done")
    newest = make_run(tmp_path, "b-done")
    with pytest.raises(RunGone, match="is running on this host"):
        find_or_newest(None, tmp_path)
    assert find_or_newest(None, tmp_path, ended=True) == newest
    running = make_run(tmp_path, "a-alive", alive=True)
    make_run(tmp_path, "c-done")
    assert find_or_newest(None, tmp_path) == find_or_newest(None, tmp_path, ended=True) == running


def test_list_tells_each_state(tmp_path, capsys):
    make_run(tmp_path, "alive", alive=True)
    make_run(tmp_path, "dead")
    make_run(tmp_path, "done", summary={"ok": True, "steps": 100, "reward_last": 0.91, "reason": "all steps done"})
    make_run(tmp_path, "broken", summary={"ok": False, "steps": 3, "reward_last": None, "reason": "rank 1 lost"})
    batches = [{"kind": "batch", "t": 1.0, "batch": i, "reward": r} for i, r in enumerate([0.2, None, 0.4])]
    (tmp_path / "alive" / "metrics.jsonl").write_text("".join(json.dumps(b) + "\n" for b in batches))
    (tmp_path / "no-run").mkdir()
    assert main(["list", "--json", "--directory", str(tmp_path)]) == 0
    runs = {r["name"]: (r["state"], r["steps"], r["reward"]) for r in json.loads(capsys.readouterr().out)}
    assert runs == {
        "alive": ("running", 3, pytest.approx(0.3)),
        "dead": ("died", 0, None),
        "done": ("finished", 100, 0.91),
        "broken": ("failed", 3, None),
    }
    assert main(["list", "--directory", str(tmp_path)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["RUN", "STATE", "STEPS", "REWARD", "STARTED"]
    assert len(table) == 5


def test_an_empty_list_says_how_to_begin(tmp_path, capsys):
    assert main(["list", "--directory", str(tmp_path / "none")]) == 0
    assert "libra run" in capsys.readouterr().out


def test_an_unknown_run_gets_the_nearest_name(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs", "quickstart")
    monkeypatch.chdir(tmp_path)
    assert main(["stop", "quikstart"]) == 3
    assert "did you mean quickstart?" in capsys.readouterr().err


def test_a_run_that_has_ended_is_not_signalled(tmp_path, capsys):
    run_dir = make_run(tmp_path, "dead")  # its pid file names this very process, with another start time
    assert main(["stop", str(run_dir)]) == 0
    assert "does not run (died)" in capsys.readouterr().out


def test_a_run_of_another_host_is_not_signalled(tmp_path, capsys):
    run_dir = make_run(tmp_path, "far")
    (run_dir / "pid").write_bytes(msgspec.json.encode(Pid(os.getpid(), 1, "elsewhere")))
    assert main(["stop", str(run_dir)]) == 1
    assert "started on elsewhere" in capsys.readouterr().err


CONTROLLER = """
import signal, sys, threading
from pathlib import Path
from libra.config.rundir import write_pid
end, run_dir = threading.Event(), Path(sys.argv[1])
def note(number, frame):
    (run_dir / "seen").write_text(signal.Signals(number).name)
    if sys.argv[2] != "deaf": end.set()
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
write_pid(run_dir)
print("ready", flush=True)
end.wait(60)
"""


@pytest.fixture
def controller(tmp_path):
    """Starts a process that stands as the controller of the run in `tmp_path/job`."""
    run_dir = make_run(tmp_path, "job")
    started: list[subprocess.Popen[str]] = []

    def starter(kind: str) -> Path:
        process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, str(run_dir), kind], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return run_dir

    yield starter
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.mark.process
@pytest.mark.parametrize(("options", "number"), [([], "SIGINT"), (["--now"], "SIGTERM")])
def test_stop_signals_the_controller_and_waits_for_its_end(controller, options, number, capsys):
    run_dir = controller("good")
    assert main(["stop", str(run_dir), *options]) == 0
    assert (run_dir / "seen").read_text() == number
    assert "has ended after 0 steps" in capsys.readouterr().out


@pytest.mark.process
def test_stop_says_so_when_the_run_does_not_end_in_time(controller, capsys):
    run_dir = controller("deaf")
    assert main(["stop", str(run_dir), "--timeout-s", "0.3"]) == 1
    assert "still runs after 0.3 s; end it at once with: libra stop" in capsys.readouterr().err
