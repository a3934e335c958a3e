"""Does the main job learn? `just bench learn` runs it on fresh seeds beside its controls, one JSON line a run.

    python -m tests.bench.learn [--seeds 3] [--first 100] [--controls]

A control differs in one thing: a tool that always fails (its reward must stay near 0), the other two modes. Each run is a whole
`libra run` with all its processes, warm start included (made anew for each seed unless it is in the user's cache).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KEYS = (
    *(
        "reward_first",
        "reward_last",
        "reward_heldout_start",
        "reward_heldout",
        "steps",
        "skipped_steps",
        "trajectories",
    ),
    *(
        "failed",
        "lost",
        "tokens_sampled",
        "tokens_per_s",
        "turns_p50",
        "turns_max",
        "lag_max",
        "tail_wait_s",
        "turns_by_bucket",
        "bucket_moves",
        "seconds",
    ),
)
CONTROLS = {
    "always-failing tool": ["--env.fault.kind=fail", "--env.fault.rate=1", "--run.steps=30"],
    "sync": ["--run.mode=sync"],
    "one-step-off": ["--run.mode=one-step-off"],
}


def run(name: str, seed: int, directory: Path, *options: str) -> dict[str, Any]:
    """One whole run, installed nothing, measured from the command to its end."""
    began = time.monotonic()
    command = [sys.executable, "-m", "libra.cli", "run", "configs/quickstart.toml", "--seed", str(seed)]
    label = f"{name.replace(' ', '-')}-{seed}"
    done = subprocess.run(
        [*command, "--name", label, f"--run.directory={directory}", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s = round(time.monotonic() - began, 1)
    if done.returncode:
        return {"bench": "learn", "case": name, "seed": seed, "failed": done.stderr.strip()[-400:], "wall_s": wall_s}
    summary = json.loads((directory / label / "summary.json").read_text())
    return {"bench": "learn", "case": name, "seed": seed, "wall_s": wall_s, **{key: summary[key] for key in KEYS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--first", type=int, default=int(time.time()) % 100_000, help="first seed; default: the clock's"
    )
    parser.add_argument("--controls", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(options.first, options.first + options.seeds):
            print(json.dumps(run("async", seed, Path(directory))), flush=True)
        for name, extra in CONTROLS.items() if options.controls else ():
            print(json.dumps(run(name, options.first, Path(directory), *extra)), flush=True)


if __name__ == "__main__":
    main()
