"""A fixed number of worker processes that serve tool calls, and stay in number whatever the tools do.

    session --call()--> [ FIFO wait for a free worker ] --> worker process --> reply
                                                        \\-> deadline, death, cancellation: killed, its place left empty

| who waits | for | unblocked by | bounded by |
|---|---|---|---|
| `call` | a free place, first come first served | the end of an earlier call | start + deadline of each one ahead |
| `call` on an empty place | a fresh worker's first word | the worker | `START_DEADLINE_S` |
| `call` | the reply | the worker | `deadline_s`, counted from the moment the worker has the call |

An empty place is filled by the next call that gets it, so the pool needs no task of its own and a worker that cannot be
started is the EnvError of a call, never a silent wait. Used by environments, inside the controller's event loop.
"""

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal

import anyio
from msgspec import Struct

from libra.config.worlds import ToolLimits
from libra.env.faults import Fault
from libra.env.tools.process import ToolProcess
from libra.env.tools.worker import FAULTS, REQUEST
from libra.errors import EnvError

START_DEADLINE_S = 20.0
"""From the fork to the worker's first word: 25 ms on an idle machine."""
REAP_DEADLINE_S = 5.0
"""For killed workers to disappear when the pool closes."""
_FAULT_CODES: dict[str, int] = {kind: code for code, kind in enumerate(FAULTS)}


class ToolReply(Struct, frozen=True):
    """What a tool returned. `seconds` counts from the moment a worker had the call."""

    status: Literal["ok", "error"]
    output: bytes
    truncated: bool
    seconds: float


class ToolPool:
    """`async with ToolPool({"name": file}, limits) as pool: await pool.call("name", "argument")`."""

    def __init__(
        self, tools: Mapping[str, Path], limits: ToolLimits, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables` are added to the workers' environment: where a tool finds its data."""
        self._tools = dict(tools)
        self._variables = dict(variables or {})
        self._limits = limits
        self._free = anyio.Semaphore(limits.workers, fast_acquire=True)
        self._places: deque[ToolProcess | None] = deque([None] * limits.workers)
        self._alive: set[ToolProcess] = set()
        self._dying: list[ToolProcess] = []
        self._open = False
        self.replaced = 0
        """Workers killed or dead so far."""

    @property
    def pids(self) -> list[int]:
        """The worker processes of now."""
        return sorted(worker.pid for worker in self._alive)

    async def __aenter__(self) -> "ToolPool":
        """Start all workers side by side. EnvError, with its log, if one does not come up."""
        self._open = True
        try:
            begun = [self._spawn() for _ in self._places]
            for worker in begun:
                await self._ready(worker)
        except BaseException:
            await self.aclose()
            raise
        self._places = deque(begun)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill all workers (they hold nothing worth saving) and reap them."""
        self._open = False
        for worker in sorted(self._alive, key=lambda w: w.pid):
            self._bury(worker)
        self._places = deque([None] * len(self._places))
        with anyio.CancelScope(shield=True), anyio.move_on_after(REAP_DEADLINE_S):
            while self._reap():  # noqa: ASYNC110 - the end of a process is no event of this loop
                await anyio.sleep(0.002)

    async def call(self, tool: str, argument: str, fault: Fault = "none") -> ToolReply:
        """Run `tool` on `argument` in a worker.

        EnvError: the tool hung beyond its deadline, its process died, or no process could be started.
        """
        if tool not in self._tools:
            raise ValueError(f"no tool {tool!r} in this pool; it has {', '.join(self._tools)}")
        name, body = tool.encode(), argument.encode()
        request = REQUEST.pack(_FAULT_CODES[fault], len(name), len(body)) + name + body
        await self._free.acquire()
        worker, sound = self._places.popleft(), False
        try:
            if worker is None:
                worker = self._spawn()
                await self._ready(worker)
            begun = time.perf_counter()
            with anyio.fail_after(self._limits.deadline_s):
                ok, output, truncated = await worker.call(request)
            sound = True
            return ToolReply("ok" if ok else "error", output, truncated, time.perf_counter() - begun)
        except TimeoutError:
            raise EnvError(
                f"tool {tool!r} did not answer within {self._limits.deadline_s} s and was killed; "
                "a tool that is only slow needs a larger env.tool.deadline_s"
            ) from None
        finally:
            if worker is not None and not sound:
                self._bury(worker)
            self._places.append(worker if sound else None)
            self._free.release()

    def _spawn(self) -> ToolProcess:
        if not self._open:
            raise EnvError("the tool pool is not open: call tools inside `async with environment.running()`")
        self._reap()
        worker = ToolProcess(self._tools, self._variables, self._limits.memory_bytes, self._limits.output_bytes)
        self._alive.add(worker)
        return worker

    async def _ready(self, worker: ToolProcess) -> None:
        try:
            with anyio.fail_after(START_DEADLINE_S):
                await worker.ready()
        except TimeoutError:
            raise EnvError(
                f"a tool worker did not come up within {START_DEADLINE_S} s; its log ends: {worker.log_tail()!r}"
            ) from None

    def _bury(self, worker: ToolProcess) -> None:
        if worker in self._alive:
            self._alive.discard(worker)
            worker.kill()
            self._dying.append(worker)
            self.replaced += self._open

    def _reap(self) -> int:
        """Collect the killed ones that have ended; says how many have not."""
        self._dying = [worker for worker in self._dying if not worker.reaped()]
        return len(self._dying)


async def call_in(pool: ToolPool | None, tool: str, argument: str, fault: Fault) -> ToolReply:
    """A call in the pool of an environment that runs; RuntimeError where it does not."""
    if pool is None:
        raise RuntimeError("no tools are running: act inside `async with environment.running()`")
    return await pool.call(tool, argument, fault)
