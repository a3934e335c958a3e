"""Ranks come and go; units are brought up, taken down, and brought up again.

    RankJoined ... all ranks of a unit here ─> StartRole each ─> RoleReady each ─> FormGroup ─> GroupFormed each ─> fetching
        ^                                                              (torch engines of one rank need none)      (publication)
        └── restarts left <── all of its roles ended <── StopRole each <── RoleExited, RoleStalled, RankLost, a deadline

The core's group, once formed, makes the warm start. A core rank that ends before the run does ends the run: its group cannot
be mended (a resume can). Of any other unit all roles end when one does, and it starts afresh; the coordinator tells those
who had given it work. Units that take part in a move are left to the move.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from libra.config.schema import DeadlineConfig
from libra.core.commands import FormGroup, LoadCheckpoint, StartRole, StopRole, WarmStart
from libra.core.events import (
    CheckpointLoaded,
    GroupFormed,
    RankJoined,
    RankLost,
    RoleExited,
    RoleReady,
    RoleStalled,
    WarmStarted,
)
from libra.core.fleet import CORE, Fleet, Unit
from libra.core.outbox import Outbox


class Lifecycle:
    """`down(unit, reason)` is called when a unit stops working, by will or not; `fatal(reason)` when the run cannot go on."""

    def __init__(
        self,
        fleet: Fleet,
        out: Outbox,
        deadline: DeadlineConfig,
        down: Callable[[Unit, str], None],
        fatal: Callable[[str], None],
    ) -> None:
        self.fleet = fleet
        self.out = out
        self.deadline = deadline
        self.warmed = False
        """Every core rank holds the first weights: of the warm start, or of a checkpoint."""
        self.checkpoint: tuple[int, int] | None = None
        """(step, version) of the checkpoint to go on from; None: the run begins with a warm start."""
        self._down = down
        self._fatal = fatal
        self._unwarmed: list[int] = []
        self._warm_seq = 0
        self._idle: dict[int, None] = {}
        """Units that may have to be brought up."""

    @property
    def warming(self) -> bool:
        """The warm start is under way."""
        return bool(self._unwarmed) and self.checkpoint is None

    def advance(self) -> None:
        """Bring up whatever is idle, has all of its ranks, and is in no move."""
        if not self._idle:
            return
        for id in list(self._idle):
            unit = self.fleet.unit(id)
            if unit is None or unit.state != "idle":
                del self._idle[id]
            elif self._free(unit):
                del self._idle[id]
                self.bring_up(unit)

    def _free(self, unit: Unit) -> bool:
        ranks = [self.fleet.ranks[r] for r in unit.ranks]
        return all(r.status == "here" and not r.move and not r.processes for r in ranks)

    def look_at(self, unit: Unit) -> None:
        """The unit may have become one that `advance` has to bring up."""
        self._idle[unit.id] = None

    # --- ranks

    def started(self) -> None:
        self.out.after(self.deadline.find_controller_s, self._check_joined)

    def _check_joined(self) -> None:
        absent = self.fleet.absent()
        if absent:
            ranks = ", ".join(str(r) for r in absent)
            self._fatal(
                f"rank{'s' if len(absent) > 1 else ''} {ranks} did not join within {self.deadline.find_controller_s:g} s;"
                " see their output above, and check that every process of the launch is alive"
            )

    def rank_joined(self, e: RankJoined) -> None:
        rank = self.fleet.ranks.get(e.rank)
        if rank is None:
            self.out.report("warning", f"rank {e.rank} on {e.host} is not needed by this configuration and stays idle")
        elif rank.status != "here":
            rank.status, rank.host = "here", e.host
            self._idle[rank.unit] = None

    def rank_lost(self, e: RankLost) -> None:
        rank = self.fleet.ranks.get(e.rank)
        if rank is None or rank.status == "lost":
            return
        self.fleet.lose(rank.rank)
        units = list(rank.processes.values())
        rank.processes.clear()
        if rank.unit == CORE:
            self._fatal(f"lost the supervisor of core rank {e.rank}: {e.reason}")
            return
        self.out.report("warning", f"rank {e.rank} is lost: {e.reason}")
        for id in units:
            if (unit := self.fleet.unit(id)) is not None:
                self.take_down(unit, f"rank {e.rank} is lost: {e.reason}")
                self._check_ended(unit)

    # --- up

    def bring_up(self, unit: Unit) -> None:
        """Start its roles. All of its ranks are here."""
        unit.state = "starting"
        unit.attempt += 1
        unit.awaited = list(unit.ranks)
        for rank in unit.ranks:
            seq = self.out.next_seq()
            self.out.put(StartRole(seq, rank, unit.role, self.fleet.epoch, unit.id, unit.bucket))
            unit.starts[rank] = seq
            self.fleet.ranks[rank].processes[seq] = unit.id
        self._deadline(unit, "role_start_s", "did not start")

    def role_ready(self, e: RoleReady) -> None:
        unit = self._unit_of(e.rank, e.cmd)
        if unit is not None and unit.state == "starting" and e.rank in unit.awaited:
            unit.awaited.remove(e.rank)
            if not unit.awaited:
                self._form(unit)

    def _form(self, unit: Unit) -> None:
        if not self.fleet.forms_group(unit):
            self._formed(unit)
            return
        unit.state = "forming"
        unit.awaited = list(unit.ranks)
        group = "core" if unit.id == CORE else f"unit-{unit.id}"
        unit.command = self.out.put(
            FormGroup(self.out.next_seq(), group, unit.ranks, self.fleet.epoch, unit.attempt - 1)
        )
        if self.fleet.makes_engine(unit):
            self._deadline(unit, "engine_start_s", "did not make its engine")
        else:
            self._deadline(unit, "group_s", "did not form the process group")

    def group_formed(self, e: GroupFormed) -> None:
        unit = self._unit_of(e.rank)
        if unit is None or unit.state != "forming" or e.cmd != unit.command or e.rank not in unit.awaited:
            return
        unit.awaited.remove(e.rank)
        if not unit.awaited:
            self._formed(unit)

    def _formed(self, unit: Unit) -> None:
        unit.command = 0
        unit.state = "fetching"
        self.fleet.stirred[unit.id] = None
        if unit.id == CORE:
            self._first_weights()

    def _unit_of(self, rank: int, start: int | None = None) -> Unit | None:
        """The unit of a process on `rank`: that of `start`, or the one that forms a group."""
        device = self.fleet.ranks.get(rank)
        if device is None:
            return None
        if start is not None:
            id = device.processes.get(start)
            return None if id is None else self.fleet.unit(id)
        units = [self.fleet.unit(id) for id in device.processes.values()]
        return next((u for u in units if u is not None and u.state == "forming"), None)

    def _deadline(self, unit: Unit, key: Literal["role_start_s", "group_s", "engine_start_s"], what: str) -> None:
        state, attempt = unit.state, unit.attempt
        seconds: float = getattr(self.deadline, key)

        def check() -> None:
            if unit.state == state and unit.attempt == attempt:
                missing = ", ".join(str(r) for r in unit.awaited)
                more = f"a machine that is slow or busy needs a larger deadline.{key}"
                self.fail(unit, f"{unit.name}: rank {missing} {what} within {seconds:g} s; {more}", unit.awaited)

        self.out.after(seconds, check)

    # --- the first weights

    def _first_weights(self) -> None:
        self._unwarmed = ranks = list(self.fleet.trainers)
        seq = self._warm_seq = self.out.next_seq()
        if self.checkpoint is None:
            what, seconds = "finish the warm start", self.deadline.warm_start_s
            self.out.put(WarmStart(seq, self.fleet.trainers))
        else:
            what, seconds = f"load checkpoint {self.checkpoint[0]}", self.deadline.checkpoint_s
            self.out.put(LoadCheckpoint(seq, *self.checkpoint, self.fleet.trainers))

        def check() -> None:
            if ranks:
                self._fatal(f"core ranks {ranks} did not {what} within {seconds:g} s")

        self.out.after(seconds, check)

    def warm_started(self, e: WarmStarted | CheckpointLoaded) -> None:
        if e.cmd == self._warm_seq and e.rank in self._unwarmed:
            self._unwarmed.remove(e.rank)
            if not self._unwarmed:
                self.warmed = True
                self.fleet.core.state = "serving"

    # --- down

    def take_down(self, unit: Unit, reason: str) -> None:
        """End all of its roles. It is idle once the last one has ended."""
        if not unit.live:
            return
        unit.went_down()
        self._down(unit, reason)
        for rank, start in unit.starts.items():
            if start in self.fleet.ranks[rank].processes:
                self.out.put(StopRole(self.out.next_seq(), rank, start, reason))
        self._check_ended(unit)

    def fail(self, unit: Unit, reason: str, culprits: Sequence[int]) -> None:
        """It is of no use as it is: end it. It starts afresh while it has restarts left; then the culprits are given up."""
        if unit.id == CORE:
            self._fatal(reason)
        elif unit.live:
            if unit.restarts >= self.deadline.role_restarts and not unit.gated:
                for rank in culprits:
                    self.fleet.lose(rank)
                ranks = ", ".join(map(str, culprits))
                self.out.report("error", f"rank {ranks} is given up after {unit.restarts} restarts: {reason}")
            unit.restarts += 1
            self.take_down(unit, reason)

    def role_stalled(self, e: RoleStalled) -> None:
        unit = self._unit_of(e.rank, e.start)
        if unit is not None and unit.live:
            if unit.id == CORE:  # its process may be stuck for good; the end of it ends the run
                self.out.put(StopRole(self.out.next_seq(), e.rank, e.start, e.reason))
            else:
                self.fail(unit, f"rank {e.rank}: {e.reason}", (e.rank,))

    def role_exited(self, e: RoleExited) -> None:
        rank = self.fleet.ranks.get(e.rank)
        if rank is None or (id := rank.processes.pop(e.start, None)) is None:
            return
        unit = self.fleet.unit(id)
        if unit is None:  # it left in a move
            self._idle[rank.unit] = None
        elif unit.id == CORE:
            self._fatal(f"the trainer of core rank {e.rank} ended: {e.reason}")
        else:
            self.fail(unit, e.reason, (e.rank,))
            self._check_ended(unit)

    def _check_ended(self, unit: Unit) -> None:
        left = any(start in self.fleet.ranks[rank].processes for rank, start in unit.starts.items())
        if unit.state == "ending" and not left:
            unit.state = "idle"
            unit.starts.clear()
            self._idle[unit.id] = None
