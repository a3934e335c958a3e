"""What viewers cost the controller: `python -m tests.bench.control [--ranks N] [--live N] [--events N]`, JSON lines.

One made-up run in virtual time (as in `tests.bench.core`) with as many ranks and live trajectories as asked for drives a real
`Core` and a real control room. Three parts, each with its control in the same run:

- `snapshot`: CPU time of one snapshot, by part: looking (build), encoding; every --gap events, as at full load.
- `follow`: CPU time of an event: the core alone, and what the follower adds, on the same events.
- `viewers`: wall and CPU time of handling the same number of events on a loop with no viewer, with one that reads, and with
  one that never reads; and the worst lag of a 1 ms heartbeat on that loop.
"""

import argparse
import gc
import heapq
import json
import socket
import tempfile
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from libra.control.messages import PROTOCOL, TOPICS, Hello, Watch
from libra.controller.control import ControlRoom
from libra.controller.monitor import Monitor
from libra.core import commands as c
from libra.core import events as e
from libra.telemetry.display import RunView
from libra.telemetry.summary import Tally
from libra.wire.frames import pack
from libra.wire.messages import EngineStats, Heartbeat, RoleBeat
from tests.bench.core import Load, config_of, reference_us

GAP_EVENTS = 500
LOOP_EVENTS = 50
"""Events between two turns of the loop."""


class Gauges:
    """Every engine has said of itself what engines say."""

    def __init__(self, engines: int) -> None:
        self.view = RunView(run="bench", mode="async", seed=0, steps=1)
        self.tally = Tally("bench", "async", 0)
        self.stats = {id: EngineStats(0, 12, 3, 40_000, 9000, 123_456, 50_000, 20_000) for id in range(engines)}


