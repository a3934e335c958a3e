"""The pool against real worker processes. Deadlines are generous where they must not strike, short where they must."""

import os
import signal
import tracemalloc
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from libra.config.worlds import ToolLimits
from libra.env.calculator import tool
from libra.env.tools.pool import ToolPool
from libra.errors import EnvError

pytestmark = pytest.mark.process
CALCULATOR = {"calculator": Path(tool.__file__)}
MIB = 1 << 20


@pytest.fixture
def pooled():
    """Runs an async test body inside an open pool."""

    def run(body, tools=CALCULATOR, **limits):
        async def main():
            with anyio.fail_after(60):
                async with ToolPool(tools, ToolLimits(**limits)) as pool:
                    await body(pool)

        anyio.run(main)

    return run


@pytest.fixture
def tool_file(tmp_path):
    def write(source):
        (tmp_path / "made.py").write_text(source)
        return {"made": tmp_path / "made.py"}

    return write


def test_calls_are_answered_each_with_its_own_reply(pooled):
    async def body(pool):
        replies = {}

        async def ask(i):
            replies[i] = await pool.call("calculator", f"{i} + 1")

        async with anyio.create_task_group() as tasks:
            for i in range(50):
                tasks.start_soon(ask, i)
        assert {i: r.output for i, r in replies.items()} == {i: str(i + 1).encode() for i in range(50)}
        assert {r.status for r in replies.values()} == {"ok"}
        assert pool.replaced == 0

    pooled(body, workers=3)


def test_a_tool_that_returns_an_error_is_no_failure(pooled):
    async def body(pool):
        reply = await pool.call("calculator", "1 - 2")
        assert (reply.status, reply.output, reply.truncated) == ("error", b"range", False)
        assert pool.replaced == 0

    pooled(body)


def test_waiting_calls_are_served_first_come_first_served(pooled):
    async def body(pool):
        served = []

        async def ask(i):
            await pool.call("calculator", "1 + 1")
            served.append(i)

        async with anyio.create_task_group() as tasks:
            for i in range(20):
                tasks.start_soon(ask, i)
        assert served == list(range(20))

    pooled(body, workers=1)


