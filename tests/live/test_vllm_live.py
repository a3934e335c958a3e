"""Jobs on vLLM engines: they change their shape while the job goes on, and any of their processes may die or hang."""

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from launched import Launched, kill
from test_moves_live import commands, end_well, give, until_further_batches, until_over

from libra.control.client import View
from libra.core import commands as c
from libra.core.orders import MoveRanks

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: `just setup-vllm`"),
]
APART = [((2,), "single"), ((3,), "single")]
TOGETHER = [((2, 3), "pair")]
CONFIG = Path(__file__).parent / "vllm_tiny.toml"
JOB = [
    *("--run.steps=100000", "--eval.tasks=0", "--warm_start.steps=40", "--rollout.max_lag=2"),
    *("--deadline.role_start_s=240", "--deadline.weights_s=60"),
]
"""Deadlines that a machine with other work can keep: each process imports vLLM."""


def job(tmp_path: Path, warm_cache: Path, *options: str) -> Launched:
    return Launched(tmp_path, warm_cache, *JOB, *options, config=CONFIG, deadline_s=400.0)


def engines(run: Launched) -> list[tuple[tuple[int, ...], str]]:
    """Ranks and bucket of every engine that serves."""
    with View(run.run_dir) as view:
        return sorted((row.ranks, row.bucket) for row in view.snapshot().engines if row.up)


def until_up(run: Launched, wanted: list[tuple[tuple[int, ...], str]]) -> None:
    """The torch engine answers long before vLLM is imported: batches alone say nothing of vLLM's engines."""
    run.until(f"vLLM engines {wanted}", lambda: [e for e in engines(run) if e[1] != "rest"] == wanted)


def reshape(run: Launched, times: int) -> None:
    """TP1 + TP1 -> TP2 -> TP1 + TP1 ..., with work on each shape."""
    for move in range(1, times + 1):
        bucket = "pair" if move % 2 else "single"
        assert give(run, MoveRanks((2, 3), "rollout", bucket)).accepted
        until_over(run, move)
        turns = generated(run, bucket)
        run.until(f"turns on {bucket} after move {move}", lambda: generated(run, bucket) > turns)  # noqa: B023
        until_further_batches(run, 1)


def generated(run: Launched, bucket: str) -> int:
    """Turns that the bucket was given since the run began."""
    gauges = run.metrics("gauges")
    return gauges[-1]["turns_by_bucket"].get(bucket, 0) if gauges else 0


def gaps(run: Launched) -> list[float]:
    return [b["gap"] for b in run.batches() if b["gap"] is not None]


def test_two_engines_become_one_of_two_ranks_and_two_again_in_a_job_that_goes_on(
    tmp_path: Path, warm_cache: Path
) -> None:
    with job(tmp_path, warm_cache) as run:
        run.until_batch(1)
        until_up(run, APART)
        reshape(run, 2)
        until_up(run, APART)
        end_well(run)
    formed = [x.members for x in commands(run) if isinstance(x, c.FormGroup)]
    assert formed.count((2, 3)) == 1
    assert gaps(run)
    assert max(gaps(run)) < 1e-3, "trainer and engines hold the same weights"


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_twenty_changes_of_shape(tmp_path: Path, warm_cache: Path) -> None:
    with job(tmp_path, warm_cache) as run:
        run.until_batch(1)
        until_up(run, APART)
        reshape(run, 20)
        end_well(run)
    assert max(gaps(run)) < 1e-3


def test_whichever_process_of_an_engine_dies_or_hangs_the_engine_is_made_anew(tmp_path: Path, warm_cache: Path) -> None:
    """One engine of two ranks. In turn: its leader is killed, its follower is killed, its follower hangs."""
    shape = ["--bucket.0.engines=0", "--bucket.1.engines=1", "--deadline.stalled_s=30", "--deadline.role_restarts=9"]
    with job(tmp_path, warm_cache, *shape) as run:
        run.until_batch(1)
        until_up(run, TOGETHER)
        started = 2
        for rank, number in ((2, signal.SIGKILL), (3, signal.SIGKILL), (3, signal.SIGSTOP)):
            turns = generated(run, "pair")
            victims = [pid for pid in run.find("libra.rank.role", f"rank-{rank}.rollout") if pid > 0]
            kill(victims[-1], number)
            started += 2
            run.until(f"two more processes after {number} of rank {rank}", lambda: logs(run) >= started)  # noqa: B023
            run.until("the engine is up again", lambda: ((2, 3), "pair") in engines(run))
            run.until("turns on it", lambda: generated(run, "pair") > turns)  # noqa: B023
            until_further_batches(run, 1)
        end_well(run)
    assert max(gaps(run)) < 1e-3


def logs(run: Launched) -> int:
    """Processes that ever served the engine of two ranks."""
    return len(list((run.run_dir / "logs").glob("rank-[23].rollout-*.log")))
