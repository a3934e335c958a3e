"""Does a consumer that stops reading for good hold anybody up? `just bench publication`, one JSON line a case.

A trainer publishes 24 MB again and again while one consumer pulls whatever is newest. The control is that alone; beside it,
in turn with it, the same with one and with eight consumers that ask for a version and then never read a byte of it.
"""

import argparse
import json
import statistics
import threading
import time
from contextlib import ExitStack

from libra.weights.publisher import Publisher
from libra.weights.puller import Puller
from tests.weights.weights_parts import INCARNATION, TOKEN, RawReader, filled

VERSIONS = 60
PAUSE_S = 0.03
"""Between two versions: the trainer's step."""
DEADLINE_S = 30.0


def case(silent: int) -> tuple[list[float], int]:
    """(milliseconds of each publish, versions that the reading consumer got) beside `silent` consumers that do not read."""
    took: list[float] = []
    got: set[int] = set()
    done = threading.Event()
    with ExitStack() as stack:
        publisher = Publisher(token=TOKEN, incarnation=INCARNATION)
        stack.callback(publisher.close)
        shards = [filled(version) for version in range(2)]
        publisher.publish(0, shards[0])
        for _ in range(silent):
            reader = RawReader(publisher.address)
            stack.callback(reader.close)
            reader.pull(0)

        def consume() -> None:
            puller = Puller(TOKEN, INCARNATION)
            while not done.is_set():
                newest = publisher.newest
                if newest not in got:
                    got.add(puller.pull(newest, [publisher.address], DEADLINE_S)[0])
            puller.close()

        consumer = threading.Thread(target=consume)
        consumer.start()
        for version in range(1, VERSIONS + 1):
            began = time.perf_counter()
            publisher.publish(version, shards[version % 2])
            took.append(1000 * (time.perf_counter() - began))
            time.sleep(PAUSE_S)
        done.set()
        consumer.join(DEADLINE_S)
    return took[5:], len(got)


def spread(values: list[float]) -> dict[str, float]:
    return {
        "min": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "max": round(max(values), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    medians: dict[int, list[float]] = {0: [], 1: [], 8: []}
    received: dict[int, list[int]] = {0: [], 1: [], 8: []}
    for _ in range(options.repeats):
        for silent, mine in medians.items():
            took, got = case(silent)
            mine.append(statistics.median(took))
            received[silent].append(got)
    for silent, mine in medians.items():
        ratios = [a / b for a, b in zip(mine, medians[0], strict=True)]
        line = {
            "bench": "publication",
            "silent": silent,
            "publish_ms": spread(mine),
            "ratio_to_control": spread(ratios),
            "versions": VERSIONS,
            "received_by_the_reader": received[silent],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
