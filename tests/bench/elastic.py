"""What moves of ranks cost and bring. JSON lines, each figure beside its control in the same run.

    python -m tests.bench.elastic                   all parts, about half an hour on two cores
    python -m tests.bench.elastic gain blocking     some of them

blocking   a joining or lending replica is late, hangs or dies: the core's steps against those of a run without fault
moves      random moves in one emulated job: what is lost, what leaks           [--moves 1000 --limit-s 600]
time       one move each way by stage, with the tiny model on real ranks: tokens/s and step time during it and before
gain       ranks that move by the rule against fixed splits, in finished steps per hour of virtual time  [--seeds 3]
live       the same, one pair, by live emulated jobs

`load` is the machine's load average at the end of the part.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench import elastic_gain, elastic_live

Line = dict[str, Any]
PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "gain": elastic_gain.gain,
    "live": elastic_gain.live,
    "blocking": elastic_live.blocking,
    "time": elastic_live.time_of_a_move,
    "moves": elastic_live.moves,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of a simulated run")
    parser.add_argument("--moves", type=int, default=1000)
    parser.add_argument("--limit-s", type=float, default=600.0, help="of the random moves")
    args = parser.parse_args()
    if wrong := [part for part in args.parts if part not in PARTS]:
        parser.error(f"got {wrong[0]}, expected some of {', '.join(PARTS)}")
    for part in args.parts or PARTS:
        for line in PARTS[part](args):
            print(json.dumps({"bench": f"elastic.{part}", **line, "load": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