def test_a_hanging_tool_is_killed_at_its_deadline_and_the_one_behind_it_is_served(pooled):
    async def body(pool):
        before = pool.pids
        answers = []

        async def hang():
            with pytest.raises(EnvError, match=r"did not answer within 1\.0 s"):
                await pool.call("calculator", "1 + 1", "hang")

        async def behind():
            answers.append(await pool.call("calculator", "2 + 2"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            tasks.start_soon(behind)
        assert answers[0].output == b"4"
        assert pool.replaced == 1
        assert not set(before) & set(pool.pids)

    pooled(body, workers=1, deadline_s=1.0)


def test_a_crashing_tool_is_named_with_its_signal_and_replaced(pooled):
    async def body(pool):
        with pytest.raises(EnvError, match=signal.SIGABRT.name):
            await pool.call("calculator", "1 + 1", "crash")
        assert (await pool.call("calculator", "1 + 1")).output == b"2"
        assert pool.replaced == 1

    pooled(body, workers=1)


def test_a_flood_is_thrown_away_without_being_held(pooled):
    async def body(pool):
        tracemalloc.start()
        try:
            reply = await pool.call("calculator", "40 + 2", "flood")
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (reply.status, reply.truncated, len(reply.output)) == ("ok", True, 1000)
        assert reply.output.startswith(b"42\nxxx")
        assert peak_bytes < MIB
        assert (await pool.call("calculator", "1 + 1")).output == b"2"  # the frame was read to its end
        assert pool.replaced == 0

    pooled(body, workers=1, output_bytes=1000, deadline_s=30.0)


def test_output_of_exactly_the_limit_is_whole_and_one_byte_more_is_cut(pooled, tool_file):
    async def body(pool):
        exact, more = await pool.call("made", "1000"), await pool.call("made", "1001")
        assert (len(exact.output), exact.truncated) == (1000, False)
        assert (len(more.output), more.truncated) == (1000, True)

    pooled(body, tools=tool_file("def run(argument): return True, 'y' * int(argument)"), output_bytes=1000)


def test_a_failing_tool_is_an_error_reply(pooled):
    async def body(pool):
        reply = await pool.call("calculator", "1 + 1", "fail")
        assert (reply.status, reply.output) == ("error", b"failed on order")
        assert pool.replaced == 0

    pooled(body)


def test_an_exception_in_a_tool_is_its_error_and_the_worker_lives_on(pooled, tool_file):
    async def body(pool):
        reply = await pool.call("made", "0")
        assert (reply.status, reply.output) == ("error", b"ZeroDivisionError: division by zero")
        assert (await pool.call("made", "4")).output == b"0.25"
        assert pool.replaced == 0

    pooled(body, tools=tool_file("def run(argument): return True, str(1 / int(argument))"), workers=1)


def test_memory_beyond_the_limit_is_the_tools_error(pooled, tool_file):
    async def body(pool):
        assert (await pool.call("made", str(512 * MIB))).output.startswith(b"MemoryError")
        assert (await pool.call("made", str(MIB))).status == "ok"

    source = "def run(argument): return True, str(len(bytearray(int(argument))))"
    pooled(body, tools=tool_file(source), memory_bytes=256 * MIB)


def test_what_a_tool_prints_goes_to_the_log_and_its_last_words_into_the_error(pooled, tool_file):
    async def body(pool):
        assert (await pool.call("made", "go on")).output == b"fine"
        with pytest.raises(EnvError, match=r"exit code 3.*cannot reach the moon"):
            await pool.call("made", "die")

    source = (
        "import os\n"
        "def run(argument):\n"
        "    print('cannot reach the moon', flush=True)\n"
        "    return os._exit(3) if argument == 'die' else (True, 'fine')\n"
    )
    pooled(body, tools=tool_file(source), workers=1)


def test_a_large_argument_crosses_the_pipe(pooled, tool_file):
    async def body(pool):
        assert (await pool.call("made", "z" * 3_000_000)).output == b"3000000"

    pooled(body, tools=tool_file("def run(argument): return True, str(len(argument))"), deadline_s=30.0)


def test_a_worker_sees_none_of_the_parents_secrets(pooled, tool_file, monkeypatch):
    monkeypatch.setenv("LIBRA_TOKEN", "secret")

    async def body(pool):
        assert "LIBRA_TOKEN" not in (await pool.call("made", "")).output.decode()

    pooled(body, tools=tool_file("import os\ndef run(argument): return True, ' '.join(os.environ)"))


def test_a_tool_that_cannot_be_loaded_fails_at_the_start_with_its_log(tool_file):
    async def main():
        async with ToolPool(tool_file("def run(argument: return"), ToolLimits()):
            pass

    with pytest.raises(EnvError, match="SyntaxError"):
        anyio.run(main)


def test_an_unknown_tool_is_refused_by_name(pooled):
    async def body(pool):
        with pytest.raises(ValueError, match=r"'abacus'.*calculator"):
            await pool.call("abacus", "1 + 1")

    pooled(body)


def test_a_cancelled_call_leaves_no_stale_reply_for_the_next_one(pooled):
    async def body(pool):
        before = pool.pids
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.call, "calculator", "1 + 1")
            await checkpoint()
            await checkpoint()
            tasks.cancel_scope.cancel()
        assert (await pool.call("calculator", "40 + 2")).output == b"42"
        assert pool.pids != before

    pooled(body, workers=1)


def test_cancelling_a_hanging_call_and_one_that_waits_for_it_frees_the_place(pooled):
    async def body(pool):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.call, "calculator", "1 + 1", "hang")
            tasks.start_soon(pool.call, "calculator", "1 + 1")
            for _ in range(5):
                await checkpoint()
            tasks.cancel_scope.cancel()
        for _ in range(3):
            assert (await pool.call("calculator", "40 + 2")).output == b"42"
        assert pool.replaced == 1

    pooled(body, workers=1, deadline_s=50.0)


def test_a_worker_killed_between_calls_is_one_failure_and_no_more(pooled):
    async def body(pool):
        (pid,) = pool.pids
        signal.pidfd_send_signal(pidfd := os.pidfd_open(pid), signal.SIGKILL)
        await anyio.wait_readable(pidfd)
        os.close(pidfd)
        with pytest.raises(EnvError, match="SIGKILL"):
            await pool.call("calculator", "1 + 1")
        assert (await pool.call("calculator", "1 + 1")).output == b"2"

    pooled(body, workers=1)


def test_a_closed_pool_leaves_no_process_and_refuses_calls():
    async def main():
        async with ToolPool(CALCULATOR, ToolLimits()) as pool:
            pids = pool.pids
            assert len(pids) == 2
        with pytest.raises(EnvError, match="not open"):
            await pool.call("calculator", "1 + 1")
        return pids

    assert not any(Path(f"/proc/{pid}").exists() for pid in anyio.run(main))


def test_closing_under_a_call_fails_that_call():
    async def main():
        pool = ToolPool(CALCULATOR, ToolLimits(workers=1, deadline_s=50.0))
        await pool.__aenter__()

        async def hang():
            with pytest.raises(EnvError):
                await pool.call("calculator", "1 + 1", "hang")

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hang)
                for _ in range(5):
                    await checkpoint()
                await pool.aclose()

    anyio.run(main)
