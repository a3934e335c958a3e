"""From SpawnRole to the role's hello: a fresh child against a spare, and how long the spare took to be ready.

    just bench spare

The controller's end is played by this process; the role is a torch engine of the quickstart's size. One JSON line, with the
load of the machine. `spare_ready_s` counts from the first role's hello: a spare is begun late and yields to everybody.
"""

import json
import os
import tempfile
import time
from pathlib import Path

from libra.config import load
from libra.wire import messages as m
from tests.rank.supervised import REPOSITORY, Supervised

REPEATS = 2


def main() -> None:
    config = load(REPOSITORY / "configs/quickstart.toml")
    cold, spare, ready = [], [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as directory, Supervised(Path(directory)) as run:
            link = run.join(m.Welcome(0.1, 600.0, "torch", 1))

            roles = []

            def hello(start: int, run=run, link=link, roles=roles) -> float:
                began = time.perf_counter()
                link.send(run.order(start, config=config))
                hello, role = run.accept()
                assert hello.start == start
                roles.append(role)  # its link stays open: the role lives on
                return time.perf_counter() - began

            cold.append(hello(1))
            began = time.perf_counter()
            while not link.next(m.Heartbeat).spare:
                pass
            ready.append(time.perf_counter() - began)
            spare.append(hello(2))
    row = {"bench": "spare", "cold_s": cold, "from_spare_s": spare, "spare_ready_s": ready, "load": os.getloadavg()[0]}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
