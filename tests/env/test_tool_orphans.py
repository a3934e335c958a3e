import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd")]

OWNER = """
import anyio, sys
from libra.config.worlds import CalculatorConfig, ToolLimits
from libra.env.tools.pool import ToolPool
from libra.env.calculator.environment import _TOOL_FILE

async def main():
    async with ToolPool({"calculator": _TOOL_FILE}, ToolLimits(workers=3, deadline_s=100.0)) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.call, "calculator", "1 + 1", "hang")
            await pool.call("calculator", "1 + 1")
            print(*pool.pids, flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture
def owner():
    """A process that owns three workers, one of them hanging in a call; and pidfds of the three."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3
        yield process, pids
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def gone_within_5_s(pidfds):
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    left = set(pidfds)
    while left:
        ended = poll.poll(5_000)
        if not ended:
            return False
        for fd, _ in ended:
            poll.unregister(fd)
            left.discard(fd)
            os.close(fd)
    return True


def test_no_worker_survives_the_sigkill_of_its_owner(owner):
    process, pids = owner
    pidfds = [os.pidfd_open(pid) for pid in pids]
    process.send_signal(signal.SIGKILL)
    assert gone_within_5_s(pidfds)


def test_workers_live_in_sessions_of_their_own_and_ignore_interrupts(owner):
    _, pids = owner
    assert [os.getsid(pid) for pid in pids] == pids
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        ignored = int(next(line for line in status if line.startswith("SigIgn")).split()[1], 16)
        assert ignored >> (signal.SIGINT - 1) & 1


def test_a_child_whose_parent_is_gone_before_the_call_ends_itself():
    program = "from libra.wire.child import die_with_parent; die_with_parent(2**22 + 1); print('alive')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_child_of_a_living_parent_goes_on():
    program = f"from libra.wire.child import die_with_parent; print(die_with_parent({os.getpid()}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"
