"""What the causality tree costs as it learns: `python tests/bench/tree.py [--most N]`, one JSON line a size.

A made-up load with more ways than the tree can hold: prompts without end, sixteen samples each, one to ten tool returns
of three tools. Around 10^3, 10^4, ... learned trajectories the next 1,000 are timed, event by event: the figures must not
grow. Times are CPU time of the thread. `rss_bytes` is what the process has grown by since it was empty, `saved_bytes`
the size of the snapshot.
"""

import argparse
import json
import random
import time
from pathlib import Path

import msgspec

from libra.core.causality import CausalityTree, TreeConfig, save
from libra.core.signal import Signal

SAMPLE = 1_000
"""Trajectories timed at each size."""
LIVE = 512
"""Trajectories that run side by side."""
SIGNALS = [
    Signal(tool, size, status)
    for tool in ("search", "shell", "edit")
    for size in ("small", "medium", "large")
    for status in ("ok", "error")
]


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def reference_us() -> float:
    """CPU microseconds of a fixed loop now: what the machine is worth at this moment."""
    t = time.thread_time()
    for _ in range(200):
        sum(range(1000))
    return round((time.thread_time() - t) / 200 * 1e6, 2)


def percentile(values: list[float], p: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(p * len(values)))] * 1e6, 2)


class Load:
    """Trajectories that run interleaved, as in a run: events of `LIVE` of them in turn."""

    def __init__(self, tree: CausalityTree) -> None:
        self.tree = tree
        self.rng = random.Random(7)
        self.started = 0
        self.finished = 0
        self.live = [self._new() for _ in range(LIVE)]
        self.times: dict[str, list[float]] | None = None

    def _new(self) -> list[float]:
        traj = self.started
        self.started += 1
        self.tree.start(traj, traj // 16, "bench")
        return [traj, self.rng.randint(1, 10), 0, 0.0, 0.0]

    def _timed(self, name: str, call, *args) -> None:
        if self.times is None:
            call(*args)
            return
        t = time.thread_time()
        call(*args)
        self.times[name].append(time.thread_time() - t)

    def run(self, finished: int) -> None:
        """Events of one trajectory after the other until `finished` have ended; questions only while times are kept."""
        rng, tree, i = self.rng, self.tree, 0
        while self.finished < finished:
            i = (i + 1) % LIVE
            it = self.live[i]
            traj, returns, done, tokens, tool_s = it
            tokens += rng.expovariate(1 / 300)
            if done == returns:
                self._timed("finish", tree.finish, traj, tokens, done + 1, tool_s, self.finished // 512)
                self.finished += 1
                self.live[i] = self._new()
                continue
            tool_s += rng.expovariate(2)
            self._timed("advance", tree.advance, traj, SIGNALS[int(rng.random() ** 2 * 18)], tokens, done + 1, tool_s)
            if self.times is not None:
                self._timed("predict", tree.predict, traj)
                self._timed("slices", tree.slices, traj)
            it[2:] = done + 1, tokens, tool_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="learned trajectories at the last size")
    parser.add_argument("--max-nodes", type=int, default=TreeConfig().max_nodes)
    args = parser.parse_args()
    before = rss_bytes()
    tree = CausalityTree(TreeConfig(max_nodes=args.max_nodes))
    load = Load(tree)
    size = 1_000
    while size <= args.most:
        load.run(size)
        load.times = {"advance": [], "predict": [], "slices": [], "finish": []}
        load.run(size + SAMPLE)
        row: dict[str, object] = {"bench": "tree", "learned": size, "nodes": len(tree.nodes)}
        row["nodes_binned"] = sum(n.bins is not None for n in tree.nodes.values())
        row["reference_us"] = reference_us()
        row["rss_bytes"] = rss_bytes() - before
        for name, times in load.times.items():
            row[f"{name}_us"] = {
                "p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "mean": percentile([sum(times) / len(times)], 0)
            }  # fmt: skip
        load.times = None
        if size >= args.most:
            row["saved_bytes"] = len(msgspec.msgpack.encode(save(tree)))
        print(json.dumps(row), flush=True)
        size *= 10


if __name__ == "__main__":
    main()
