"""A wake-up that comes too late says nothing; every other fault of a callback is told."""

import asyncio

import pytest

from libra.wire.loop import ignore_stale_wakeups


def test_only_stale_wakeups_go_by_unsaid(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        ignore_stale_wakeups()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        future.cancel()
        loop.call_soon(lambda: 1 // 0)
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert "ZeroDivisionError" in caplog.text
    assert "InvalidStateError" not in caplog.text
