"""One engine in virtual time: continuous batching with a limited KV room, in closed form between events.

    submit ─> queue ──prefill, all that fit together, decoding stopped──> rows ──one token each a step──> finished
                ^                                                          │
                └──── pre-empted: the newest row gives its room ───────────┘     (its context is prefilled again)

    idle ─> prefill ─> boundary ─> decode ─> boundary ─> ...        (a stretch: steps in which the batch does not change)

The rules are those of `libra.core.cost.batch`, plus what a serving engine has beside: turns that come and go, a prefix cache
in whatever room the rows leave (oldest out first; of one policy version, since weights that changed make it worthless), and
weights that are swapped between two steps. An arrival waits for the end of the step under way. Work is counted lazily: rows
hold the step at which they end, so that an event costs the same in a batch of 1 and of 1,000.

Seconds are those of the cost model times `pace`, which stays as it is during a prefill or a stretch.

The shell calls `settle` when `until` has come, feeds what has finished to the core, then calls `proceed`.
"""

import heapq
from bisect import bisect_right
from collections import deque
from typing import Literal

from libra.core.cost import EngineCost

NEVER = float("inf")


class Row:
    """One turn (or a part of one) on the engine."""

    __slots__ = (
        "cmd", "context", "cut", "end_step", "joined", "left", "oldest", "order", "outgrown", "preempted", "prefill_from",
        "sampled", "start_step", "submitted", "traj",
    )  # fmt: skip

    def __init__(self, cmd: int, traj: int, context: int, left: int, now: float) -> None:
        self.cmd = cmd
        self.traj = traj
        self.context = context
        """Tokens before the next sampled one, when it last joined or was submitted."""
        self.left = left
        """Tokens still to sample from there."""
        self.sampled = 0
        """Before it last joined: what a pre-empted row has behind it."""
        self.oldest = -1
        """Policy version of its first token."""
        self.submitted = now
        self.prefill_from = now
        self.joined = -1.0
        """When its first prefill ended."""
        self.start_step = self.end_step = 0
        self.order = 0
        self.preempted = False
        self.cut = False
        """It is given back unfinished, as ordered."""
        self.outgrown = False
        """It needs more than the whole room of the engine, and is given back unfinished."""


