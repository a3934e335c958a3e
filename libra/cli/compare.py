"""`libra compare`: policies on the same seeds, each cell a `libra simulate` in a process of its own, two side by side.

Ratios are taken seed by seed against the control and then averaged: what the seeds have in common cancels. Throughput is
sampled tokens a second (more is better), makespan and the times of a batch are seconds (less is better).
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from libra.cli.arguments import Compare
from libra.cli.simulate import simulated
from libra.errors import ConfigError, LibraError
from libra.sim.plan import plan

SIDE_BY_SIDE = 2
FIGURES = ("tokens_per_s", "makespan_s", "time_to_90_s", "last_finished_s", "makespan_over_bound")
Cell = dict[str, Any]


def compare(args: Compare) -> int:
    """Exit code 0; bad input raises before the first process starts."""
    policies = [p for p in args.policies.split(",") if p]
    control = args.control or (policies[0] if policies else "")
    if not policies or args.seeds < 1 or len(set(policies)) < len(policies):
        raise ConfigError(
            "compare", [f"got policies {args.policies!r} and {args.seeds} seeds, expected names and 1 or more"]
        )
    if control not in policies:
        raise ConfigError("compare", [f"--control: got {control!r}, expected one of --policies: {', '.join(policies)}"])
    for policy in policies:
        plan(simulated(args.config, (*_short(args), f"--scheduler.policy={policy}"), args.trace))
    jobs = [(policy, seed) for seed in range(args.seeds) for policy in policies]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        cells = list(pool.map(lambda job: _cell(args, *job), jobs))
    by_policy = {p: [c for (policy, _), c in zip(jobs, cells, strict=True) if policy == p] for p in policies}
    ratios = {p: _ratios(by_policy[p], by_policy[control]) for p in policies}
    if args.json:
        print(json.dumps({"control": control, "seeds": args.seeds, "ratios": ratios, "cells": cells}))
    else:
        print("\n".join(_table(control, args.seeds, ratios)))
    return 0


def _short(args: Compare) -> tuple[str, ...]:
    short = {"run.mode": args.mode, "run.steps": args.steps}
    return (*args.overrides, *(f"--{key}={value}" for key, value in short.items() if value is not None))


def _cell(args: Compare, policy: str, seed: int) -> Cell:
    command = [sys.executable, "-m", "libra.cli", "simulate", args.config, "--json", *_short(args)]
    command += [f"--scheduler.policy={policy}", f"--run.seed={seed}"]
    if args.trace is not None:
        command += ["--trace", args.trace]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LibraError(
            f"{policy} with seed {seed} failed (exit code {done.returncode}): {done.stderr.strip()[-2000:]}"
        )
    return json.loads(done.stdout)


def _ratios(cells: Sequence[Cell], controls: Sequence[Cell]) -> dict[str, dict[str, float] | None]:
    """By figure: mean, least, most and standard deviation of this policy over the control, seed by seed."""
    out: dict[str, dict[str, float] | None] = {}
    for figure in FIGURES:
        pairs = [(cell[figure], control[figure]) for cell, control in zip(cells, controls, strict=True)]
        ratios = [a / b for a, b in pairs if a is not None and b]
        spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
        found = (
            {"mean": statistics.fmean(ratios), "low": min(ratios), "high": max(ratios), "stdev": spread}
            if ratios
            else None
        )
        out[figure] = found
    return out


def _table(control: str, seeds: int, ratios: Mapping[str, Mapping[str, Mapping[str, float] | None]]) -> list[str]:
    width = max(len(p) for p in ratios)
    head = f"{'over ' + control:<{max(width, 5 + len(control))}}"
    rows = [f"{head}  " + "  ".join(f"{figure:>22}" for figure in FIGURES)]
    for policy, figures in ratios.items():
        cells = [
            f"{'none':>22}" if (r := figures[f]) is None else f"{r['mean']:>7.3f} [{r['low']:.3f}, {r['high']:.3f}]"
            for f in FIGURES
        ]
        rows.append(f"{policy:<{len(head)}}  " + "  ".join(cells))
    return [*rows, f"mean [least, most] over {seeds} paired seeds"]
