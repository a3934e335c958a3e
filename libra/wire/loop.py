"""The event loop of a process that serves sockets."""

import asyncio
from typing import Any


def ignore_stale_wakeups() -> None:
    """Call it inside the loop.

    anyio waits for a Unix socket by `add_reader(socket, future.set_result, None)`. Where the wait is cancelled while its
    wake-up is queued already, the loop finds the future done and prints a traceback about a thing that nobody waits for.
    These go by unsaid; everything else is told as ever.
    """
    asyncio.get_running_loop().set_exception_handler(_handle)


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    stale = isinstance(context.get("exception"), asyncio.InvalidStateError) and "set_result" in context.get(
        "message", ""
    )
    if not stale:
        loop.default_exception_handler(context)