class Machine:
    """`room_tokens` is the KV room. Times are virtual seconds."""

    __slots__ = (
        "_cache", "_cached_tokens", "_cuts", "_ends", "_joining", "_lost", "_orders", "_outgrown", "_queue", "_since",
        "_stretch", "_under_way", "appointed", "cost", "decode_s", "id", "install", "kv", "pace", "preemptions",
        "prefill_s", "prefilled_tokens", "recomputed_tokens", "reused_tokens", "room", "rows", "serial", "state",
        "steps", "until", "version",
    )  # fmt: skip

    def __init__(self, id: int, cost: EngineCost, room_tokens: int) -> None:
        self.id = id
        self.cost = cost
        self.room = room_tokens
        self.pace = 1.0
        """Real over predicted seconds of what it begins next: the shell's, from the hidden truth."""
        self.version = -1
        self.install: tuple[int, int, float] | None = None
        """(command, version, seconds) of weights that have arrived and wait for the end of the step."""
        self.state: Literal["idle", "prefill", "decode", "boundary"] = "idle"
        self.until = NEVER
        """When the present stretch or prefill ends."""
        self.serial = 0
        """Changes whenever `until` does: an older appointment is void."""
        self.appointed = -1
        """The `serial` that the shell has on its heap."""
        self.rows: dict[int, Row] = {}
        """By command, in the order of joining."""
        self.kv = 0
        """Tokens that the rows hold, at `steps`."""
        self.steps = 0
        self.decode_s = self.prefill_s = 0.0
        self.preemptions = self.prefilled_tokens = self.recomputed_tokens = self.reused_tokens = 0
        self._queue: deque[Row] = deque()
        self._joining: list[Row] = []
        self._ends: list[tuple[int, int, Row]] = []
        self._outgrown: list[Row] = []
        self._cuts: list[int] = []
        """Commands whose rows are to be given back at the next boundary."""
        self._lost: set[int] = set()
        """Commands whose rows are to be dropped at the next boundary."""
        self._orders = 0
        self._since = 0.0
        self._under_way = 1.0
        """The pace of the present stretch."""
        self._stretch = 0
        self._cache: dict[int, tuple[int, int]] = {}
        """Trajectory -> (tokens, version), oldest first."""
        self._cached_tokens = 0

    # --- what the shell orders

    def submit(self, row: Row, now: float) -> None:
        self._queue.append(row)
        self._interrupt(now)

    def swap(self, cmd: int, version: int, seconds: float, now: float) -> None:
        """Weights have arrived: they are used from the next step on."""
        self.install = (cmd, version, seconds)
        self._interrupt(now)

    def cancel(self, cmd: int, traj: int, now: float) -> None:
        """Give up a turn; its room is free at the end of the step."""
        self._lost.add(cmd)
        self.forget(traj)
        self._interrupt(now)

    def cut(self, cmd: int, now: float) -> None:
        """Give a turn back at the end of the step, with what it has sampled by then; nothing if it is over."""
        self._cuts.append(cmd)
        self._interrupt(now)

    def forget(self, traj: int) -> None:
        """Its prefix will not be used again."""
        self._cached_tokens -= self._cache.pop(traj, (0, 0))[0]

    def _interrupt(self, now: float) -> None:
        """Stop decoding at the end of the step under way; an idle engine begins at once."""
        if self.state == "decode":
            done = self._steps_in(now - self._since)
            if done + 1 < self._stretch:
                self._stretch = done + 1
                self._appoint(
                    self._since + self._under_way * self.cost.decode_s(self._stretch, len(self.rows), self.kv)
                )
        elif self.state == "idle" and self.until != now:
            self._appoint(now)

    def sampled(self, cmd: int, now: float) -> int:
        """Tokens of a turn by `now`; 0 for one that is not here."""
        row = self.rows.get(cmd)
        if row is None:
            return next((r.sampled for r in self._queue if r.cmd == cmd), 0)
        steps = self.steps + (self._steps_in(now - self._since) if self.state == "decode" else 0)
        return row.sampled + steps - row.start_step

    def _steps_in(self, seconds: float) -> int:
        """Whole steps of the present stretch within its first `seconds`."""
        cost, batch, kv = self.cost, len(self.rows), self.kv
        seconds /= self._under_way
        return bisect_right(range(1, self._stretch + 1), seconds, key=lambda n: cost.decode_s(n, batch, kv))

    def _appoint(self, until: float) -> None:
        self.until = until
        self.serial += 1

    # --- the machine

    def settle(self, now: float) -> list[Row]:
        """The stretch or prefill has ended: rows that are finished, or given back unfinished (cut, or `outgrown`)."""
        if self.state == "decode":
            self.decode_s += now - self._since
            self.steps += self._stretch
            self.kv += self._stretch * len(self.rows)
        elif self.state == "prefill":
            self.prefill_s += now - self._since
            for row in self._joining:
                self._join(row, now)
            self._joining.clear()
        self.state = "boundary"
        if self._lost:
            self._drop_lost()
        over = self._outgrown
        self._outgrown = []
        while self._ends and self._ends[0][0] <= self.steps:
            ended = heapq.heappop(self._ends)
            if self._stands(ended):
                self._leave(ended[2])
                over.append(ended[2])
        for row in over:
            if not row.outgrown:
                self._keep_prefix(row.traj, row.context)
        if self._cuts:
            over += self._take_cut()
        self._make_room()
        return over

    def proceed(self, now: float) -> None:
        """Begin what comes next: prefills, or a stretch of steps. Weights that have arrived were swapped in by the shell."""
        self._since, self._under_way = now, self.pace
        seconds = self.pace * self._admit(now)
        if self._joining:
            self.state = "prefill"
            self._appoint(now + seconds)
            return
        if not self.rows:
            self.state = "idle"
            self._appoint(now if self._outgrown else NEVER)
            return
        self._stretch = self._next_stretch()
        if self._cuts:  # ordered at this very boundary
            self._stretch = min(1, self._stretch)
        self.state = "decode"
        self._appoint(now + self.pace * self.cost.decode_s(self._stretch, len(self.rows), self.kv))

    def _admit(self, now: float) -> float:
        """Take from the queue, in order, what fits; seconds of its prefill."""
        seconds, rows, kv = 0.0, len(self.rows), self.kv
        queue = self._queue
        while queue:
            row = queue[0]
            if row.cmd in self._lost:
                self._lost.discard(queue.popleft().cmd)
                continue
            if kv + row.context + rows + 1 > self.room:  # every row adds a token at the next step
                if rows:
                    break
                row.outgrown = True
                self._outgrown.append(queue.popleft())
                continue
            queue.popleft()
            row.prefill_from = row.prefill_from if row.joined >= 0 else now
            cached, version = self._cache.pop(row.traj, (0, 0))
            self._cached_tokens -= cached
            reused = min(cached, row.context) if version == self.version else 0
            self.reused_tokens += reused
            self.prefilled_tokens += row.context - reused
            seconds += self.cost.prefill_s(row.context - reused, reused)
            if row.preempted:
                self.recomputed_tokens += row.context - reused
                row.preempted = False
            kv += row.context
            rows += 1
            self._joining.append(row)
        return seconds

    def _join(self, row: Row, now: float) -> None:
        if row.joined < 0:
            row.joined = now
        if row.oldest < 0:
            row.oldest = self.version
        self._orders += 1
        row.order = self._orders
        row.start_step, row.end_step = self.steps, self.steps + row.left
        self.rows[row.cmd] = row
        self.kv += row.context
        heapq.heappush(self._ends, (row.end_step, row.order, row))

    def _leave(self, row: Row) -> None:
        """Out of the batch, with what it has sampled so far."""
        done = self.steps - row.start_step
        row.context += done
        row.sampled += done
        row.left -= done
        del self.rows[row.cmd]
        self.kv -= row.context

    def _next_stretch(self) -> int:
        """Steps until a row ends or the room is full; pre-empts the newest row where there is no room for one step."""
        while True:
            while not self._stands(self._ends[0]):
                heapq.heappop(self._ends)
            batch = len(self.rows)
            steps = min(self._ends[0][0] - self.steps, (self.room - self.kv) // batch)
            if steps > 0:
                return steps
            victim = next(reversed(self.rows.values()))
            self._leave(victim)
            if not self.rows:
                victim.outgrown = True
                self._outgrown.append(victim)
                return 0
            victim.preempted = True
            self.preemptions += 1
            self._queue.appendleft(victim)

    def _stands(self, end: tuple[int, int, Row]) -> bool:
        """Whether it is the end of a row that is still running since the same joining."""
        _, order, row = end
        return row.order == order and row.cmd in self.rows

    def _drop_lost(self) -> None:
        for cmd in [c for c in self.rows if c in self._lost]:
            self._leave(self.rows[cmd])
            self._lost.discard(cmd)

    def _take_cut(self) -> list[Row]:
        """Rows that were ordered to be cut, running or queued; one that has ended is over by itself."""
        taken: list[Row] = []
        for cmd in self._cuts:
            if (row := self.rows.get(cmd)) is not None:
                self._leave(row)
                self._keep_prefix(row.traj, row.context)
            elif (row := next((r for r in self._queue if r.cmd == cmd), None)) is not None:
                self._queue.remove(row)
            else:
                continue
            row.cut = True
            taken.append(row)
        self._cuts.clear()
        return taken

    # --- the prefix cache

    def _keep_prefix(self, traj: int, tokens: int) -> None:
        self.forget(traj)
        self._cache[traj] = (tokens, self.version)
        self._cached_tokens += tokens

    def _make_room(self) -> None:
        while self._cached_tokens > self.room - self.kv and self._cache:
            self.forget(next(iter(self._cache)))
