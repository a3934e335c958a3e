"""What a gradient replica's share costs, stage by stage: `just bench share`, one JSON line a case.

    python -m tests.bench.share [--steps 30] [--core 2] [--replica 1]

Real roles in processes of their own, the quickstart model, micro-batches of 2,048 tokens. Two kinds of steps in turn: a
plain one (the control: the core computes both micro-batches, a round each), and one in which a replica computes one of
them. `round_ms` and `close_ms` are the core's own times, `backward_ms` the replica's; `offer_ms` and `fetch_ms` are what
this controller waits from an order to the last answer, `pull_ms` the slowest core rank's own part of it. All of a share
but `close_ms` happens while the core is free to run rounds; here it all happens in turn, so that each is measured alone.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from libra.config.schema import Config
from libra.wire import messages as m
from tests.train.role_stage import Replica, Stage

WARM_UP = 3
ROW_TOKENS, ROWS = 102, 20


def micro_batch(seed: int) -> list[m.Sample]:
    """2,040 tokens, half of them sampled."""
    draw, half, n = random.Random(seed), ROW_TOKENS // 2, ROW_TOKENS
    return [
        m.Sample(i, [draw.randrange(40) for _ in range(n)], bytes([0] * half + [1] * half), [-2.0] * n, [0] * n, 1.0)
        for i in range(ROWS)
    ]


def timed(act: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    began = time.perf_counter()
    answers = act()
    return 1000 * (time.perf_counter() - began), answers


def measure(steps: int, core_size: int, replica_size: int) -> dict[str, dict[str, list[float]]]:
    """kind -> stage -> milliseconds of each step."""
    took: dict[str, dict[str, list[float]]] = {"plain": defaultdict(list), "share": defaultdict(list)}
    with Stage(Config(), "float32") as stage:
        core, replica = stage.start("trainer", core_size), Replica(stage, 1, replica_size)
        stage.form(core)
        stage.ask(core, lambda cmd, _: m.StartWarm(cmd)).wait(m.Warmed)
        replica.form()
        tokens = 2 * ROWS * (ROW_TOKENS // 2)

        def core_round(row: dict[str, list[float]], micro: list[m.Sample]) -> None:
            done = stage.ask(core, lambda cmd, i: m.RunRound(cmd, 0, [] if i else micro)).wait(m.RoundFinished)
            row["round_ms"].append(1000 * max(a.seconds for a in done))

        for step in range(2 * (steps + WARM_UP)):
            kind = "share" if step % 2 else "plain"
            row = took[kind]
            ms, _ = timed(lambda at=step: replica.install(at, stage.held(core, at)) or [])
            row["install_ms"].append(ms)
            mine, other = micro_batch(2 * step), micro_batch(2 * step + 1)
            stage.ask(core, lambda cmd, _, at=step: m.Open(cmd, at, at, tokens))
            core_round(row, mine)
            shares = ()
            if kind == "plain":
                core_round(row, other)
            else:
                done = replica.accumulate(step, step, tokens, [other]).wait(m.RoundFinished)
                row["backward_ms"].append(1000 * max(a.seconds for a in done))
                ms, offered = timed(lambda at=step: replica.offer(at).wait(m.ShareOffered))
                row["offer_ms"].append(ms)
                ms, fetched = timed(
                    lambda at=step, o=offered: replica.fetch(core, at, o).wait(m.ShareFetched)  # type: ignore[misc]
                )
                row["fetch_ms"].append(ms)
                row["pull_ms"].append(1000 * max(a.seconds for a in fetched))
                shares = (1,)
            closed = stage.ask(core, lambda cmd, _, at=step, s=shares: m.Close(cmd, at, at + 1, s)).wait(m.StepFinished)
            row["close_ms"].append(1000 * max(a.seconds for a in closed))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--core", type=int, default=2)
    parser.add_argument("--replica", type=int, default=1)
    options = parser.parse_args()
    took = measure(options.steps, options.core, options.replica)
    for kind, stages in took.items():
        line: dict[str, Any] = {"bench": "share", "step": kind, "core": options.core, "replica": options.replica}
        for name, values in stages.items():
            kept = values[WARM_UP * len(values) // (options.steps + WARM_UP) :]
            line[name] = {
                "min": round(min(kept), 2),
                "median": round(statistics.median(kept), 2),
                "max": round(max(kept), 2),
            }
        line["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
