"""What the core costs at size: `python -m tests.bench.core [--policies a,b] [--engines N] [--live N] [--events N]`, JSON lines.

A made-up run in virtual time drives a real `Core`: buckets of four TP degrees (Qwen3-14B on A800 by the cost model), live
trajectories as many as asked for, tool returns whose payload tells something. Each policy first brings the run to its full
load, then `--events` events are timed one by one: all of `Core.handle`, and within it each placement decision and each
question to the causality tree. Times are CPU time of the thread, with the interpreter's own garbage collection; those called
`calm_` are over as many further events with the collector as a controller sets it (`calm_collector`).
`reference_us` is the same fixed loop before, between and after, about 10 on a quiet core: divide by it to compare machines.
`tokens_per_s` is virtual and only says what kind of load it was: a turn's seconds are fixed when it begins.
"""

import argparse
import gc
import heapq
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from libra.config.parts import load_hardware, load_model
from libra.config.schema import BucketConfig, Config, CostConfig, EvalConfig, RolloutConfig, RunConfig, SchedulerConfig
from libra.controller.runtime import calm_collector
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.cost import EngineCost

CONFIGS = Path(__file__).parents[2] / "configs"
BUDGET_TOKENS = 1024
SAMPLES = 16
LAG = 2


def config_of(policy: str, engines: int, live: int) -> Config:
    hardware, model = (
        load_hardware(CONFIGS / "hardware/a800-sxm4-80gb.toml"),
        load_model(CONFIGS / "model/qwen3-14b.toml"),
    )
    shares = ((1, 16), (2, 8), (4, 6), (8, 2))
    buckets = tuple(
        BucketConfig(
            name=f"tp{tp}", tp=tp, engines=max(1, engines * share // 32), max_batch=256,
            kv_tokens=EngineCost(hardware, model, tp).capacity_tokens,
        )
        for tp, share in shares
    )  # fmt: skip
    return Config(
        run=RunConfig(steps=1_000_000),
        bucket=buckets,
        cost=CostConfig(hardware=hardware, model=model),
        rollout=RolloutConfig(
            groups_per_batch=max(1, live // (SAMPLES * (LAG + 1))), samples_per_group=SAMPLES, max_lag=LAG
        ),
        scheduler=SchedulerConfig(policy=policy),
        eval=EvalConfig(at_start=False, at_end=False),
    )


class Clocked:
    """CPU seconds of each call of a method, in place of the method."""

    def __init__(self, owner: object, name: str) -> None:
        self.times: list[int] = []
        self.on = False
        self._call: Callable[..., object] = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if not self.on:
            return self._call(*args, **kwargs)
        began = time.thread_time_ns()
        answer = self._call(*args, **kwargs)
        self.times.append(time.thread_time_ns() - began)
        return answer

    def figures_us(self) -> dict[str, float]:
        ordered = sorted(self.times) or [0]
        at = {p: ordered[min(len(ordered) - 1, int(p * len(ordered)))] / 1e3 for p in (0.5, 0.9, 0.99, 0.999)}
        named = {f"p{100 * p:g}": round(v, 1) for p, v in at.items()}
        return {
            "n": len(self.times),
            **named,
            "max": ordered[-1] / 1e3,
            "mean": round(sum(ordered) / len(ordered) / 1e3, 1),
        }


def reference_us() -> float:
    """CPU microseconds of a fixed loop now: what the machine is worth at this moment (about 10 when it is quiet)."""
    began = time.thread_time_ns()
    for _ in range(1000):
        sum(range(1000))
    return round((time.thread_time_ns() - began) / 1e6, 2)


class Load:
    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.random = random.Random(seed)
        self.core = Core(config, oracle=lambda traj: 300.0 * self.episodes[traj][0])
        self.heap: list[tuple[float, int, e.AnyEvent]] = []
        self.now, self.n, self.sampled = 0.0, 0, 0
        self.episodes: dict[int, list[int]] = {}
        """Turns left, context tokens, sampled tokens."""
        self.handle = Clocked(self.core, "handle")
        self.decide = Clocked(self.core.placement, "decide")
        self.forecast = Clocked(self.core.placement.policy, "forecast")
        self.push(e.RunStarted(0.0))
        for rank in range(1, config.devices + 1):
            self.push(e.RankJoined(0.0, rank, "h", "a800"))

    def push(self, event: e.AnyEvent) -> None:
        self.n += 1
        heapq.heappush(self.heap, (event.t, self.n, event))

    def run(self, events: int) -> None:
        for _ in range(events):
            self.now, _, event = heapq.heappop(self.heap)
            for command in self.core.handle(event):
                self.carry_out(command)

    def carry_out(self, command: c.Command) -> None:
        t, r, seq = self.now, self.random, command.seq
        match command:
            case c.StartRole():
                self.push(e.RoleReady(t + 1, seq, command.rank))
            case c.FormGroup():
                for rank in command.members:
                    self.push(e.GroupFormed(t, seq, rank))
            case c.WarmStart():
                for rank in command.ranks:
                    self.push(e.WarmStarted(t, seq, rank, True, 0.0, 0.0))
                    self.push(e.WeightsHeld(t, rank, 0))
            case c.InstallWeights():
                for rank in command.ranks:
                    self.push(e.WeightsInstalled(t + 0.5 + r.random(), seq, rank, command.version, 1.0))
            case c.OpenTrajectory():
                self.episodes[command.traj] = [min(40, int(r.paretovariate(1.1)) + 1), r.randint(200, 2000), 0]
                self.push(e.TurnReady(t + r.random(), seq, command.traj, self.episodes[command.traj][1], BUDGET_TOKENS))
            case c.Generate():
                episode = self.episodes[command.traj]
                load = self.core.fleet.engines[command.engine].load
                tokens = min(BUDGET_TOKENS, 1 + int(r.expovariate(1 / 300)))
                step_s = self.core.placement.shapes[load.bucket].costs.step_s(load.running, load.context_tokens)
                episode[1] += tokens
                episode[2] += tokens
                self.sampled += tokens
                v = load.version
                self.push(e.TurnGenerated(t + tokens * step_s, seq, command.traj, command.engine, tokens, v, v, "stop"))
            case c.Act():
                self.act(command)
            case c.Discard():
                for traj in command.trajs:
                    del self.episodes[traj]
            case c.Round():
                for rank in command.ranks:
                    self.push(e.RoundDone(t + 0.01, seq, rank, 0.01))
            case c.CloseStep():
                for rank in command.ranks:
                    self.push(e.StepDone(t + 1, seq, rank, True, 0.0, 1.0, 1.0))
                    self.push(e.WeightsHeld(t + 1.1, rank, command.version))
            case _:
                pass

    def act(self, command: c.Act) -> None:
        t, r, episode = self.now, self.random, self.episodes[command.traj]
        episode[0] -= 1
        if episode[0] <= 0:
            reward = float(r.random() < 0.5)
            self.push(e.EpisodeEnded(t + 0.1, command.seq, command.traj, reward, episode[2], episode[1]))
            return
        seen = r.randint(5001, 6000) if episode[0] > 8 and r.random() < 0.2 else r.randint(20, 900)
        status: e.Status = "error" if r.random() < 0.15 else "ok"
        tool = r.choice(("search", "shell", "edit"))
        episode[1] = min(30_000, episode[1] + min(seen, 900))
        wait_s = r.lognormvariate(-1.0, 1.0)
        self.push(
            e.ToolReturned(t + wait_s, command.seq, command.traj, tool, status, seen, wait_s, episode[1], BUDGET_TOKENS)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="least_loaded,causal,cmlfq,expected_cost")
    parser.add_argument("--engines", type=int, default=128)
    parser.add_argument("--live", type=int, default=10_000)
    parser.add_argument("--warm", type=int, default=22_000, help="events before anything is timed")
    parser.add_argument("--events", type=int, default=10_000)
    args = parser.parse_args()
    for policy in args.policies.split(","):
        load = Load(config_of(policy, args.engines, args.live), seed=1)
        load.run(args.warm)
        clocks = (load.handle, load.decide, load.forecast)
        references = [reference_us()]
        for clock in clocks:
            clock.on = True
        began, sampled = load.now, load.sampled
        load.run(args.events)
        stages = load.core.rollout.stages()
        row: dict[str, object] = {"bench": "core", "policy": policy, "engines": len(load.core.fleet.engines)}
        row |= {"live": sum(stages.values()) - stages.get("ended", 0), "stages": stages}
        row |= {"waiting_lanes": sum(s.queued_tokens > 0 for s in load.core.placement.shapes)}
        row |= {"tree_nodes": len(load.core.placement.tree.nodes), "batches": load.core.admission.done}
        row |= {"tokens_per_s": round((load.sampled - sampled) / (load.now - began))}
        row |= {f"{n}_us": k.figures_us() for n, k in zip(("handle", "decide", "forecast"), clocks, strict=True)}
        references.append(reference_us())
        for clock in clocks:
            clock.times.clear()
        usual = gc.get_threshold()
        calm_collector()
        load.run(args.events)
        gc.unfreeze()
        gc.set_threshold(*usual)
        row |= {f"calm_{n}_us": k.figures_us() for n, k in zip(("handle", "decide", "forecast"), clocks, strict=True)}
        row["reference_us"] = [*references, reference_us()]
        print(json.dumps(row), flush=True)
        del load
        gc.collect()


if __name__ == "__main__":
    main()
