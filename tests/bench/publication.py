"""Does an engine that stops reading for good hold anybody up? `just bench publication`, one JSON line.

One whole run with two engines; after some batches one of them is stopped (SIGSTOP) in the middle of everything. The control is
the same run before that. Step time is what a core rank spends in rounds and in closing a step, from the journal. Where all
cores are busy a stopped engine also leaves its share of them to the others: look at whether the time *rises*.
"""

import json
import signal
import statistics
import tempfile
from pathlib import Path

from libra.core import events as e
from libra.telemetry.journal import DIRECTORY, JournalReader
from tests.live.launched import Launched, kill

BATCHES = 40


def step_seconds(run_dir: Path) -> list[tuple[float, float]]:
    """(time of the run, seconds in rounds and in closing) of each step of core rank 1."""
    steps: list[tuple[float, float]] = []
    rounds = 0.0
    for event, _ in JournalReader(run_dir / DIRECTORY):
        match event:
            case e.RoundDone(rank=1, seconds=seconds):
                rounds += seconds
            case e.StepDone(rank=1, seconds=seconds):
                steps.append((event.t, rounds + seconds))
                rounds = 0.0
            case _:
                pass
    return steps


def installed(run_dir: Path, engine: int, after_s: float) -> tuple[list[int], int]:
    """Versions that `engine` installed after that time, and how many there were to install."""
    got, newest = [], 0
    for event, _ in JournalReader(run_dir / DIRECTORY):
        if isinstance(event, e.WeightsInstalled) and event.engine == engine and event.t > after_s:
            got.append(event.version)
        if isinstance(event, e.WeightsHeld) and event.t > after_s:
            newest += event.rank == 1
    return got, newest


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        patient = ["--deadline.stalled_s=300", "--deadline.weights_s=200", "--run.steps=100000", "--eval.tasks=0"]
        with Launched(path, path / "warm", *patient, deadline_s=300) as run:
            run.until_batch(BATCHES)
            (_, second) = run.find("libra.rank.role", "rollout")
            kill(second, signal.SIGSTOP)
            stopped_s = run.batches()[-1]["t"]
            run.until_batch(2 * BATCHES)
            kill(run.process.pid, signal.SIGINT)
            run.until("the end of the run", lambda: run.process.poll() is not None)
        steps = step_seconds(run.run_dir)
        before = [seconds for t, seconds in steps if t <= stopped_s][5:]
        after = [seconds for t, seconds in steps if t > stopped_s][1:]
        versions, published = installed(run.run_dir, 0, stopped_s)
        line = {
            "bench": "publication",
            "steps_before": len(before),
            "steps_after": len(after),
            "step_ms_before": round(1000 * statistics.median(before), 1),
            "step_ms_after": round(1000 * statistics.median(after), 1),
            "ratio": round(statistics.median(after) / statistics.median(before), 3),
            "published_after": published,
            "installed_after_by_the_other": len(versions),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
