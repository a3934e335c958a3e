"""What a tool call costs the controller. Prints one JSON line.

    python tests/bench/tools.py [CALLS]

`cpu_us` is the parent's CPU time a call, `wall_us` the time between calls, one at a time and 32 side by side.
"""

import json
import sys
import time
from pathlib import Path

import anyio

from libra.config.worlds import ToolLimits
from libra.env.calculator import tool
from libra.env.tools.pool import ToolPool


async def main(calls: int) -> None:
    begun = time.perf_counter()
    async with ToolPool({"calculator": Path(tool.__file__)}, ToolLimits()) as pool:
        row: dict[str, float] = {"bench": "tools", "calls": calls, "workers": 2}  # type: ignore[dict-item]
        row["start_ms"] = (time.perf_counter() - begun) * 1e3

        async def some(n: int) -> None:
            for _ in range(n):
                await pool.call("calculator", "43 - 12")

        for name, tasks in (("one", 1), ("side_by_side", 32)):
            await some(50)
            cpu, wall = time.process_time(), time.perf_counter()
            async with anyio.create_task_group() as group:
                for _ in range(tasks):
                    group.start_soon(some, calls // tasks)
            done = calls // tasks * tasks
            row[f"{name}_cpu_us"] = (time.process_time() - cpu) / done * 1e6
            row[f"{name}_wall_us"] = (time.perf_counter() - wall) / done * 1e6
        begun = time.perf_counter()
        await pool.call("calculator", "43 - 12", "flood")
        row["flood_50_mb_ms"] = (time.perf_counter() - begun) * 1e3
    print(json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}))


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
