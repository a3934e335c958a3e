"""`libra simulate`: a configuration in virtual time, as a table for people or one JSON object for programs."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from libra.cli.arguments import Simulate
from libra.config import Config, load
from libra.config.worlds import WorkloadConfig
from libra.sim.plan import plan
from libra.sim.plots import Plotter
from libra.sim.report import Pace, SimReport
from libra.sim.shell import Simulation
from libra.telemetry import tree_file


def simulate(args: Simulate) -> int:
    """Exit code 0, or 1 where the simulated run itself failed."""
    prepared = plan(simulated(args.config, args.all_overrides(), args.trace))
    plotter = Plotter(prepared.config) if args.plots else None
    simulation = Simulation(prepared, plotter.watch if plotter else None)
    report = simulation.run()
    if args.save_tree:
        tree_file.write(Path(args.save_tree), prepared.config, simulation.core.learned())
    if args.json:
        print(msgspec.json.encode(report).decode())
    else:
        print("\n".join(lines(report)))
    for path in plotter.draw(Path(args.plots)) if plotter and args.plots else ():
        print(f"drawn: {path}", file=sys.stderr)
    return 0 if report.ok else 1


def simulated(file: str, overrides: tuple[str, ...], trace: str | None) -> Config:
    """The configuration; `trace` takes the place of its environment or of its workload's kind."""
    config = load(file, overrides)
    if trace is None:
        return config
    workload = config.env if isinstance(config.env, WorkloadConfig) else WorkloadConfig()
    return structs.replace(config, env=structs.replace(workload, trace=str(Path(trace))))


def lines(report: SimReport) -> list[str]:
    """What people want to know first. The whole is in --json."""
    r = report
    batch = "none was completed"
    if r.time_to_90_s is not None and r.last_finished_s is not None:
        batch = (
            f"90 % ended after {r.time_to_90_s:,.1f} s, all after {r.last_finished_s:,.1f} s; tail {r.tail_share:.0%}"
        )
    shown: dict[str, str] = {
        "run": f"{r.run}: {r.policy} on {r.workload}, {r.mode}, seed {r.seed}, {r.devices} devices",
        "ended": r.reason,
        "makespan": f"{r.makespan_s:,.1f} s, {r.makespan_over_bound:.2f} times the bound of {r.bound_s:,.1f} s "
        f"(work {r.work_bound_s:,.1f}, longest alone {r.longest_alone_s:,.1f})",
        "throughput": f"{r.tokens_per_s:,.0f} tokens/s sampled; {r.trajectories:,} trajectories, {r.turns:,} turns",
        "batch": batch,
        "stages": _seconds(r.stage_s),
        "utilisation": "  ".join(f"{name} {share:.0%}" for name, share in r.utilisation.items()),
        "trainer": f"busy {r.trainer_busy_s:,.1f} s, waiting for a batch {r.tail_wait_s:,.1f} s",
        "kv": f"{r.kv_preemptions:,} pre-emptions, {r.recomputed_tokens:,} tokens recomputed, {r.reused_tokens:,} reused",
        "lag": "nothing was trained" if r.lag_max is None else f"at most {r.lag_max}, mean {r.lag_mean}",
        "pace": "  ".join(_pace(name, pace) for name, pace in r.pace.items()) or "no turn has ended",
        "reward": f"{r.reward_last}; {r.dropped_groups} groups without signal",
    }  # fmt: skip
    width = max(len(name) for name in shown)
    return [f"{name:<{width}}  {text}" for name, text in shown.items()]


def _pace(bucket: str, p: Pace) -> str:
    """Learnt factor, the truth, and the error of predictions without and with it."""
    return (
        f"{bucket} x{p.factor:.2f} (truth x{p.truth:.2f}; off by {p.error_before:.0%}, corrected {p.error_after:.0%})"
    )


def _seconds(stages: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {seconds:,.1f}" for name, seconds in stages.items()) + "  (mean s a trajectory)"
