"""What the simulator costs, and what it says of the scheduling policies: JSON lines, every control in the same run.

    python -m tests.bench.sim                         speed figures, then the whole table
    python -m tests.bench.sim --slice speed           only the speed figures
    python -m tests.bench.sim --slice table --workloads search,null --seeds 2
    python -m tests.bench.sim --slice table --part 2/3        the second third of the cells (round-robin)
    python -m tests.bench.sim --slice drift           the asynchronous run under drift
    python -m tests.bench.sim --slice table --set cost.hardware.engine.row_s=2e-5     with another constant
    python -m tests.bench.sim --summary FILE...       ratios against the controls, from the lines of earlier slices

`table`: one batch of 512 on 32 devices (`configs/sim-batch.toml`), every policy on every workload and seed; `drift`:
`configs/sim-drift.toml`, 20 steps on 48 devices. A trace given with --trace joins the workloads of the table. A cell is one
process; two run side by side. Times of the speed figures are CPU seconds of one process: machines with neighbours stretch
the clock.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args, get_type_hints

from libra.config import load
from libra.config.schema import SchedulerConfig
from libra.sim.plan import plan
from libra.sim.shell import Simulation

ROOT = Path(__file__).parents[2]
BATCH, DRIFT = (str(ROOT / "configs" / f"sim-{name}.toml") for name in ("batch", "drift"))
SIDE_BY_SIDE = 2
POLICIES: tuple[str, ...] = get_args(get_type_hints(SchedulerConfig)["policy"])
FOREKNOWING = "oracle"
"""Knows what no control may know: never the best control."""
WORKLOADS = {
    "search": ["--env.kind=search"],
    "repair": ["--env.kind=repair"],
    "math": ["--env.kind=math"],
    "null": ["--env.kind=search", "--env.informativeness=0"],
}
DRIFTING = ("search", "repair", "null")
BIG = [
    "--env.kind=repair", "--allocation.trainer=2048", "--rollout.groups_per_batch=160",
    "--bucket.0.engines=1024", "--bucket.1.engines=512", "--bucket.2.engines=512", "--bucket.3.engines=512",
]  # fmt: skip
"""10,240 devices (8,192 roll out, on 2,560 engines), 2,560 trajectories of about 40 turns."""
KEPT = (
    "ok", "policy", "mode", "seed", "tokens_sampled", "tokens_per_s", "makespan_s", "time_to_90_s", "last_finished_s",
    "tail_share", "bound_s", "makespan_over_bound", "utilisation", "stage_s", "kv_preemptions", "recomputed_tokens",
    "reused_tokens", "turns", "turns_cut", "lag_max", "tail_wait_s", "trainer_busy_s",
)  # fmt: skip
FIGURES = (
    "tokens_per_s", "makespan_s", "makespan_over_bound", "time_to_90_s", "last_finished_s", "kv_preemptions", "turns_cut",
)  # fmt: skip
"""Of which a summary gives the mean over the seeds."""
Line = dict[str, Any]


def emit(line: Line) -> None:
    print(json.dumps(line), flush=True)


# --- speed


def speed(policy: str) -> Iterator[Line]:
    """CPU seconds of whole runs in this process, against the limits that are promised."""
    cells = [
        ("10 steps, 48 devices, 512 trajectories of 40 turns", DRIFT, ["--run.steps=10", "--env.kind=repair"], 60.0),
        ("10,240 devices, 100,000 turns", BATCH, BIG, 300.0),
    ]
    for name, file, overrides, limit_s in cells:
        simulation = Simulation(plan(load(file, [*overrides, f"--scheduler.policy={policy}"])))
        began = time.process_time()
        report = simulation.run()
        cpu_s = time.process_time() - began
        yield {
            "bench": "sim", "figure": name, "policy": policy, "turns": report.turns, "events": simulation.events,
            "cpu_s": round(cpu_s, 2), "limit_s": limit_s, "us_a_turn": round(cpu_s / report.turns * 1e6, 1),
            "holds": cpu_s <= limit_s,
        }  # fmt: skip


# --- cells


def cell(job: tuple[str, str, str, list[str], int]) -> Line:
    """One `libra simulate`, in a process of its own."""
    table, workload, policy, overrides, seed = job
    file = DRIFT if table == "drift" else BATCH
    command = [sys.executable, "-m", "libra.cli", "simulate", file, "--json", *overrides]
    command += [f"--scheduler.policy={policy}", f"--run.seed={seed}"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    line: Line = {"bench": "sim", "table": table, "workload": workload, "policy": policy, "seed": seed}
    line["wall_s"] = round(time.monotonic() - began, 2)
    if done.returncode not in (0, 1) or not done.stdout:
        return line | {"ok": False, "error": done.stderr[-500:]}
    report = json.loads(done.stdout)
    return line | {key: report[key] for key in KEPT}


def jobs(args: argparse.Namespace) -> Iterator[tuple[str, str, str, list[str], int]]:
    policies = args.policies.split(",") if args.policies else list(POLICIES)
    wanted = args.workloads.split(",") if args.workloads else None
    changes = [f"--{change}" for change in args.set]
    workloads = {**WORKLOADS, **{Path(t).stem: [f"--env.trace={Path(t).absolute()}"] for t in args.trace}}
    if args.slice in ("all", "table"):
        for seed in range(args.seeds if args.seeds is not None else 5):
            for name, overrides in workloads.items():
                if wanted is None or name in wanted:
                    yield from (("table", name, policy, [*overrides, *changes], seed) for policy in policies)
    if args.slice in ("all", "drift"):
        for seed in range(args.seeds if args.seeds is not None else 3):
            for name in DRIFTING:
                if wanted is None or name in wanted:
                    yield from (("drift", name, policy, [*WORKLOADS[name], *changes], seed) for policy in policies)


# --- what the cells say


def summarise(lines: Iterable[Line]) -> Iterator[Line]:
    """Each policy by table and workload: means over the seeds, and paired ratios against the best control by throughput."""
    cells: dict[tuple[str, str], dict[str, dict[int, Line]]] = {}
    for line in lines:
        if "table" in line and line.get("ok"):
            place = cells.setdefault((line["table"], line["workload"]), {})
            place.setdefault(line["policy"], {})[line["seed"]] = line
    for (table, workload), policies in cells.items():
        controls = [p for p in policies if p not in ("causal", FOREKNOWING)] or list(policies)
        best = max(controls, key=lambda p: statistics.fmean(c["tokens_per_s"] for c in policies[p].values()))
        for policy, by_seed in policies.items():
            seeds = sorted(set(by_seed) & set(policies[best]))
            row: Line = {"bench": "sim", "summary": table, "workload": workload, "policy": policy, "best_control": best}
            for figure in FIGURES:
                values = [c[figure] for c in by_seed.values() if c[figure] is not None]
                row[figure] = round(statistics.fmean(values), 3) if values else None
            for figure in ("tokens_per_s", "makespan_s", "time_to_90_s"):
                ratios = [by_seed[s][figure] / policies[best][s][figure] for s in seeds if policies[best][s][figure]]
                if ratios:
                    row[f"{figure}_ratio"] = [round(f(ratios), 4) for f in (statistics.fmean, min, max)]
            yield row | {"seeds": len(seeds)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", choices=["all", "speed", "table", "drift"], default="all")
    parser.add_argument("--policies", help="separated by commas; all by default")
    parser.add_argument("--workloads", help="separated by commas; all by default")
    parser.add_argument("--seeds", type=int, help="5 for the table and 3 under drift by default")
    parser.add_argument("--part", default="1/1", help="i/n: only every n-th cell, from the i-th")
    parser.add_argument("--trace", nargs="*", default=[], help="trace files that join the workloads of the table")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes of the configuration, in each cell"
    )
    parser.add_argument("--speed-policy", default="least_loaded")
    parser.add_argument(
        "--summary", nargs="+", metavar="FILE", help="summarise the lines of these files, simulate nothing"
    )
    args = parser.parse_args()
    if args.summary:
        for line in summarise(json.loads(x) for name in args.summary for x in Path(name).read_text().splitlines()):
            emit(line)
        return 0
    ok = True
    if args.slice in ("all", "speed"):
        for line in speed(args.speed_policy):
            ok = ok and line["holds"]
            emit(line)
    part, parts = map(int, args.part.split("/"))
    todo = list(jobs(args))[part - 1 :: parts]
    found: list[Line] = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for line in pool.map(cell, todo):
            found.append(line)
            emit(line)
    for line in summarise(found):
        emit(line)
    return 0 if ok and all(line["ok"] for line in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
