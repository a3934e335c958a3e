"""What the dashboard sends, costs and weighs: `python -m tests.bench.tui [--seconds S] [--states N] [--only PART]`, JSON lines.

Each figure comes from a process of its own on a real pty, whose output is read and counted here. Parts:

- `bytes`: bytes a second after the first picture, at two states a second of which a tenth of the ranks differs, for a look at
  the ranks; the control is the same table in Textual's DataTable with `update_cell` for the cells that changed, same run.
- `cost`: CPU (share of a core) and memory at 1,024 ranks and 10,000 trajectories in flight; states are decoded from the bytes
  that the socket would have carried. The other screens' bytes too.
- `hour`: memory after a tenth and after all of so many states as an hour has, as fast as they are drawn.
- `first`: from `libra top` to the first whole picture of a live run (a controller's real sockets around a virtual run), and
  the CPU time of that, which a busy machine does not stretch.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
STATES_PER_S = 2.0
SETTLE_S = 4.0
HOUR_STATES = 7200
PARTS = ("bytes", "cost", "hour", "first")
sys.path.append(str(ROOT / "tests" / "tui"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0, help="for each figure, after the first picture")
    parser.add_argument("--states", type=int, default=HOUR_STATES, help="of the part `hour`")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--child", choices=("canvas", "table"))
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--screen", default="ranks")
    parser.add_argument("--fast", type=int, default=0)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.ranks, args.screen, args.fast)
        return
    load_1min = os.getloadavg()[0]
    for part in PARTS if args.only is None else (args.only,):
        {"bytes": sent, "cost": cost, "hour": hour, "first": first}[part](args.seconds, args.states, load_1min)


def tell(part: str, load: float, **figures: object) -> None:
    print(json.dumps({"bench": "tui", "part": part, "load_1min": round(load, 1), **figures}), flush=True)


# --- parts


def sent(seconds: float, _: int, load: float) -> None:
    for width, height in ((80, 24), (200, 60)):
        for ranks in (64, 1024):
            for kind in ("canvas", "table"):
                with Terminal(width, height, "--child", kind, "--ranks", str(ranks)) as t:
                    t.settle(kind)
                    before = t.cpu_s()
                    count, passed = t.read_for(seconds)
                    share = round((t.cpu_s() - before) / passed, 3)
                    rate = round(count / passed)
                    tell(
                        "bytes",
                        load,
                        kind=kind,
                        size=f"{width}x{height}",
                        ranks=ranks,
                        bytes_per_s=rate,
                        cpu_share=share,
                    )


def cost(seconds: float, _: int, load: float) -> None:
    for screen in ("overview", "ranks", "stragglers", "allocation", "trajectory", "events"):
        with Terminal(200, 60, "--child", "canvas", "--ranks", "1024", "--screen", screen) as t:
            t.settle("canvas")
            before = t.cpu_s()
            count, passed = t.read_for(seconds)
            share = (t.cpu_s() - before) / passed
            tell(
                "cost",
                load,
                screen=screen,
                ranks=1024,
                cpu_share=round(share, 4),
                rss_mb=t.rss_mb(),
                bytes_per_s=round(count / passed),
            )


def hour(_: float, states: int, load: float) -> None:
    with Terminal(80, 24, "--child", "canvas", "--ranks", "1024", "--fast", str(states)) as t:
        weights: list[float] = []
        for mark in (b"bench: tenth", b"bench: all"):
            t.read_until(mark, 1800.0)
            weights.append(t.rss_mb())
        tell("hour", load, states=states, ranks=1024, rss_mb_after_a_tenth=weights[0], rss_mb_after_all=weights[1])


def first(_: float, __: int, load: float) -> None:
    """Five times, against a real control room."""
    import tempfile

    sys.path.append(str(ROOT / "tests" / "control"))
    sys.path.append(str(ROOT / "tests" / "core"))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ready, over = threading.Event(), threading.Event()
        server = threading.Thread(target=_serve, args=(directory, ready, over), daemon=True)
        server.start()
        if not ready.wait(60.0):
            raise SystemExit("the control room did not open")
        times: list[float] = []
        cpu: list[float] = []
        for _round in range(5):
            began = time.monotonic()
            with Terminal(80, 24, str(directory / "run"), module="libra.cli") as t:
                t.read_until(b"live", 60.0)
                times.append(time.monotonic() - began)
                cpu.append(t.cpu_s())
        over.set()
        server.join(20.0)
        tell(
            "first",
            load,
            seconds=[round(s, 3) for s in times],
            median_s=round(sorted(times)[2], 3),
            median_cpu_s=sorted(cpu)[2],
        )


def _serve(directory: Path, ready: threading.Event, over: threading.Event) -> None:
    import anyio
    from control_parts import Room

    from libra.config.load import dump
    from libra.config.rundir import CONFIG_FILE, write_pid

    async def serve() -> None:
        room = Room()
        room.step(400)
        async with room.open(directory, abrupt=True):
            (directory / "run" / CONFIG_FILE).write_text(dump(room.shell.config))
            write_pid(directory / "run")
            ready.set()
            while not over.is_set():  # noqa: ASYNC110 - a thread says when
                await anyio.sleep(0.05)

    anyio.run(serve)


# --- a process on a pty


class Terminal:
    """A program on a pty of its own, and what it sends."""

    def __init__(self, width: int, height: int, *words: str, module: str = "tests.bench.tui") -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        environ = {
            **os.environ,
            "TERM": "xterm-256color",
            "SSH_TTY": "/dev/pts/0",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
        }
        command = [sys.executable, "-m", module, *(["top"] if module != "tests.bench.tui" else []), *words]
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=environ, start_new_session=True
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10.0)
        os.close(self._master)

    def settle(self, kind: str) -> None:
        """Until its first pictures are over."""
        self.read_until(b"live" if kind == "canvas" else b"generating", 60.0)
        self.read_for(SETTLE_S)

    def read_for(self, seconds: float) -> tuple[int, float]:
        """(bytes, seconds)."""
        count, began = 0, time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                count += len(self._read())
        return count, time.monotonic() - began

    def read_until(self, mark: bytes, deadline_s: float) -> None:
        tail, end = b"", time.monotonic() + deadline_s
        while mark not in tail:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._master], [], [], left)[0]:
                raise SystemExit(f"{mark!r} did not come within {deadline_s:g} s; got at the end {tail[-400:]!r}")
            tail = (tail + self._read())[-(1 << 16) :]

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 1 << 16)
        except OSError:
            raise SystemExit("the program on the pty has ended") from None

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


# --- the programs that are measured


def child(kind: str, ranks: int, screen: str, fast: int) -> None:
    from tui.terminal import prepare_here

    terminal = prepare_here()
    import msgspec
    from tui_parts import detail, news, state

    from libra.control.snapshot import Snapshot
    from tui.feed import Feed
    from tui.model import Model

    cycle = [msgspec.msgpack.encode(state(n, ranks, tail_of=10_000)) for n in range(1, 65)]
    decoder = msgspec.msgpack.Decoder(Snapshot)
    feed = Feed()

    class Fed:
        """Two states a second, each decoded as if it came over the socket."""

        def start(self) -> None:
            threading.Thread(target=self.run, daemon=True).start()

        def stop(self) -> None: ...
        def show(self, trajectory: int) -> None: ...

        def run(self) -> None:
            feed.say("live")
            n = 0
            while True:
                s = decoder.decode(cycle[n % len(cycle)])
                n += 1
                feed.put(msgspec.structs.replace(s, n=n, t=n * 0.5))
                feed.put(msgspec.structs.replace(detail(), t=n * 0.5))
                if n % 4 == 0:
                    feed.put(news(n // 4))
                time.sleep(1 / STATES_PER_S)

    if kind == "table":
        from tests.bench.tui_table import Table

        Table(Model("bench"), feed, Fed(), terminal).run(mouse=False)
        return
    from tui.app import Dashboard

    app = Dashboard(Model("bench"), feed, Fed(), terminal)
    app.ui.screen = screen  # type: ignore[assignment]
    app.ui.trajectory = 401
    if not fast:
        app.run(mouse=False)
        return

    async def hurry() -> None:
        """Every state drawn, none waited for."""
        import asyncio

        for n in range(1, fast + 1):
            s = decoder.decode(cycle[n % len(cycle)])
            feed.put(msgspec.structs.replace(s, n=n, t=n * 0.5))
            feed.put(news(n))
            app._tick()
            await asyncio.sleep(0)
            if n in (fast // 10, fast):
                app.ui.say("bench: all" if n == fast else "bench: tenth")
                app.draw()
                await asyncio.sleep(1.0)

    class Nothing(Fed):
        def start(self) -> None:
            feed.say("live")
            app.call_later(hurry)

    app.source = Nothing()
    app.run(mouse=False)


if __name__ == "__main__":
    main()
