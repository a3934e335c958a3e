"""reward.png is drawn by a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from libra.core import commands as c
from libra.core import events as e
from libra.telemetry.metrics import Gauges, MetricsWriter
from libra.telemetry.summary import Tally, write_summary

pytestmark = pytest.mark.process


def fill(run_dir: Path, batches: int) -> Tally:
    tally = Tally("quick", "async", 3)
    with MetricsWriter(run_dir / "metrics.jsonl") as metrics:
        for i in range(batches):
            command = c.BatchConsumed(i, i, i + 1, i != 1, i / batches, 2, 2, 4, 40, 1, 0.0, 0.1, 0.5)
            tally.event(e.RunStarted(float(i)))
            tally.command(command)
            metrics.command(float(i), command)
            metrics.gauges(i + 0.5, Gauges(tokens_per_s=10.0, queue_groups=0, version=i, lag=1, in_flight={}))
        for kind, reward in (("eval_start", 0.25), ("eval_end", 0.75)):
            metrics.command(float(batches), c.Evaluated(0, kind, 0, 200, 0, reward))  # type: ignore[arg-type]
    return tally


def picture(run_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "libra.telemetry.picture", str(run_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.parametrize("batches", [1, 12])
def test_a_run_becomes_a_picture(tmp_path: Path, batches: int) -> None:
    write_summary(tmp_path / "summary.json", fill(tmp_path, batches).summary())
    done = picture(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "reward.png", "summary.json"]


def test_a_run_without_batches_says_why_there_is_no_picture(tmp_path: Path) -> None:
    fill(tmp_path, 0)
    done = picture(tmp_path)
    assert done.returncode == 1
    assert "has no consumed batch" in done.stderr
    assert not (tmp_path / "reward.png").exists()


def test_the_controllers_side_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys\n"
        "import libra.telemetry.display, libra.telemetry.journal, libra.telemetry.logs, libra.telemetry.metrics\n"
        "import libra.telemetry.replay, libra.telemetry.screen, libra.telemetry.summary\n"
        "print([m for m in ('torch', 'matplotlib', 'numpy', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