class Watched(Load):
    """A load that a control room follows."""

    def __init__(self, policy: str, ranks: int, live: int) -> None:
        self.follow_ns: list[int] = []
        self.event_ns: list[int] = []
        engines = max(32, ranks * 32 // 72)  # 16, 8, 6 and 2 of TP 1, 2, 4 and 8 are 72 ranks
        super().__init__(config_of(policy, engines, live), 1)
        self.gauges = Gauges(len(self.core.fleet.engines))
        self.monitor = Monitor(self.config.deadline, lambda: self.now, print)
        for rank in self.core.fleet.ranks:
            self.monitor.joined(rank, lambda: None)
        self.room = ControlRoom(self.core, self.gauges, self.monitor.linked, lambda: self.now, "beef", print)

    def run(self, events: int) -> None:
        for _ in range(events):
            self.now, _, event = heapq.heappop(self.heap)
            began = time.thread_time_ns()
            commands = self.core.handle(event)
            handled = time.thread_time_ns()
            self._observe(event, commands)
            self.follow_ns.append(time.thread_time_ns() - handled)
            self.event_ns.append(handled - began)
            for command in commands:
                self.carry_out(command)

    def carry_out(self, command: c.Command) -> None:
        if isinstance(command, c.StartRole):
            self.monitor.role_started(command.rank, command.seq)
            self.monitor.heartbeat(command.rank, Heartbeat(1, (RoleBeat(command.seq, "generate", 12_345),)))
        super().carry_out(command)

    def _observe(self, event: e.AnyEvent, commands: list[c.Command]) -> None:
        self.room.event(event)
        for command in commands:
            self.room.command(command)


def figures_ms(ns: list[int]) -> dict[str, float]:
    ordered = sorted(ns)
    at = {p: ordered[min(len(ordered) - 1, int(p * len(ordered)))] / 1e6 for p in (0.5, 0.9, 0.99)}
    return {**{f"p{100 * p:g}": round(v, 3) for p, v in at.items()}, "max": round(ordered[-1] / 1e6, 3), "n": len(ns)}


def snapshots(load: Watched, rounds: int) -> dict[str, object]:
    build, encode, size = list[int](), list[int](), 0
    make = load.room.hub._make
    for n in range(rounds):
        load.run(GAP_EVENTS)
        began = time.thread_time_ns()
        snapshot = make(n)
        built = time.thread_time_ns()
        frame = pack(snapshot)
        encode.append(time.thread_time_ns() - built)
        build.append(built - began)
        size = len(frame)
    s = msgspec.msgpack.decode(frame[4:])
    counts = {"ranks": len(s["ranks"]), "engines": len(s["engines"]), "live": s["tail_of"]}
    whole = [a + b for a, b in zip(build, encode, strict=True)]
    return {
        **counts,
        "bytes": size,
        "build_ms": figures_ms(build),
        "encode_ms": figures_ms(encode),
        "whole_ms": figures_ms(whole),
    }


async def loop(load: Watched, events: int, viewers: str) -> dict[str, object]:
    """Handle `events` on a loop with a heartbeat; the run's clock goes by the wall here, so that snapshots come due."""
    lags: list[int] = []
    began_at, load_now = time.monotonic(), load.now
    load.room.hub.clock = lambda: load_now + time.monotonic() - began_at

    async def heartbeat() -> None:
        while True:
            due = time.monotonic_ns() + 1_000_000
            await anyio.sleep(0.001)
            lags.append(time.monotonic_ns() - due)

    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "run").mkdir()
        opened = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.room.run, directory, directory / "run", opened)
            await opened.wait()
            reader: socket.socket | None = None
            taken = 0
            if viewers != "none":
                reader = socket.socket(socket.AF_UNIX)
                reader.connect(str(directory / "view.sock"))
                reader.sendall(pack(Hello(PROTOCOL)) + pack(Watch(4.0, TOPICS)))
                while not load.room.hub.wants("decision"):  # noqa: ASYNC110 - the hub has no event for it
                    await anyio.sleep(0.001)
            if viewers == "reads" and reader is not None:
                reader.setblocking(False)

            tasks.start_soon(heartbeat)
            built, cpu, wall = load.room.hub.built, time.process_time_ns(), time.monotonic_ns()
            for done in range(0, events, LOOP_EVENTS):
                load.run(LOOP_EVENTS)
                await anyio.lowlevel.checkpoint()
                if viewers == "reads" and reader is not None and done % 1000 == 0:
                    try:
                        while chunk := reader.recv(1 << 20):
                            taken += len(chunk)
                    except BlockingIOError:
                        pass
            wall, cpu = time.monotonic_ns() - wall, time.process_time_ns() - cpu
            row = {"viewer": viewers, "events": events, "wall_s": round(wall / 1e9, 3), "cpu_s": round(cpu / 1e9, 3)}
            row |= {
                "snapshots_built": load.room.hub.built - built,
                "bytes_taken": taken,
                "lag_ms": figures_ms(lags or [0]),
            }
            row |= {"news_missed": sum(v.missed for v in load.room.hub.viewers)}
            if reader is not None:
                reader.close()
            tasks.cancel_scope.cancel()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="causal,least_loaded")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--live", type=int, default=10_000)
    parser.add_argument("--warm", type=int, default=22_000, help="events before anything is timed")
    parser.add_argument("--events", type=int, default=10_000)
    args = parser.parse_args()
    for policy in args.policies.split(","):
        load = Watched(policy, args.ranks, args.live)
        load.run(args.warm)
        load.follow_ns.clear()
        load.event_ns.clear()
        base = {"bench": "control", "policy": policy}
        print(
            json.dumps({**base, "part": "snapshot", "reference_us": reference_us(), **snapshots(load, 40)}), flush=True
        )
        row = {"core_ms": figures_ms(load.event_ns), "follower_ms": figures_ms(load.follow_ns)}
        row["follower_share"] = round(sum(load.follow_ns) / sum(load.event_ns), 3)
        print(json.dumps({**base, "part": "follow", "reference_us": reference_us(), **row}), flush=True)
        for viewers in ("none", "reads", "never reads", "none"):
            figures = anyio.run(loop, load, args.events, viewers)
            print(json.dumps({**base, "part": "viewers", "reference_us": reference_us(), **figures}), flush=True)
        del load
        gc.collect()


if __name__ == "__main__":
    main()
