"""The dashboard on a real terminal beside a real job of emulated devices: look, move a rank, undo it, see it end, look back."""

import sys
from pathlib import Path

import pytest
from launched import REPOSITORY, Launched
from pty_reader import OnTerminal
from test_live_control import libra

pytestmark = [pytest.mark.process, pytest.mark.timeout(420)]
EMULATED = REPOSITORY / "configs" / "emulated-8.toml"


def top(run_dir: Path, *options: str) -> OnTerminal:
    return OnTerminal([sys.executable, "-m", "libra.cli", "top", str(run_dir), *options], REPOSITORY)


def test_a_rank_is_moved_and_moved_back_by_keys_alone_and_the_end_is_seen(tmp_path: Path) -> None:
    with Launched(tmp_path, None, "--run.steps=400", "--elastic.rule=off", config=EMULATED, deadline_s=240) as run:
        run.until("the pointer to the sockets", (run.run_dir / "control.json").exists)
        with top(run.run_dir, "--control") as t:
            t.until("live", "training", "throughput")
            t.press("2")
            t.until("rollout", "tp2", "busy")
            t.press("4")
            t.until("engine 0", "engine 4")
            t.press("jm")
            t.until("draft, 1 change", "valid: engine 0")
            t.until("predicted")  # the simulation's word
            t.press("\r")
            t.until("order this?", "Cancel")
            t.press("\r")
            t.until("nothing was ordered", "draft, 1 change")
            t.press("\r")
            t.until("order this?")
            t.press("\t\r")
            t.until("accepted: move 1", gone="order this?")
            t.until("replica", "gradient 1", gone="engine 0     3")
            t.press("u")
            t.until("take the last order back")
            t.press("\t\r")
            t.until("accepted", gone="take the last")
            t.until("rollout 6", gone="gradient 1")
            t.press("6")
            t.until("order")
            assert libra(run, "stop", "--now").returncode == 0
            t.until("the run has ended, last frame kept")
            t.press("q")
            assert t.wait() == 0
            assert b"\x1b[?1049l" in t.raw, "the terminal's own screen is back"
        with top(run.run_dir) as t:
            t.until("replay", "step 0/400")
            t.press("]")
            t.until("up", "trainer 2")
            t.press("q")
            assert t.wait() == 0
