"""What the rule brings: `configs/emulated-8.toml` with ranks that move by it against fixed splits, drifting and steady.

A split is the number of one-rank engines that lend gradients instead. "At first" is the split that finishes the first steps
soonest, all seeds together: what a careful person would have chosen; elastic runs start from it. "In hindsight" is the fixed
split with the most steps per hour over the whole run. Finished steps per hour: from the first turn to the last step.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from libra.config import load
from libra.core import commands as c
from libra.core import events as e
from libra.sim.plan import plan
from libra.sim.shell import Simulation
from libra.telemetry import replay

CONFIG = "configs/emulated-8.toml"
SPLITS: tuple[int, ...] = (0, 1, 2, 3)
ENGINES = 4
"""Of one rank, in the configuration."""
FIRST_STEPS = 4
DRIFTS = (4.0, 1.0)
Line = dict[str, Any]


class Ends:
    """When steps ended since the first turn, and which moves there were, from everything that passes."""

    def __init__(self) -> None:
        self.start: float | None = None
        self.steps: list[float] = []
        self.moves = self.failed = 0

    def watch(self, event: e.AnyEvent, commands: Sequence[c.Command], *_: object) -> None:
        if self.start is None and isinstance(event, e.TurnReady):
            self.start = event.t
        for command in commands:
            if isinstance(command, c.BatchConsumed):
                self.steps.append(event.t - (self.start or 0.0))
            elif isinstance(command, c.MoveChanged):
                self.moves += command.stage == "ready"
                self.failed += command.stage == "failed"

    @property
    def per_hour(self) -> float:
        return 3600.0 * len(self.steps) / self.steps[-1]


def options(steps: int, drift: float, seed: int, split: int, rule: str) -> list[str]:
    return [
        f"--run.steps={steps}", f"--run.seed={seed}", f"--env.drift={drift}", f"--env.drift_steps={steps}",
        f"--allocation.gradient={split}", f"--bucket.0.engines={ENGINES - split}", f"--elastic.rule={rule}",
    ]  # fmt: skip


def simulated(words: list[str]) -> Ends:
    ends = Ends()
    Simulation(plan(load(CONFIG, words)), ends.watch).run()
    return ends


def gain(args: argparse.Namespace) -> Iterator[Line]:
    seeds = range(args.seeds)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for drift in DRIFTS:
            cells = list(itertools.product(SPLITS, seeds))
            runs = pool.map(simulated, [options(args.steps, drift, seed, split, "off") for split, seed in cells])
            fixed = dict(zip(cells, runs, strict=True))
            first = min(SPLITS, key=lambda k: sum(fixed[k, seed].steps[FIRST_STEPS - 1] for seed in seeds))
            best = max(SPLITS, key=lambda k: statistics.fmean(fixed[k, seed].per_hour for seed in seeds))
            started = {first: "the split of the first steps", 0: "nobody lends"}
            yield {
                "steps": args.steps, "drift": drift, "seeds": args.seeds, "first": first, "hindsight": best,
                "per_hour": {k: mean(fixed[k, seed].per_hour for seed in seeds) for k in SPLITS},
            }  # fmt: skip
            for split, what in started.items():
                runs = list(pool.map(simulated, [options(args.steps, drift, s, split, "balance") for s in seeds]))
                yield {
                    "steps": args.steps, "drift": drift, "elastic_from": split, "which_is": what,
                    "per_hour": mean(run.per_hour for run in runs),
                    "over_first": ratios(runs, [fixed[first, s] for s in seeds]),
                    "over_hindsight": ratios(runs, [fixed[best, s] for s in seeds]),
                    "over_where_it_began": ratios(runs, [fixed[split, s] for s in seeds]),
                    "moves": [run.moves for run in runs],
                }  # fmt: skip


def mean(values: Iterable[float]) -> float:
    return round(statistics.fmean(values), 2)


def ratios(runs: Sequence[Ends], controls: Sequence[Ends]) -> dict[str, float]:
    """Paired by seed."""
    found = [run.per_hour / control.per_hour for run, control in zip(runs, controls, strict=True)]
    return {"mean": round(statistics.fmean(found), 3), "min": round(min(found), 3), "max": round(max(found), 3)}


def live(args: argparse.Namespace) -> Iterator[Line]:
    """The configuration as it stands, by the rule and without, one after the other."""
    found: dict[str, Ends] = {}
    for rule in ("off", "balance"):
        with tempfile.TemporaryDirectory() as directory:
            words = options(load(CONFIG).run.steps, DRIFTS[0], 0, 0, rule)
            command = [sys.executable, "-m", "libra.cli", "run", CONFIG, "--name", "job", *words]
            code = subprocess.run([*command, f"--run.directory={directory}"], stdout=subprocess.DEVNULL).returncode
            ends = found[rule] = Ends()
            report = replay.check(Path(directory) / "job", watch=ends.watch)
        yield {
            "rule": rule, "exit_code": code, "replay_ok": report.ok, "moves": ends.moves, "failed": ends.failed,
            "per_hour": round(ends.per_hour, 2), "simulated": round(simulated(words).per_hour, 2),
        }  # fmt: skip
    yield {"over_where_it_began": ratios([found["balance"]], [found["off"]])["mean"]}
