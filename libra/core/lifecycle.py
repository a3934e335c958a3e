"""Ranks and roles, from the first hello to a replaced engine.

    RankJoined ─> StartRole ─> RoleReady ──(trainers, all ready)──> FormGroup ─> GroupFormed ─> WarmStart ─> WarmStarted
                      ^            └─(engine)─> its ranks are up: it may install weights
                      └── RoleExited (engine, restarts left) <── StopRole <── RoleStalled, or a deadline

A core trainer that ends before the run does ends the run: its group cannot be mended (a resume can).
"""

from collections.abc import Callable

from libra.config.schema import DeadlineConfig
from libra.core.commands import FormGroup, StartRole, StopRole, WarmStart
from libra.core.events import GroupFormed, RankJoined, RankLost, RoleExited, RoleReady, RoleStalled, WarmStarted
from libra.core.fleet import DeviceRank, Fleet
from libra.core.outbox import Outbox


class Lifecycle:
    """`engine_down(id, reason)` and `fatal(reason)` are the coordinator's; called when an engine or the run cannot go on."""

    def __init__(
        self,
        fleet: Fleet,
        out: Outbox,
        deadline: DeadlineConfig,
        engine_down: Callable[[int, str], None],
        fatal: Callable[[str], None],
    ) -> None:
        self.fleet = fleet
        self.out = out
        self.deadline = deadline
        self.warmed = False
        """Every core rank holds the weights of the warm start."""
        self._engine_down = engine_down
        self._fatal = fatal
        self._unformed: list[int] = []
        self._unwarmed: list[int] = []
        self._trainers_up = 0
        self._form_seq = 0
        self._warm_seq = 0

    @property
    def warming(self) -> bool:
        """The warm start is under way."""
        return bool(self._unwarmed)

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
        elif rank.status in ("absent", "lost"):
            self._start(rank)

    def rank_lost(self, e: RankLost) -> None:
        rank = self.fleet.ranks.get(e.rank)
        if rank is None or rank.status == "lost":
            return
        rank.status = "lost"
        if rank.role == "trainer":
            self._fatal(f"lost the supervisor of core rank {e.rank}: {e.reason}")
        else:
            self._engine_down(rank.engine, f"rank {e.rank} is lost: {e.reason}")

    # --- roles

    def _start(self, rank: DeviceRank) -> None:
        rank.status = "starting"
        rank.start = self.out.put(
            StartRole(self.out.next_seq(), rank.rank, rank.role, rank.epoch, rank.engine, rank.bucket)
        )
        start = rank.start
        self.out.after(self.deadline.role_start_s, lambda: self._check_started(rank, start))

    def _check_started(self, rank: DeviceRank, start: int) -> None:
        if rank.start == start and rank.status == "starting":
            self.stop_role(
                rank, f"the {rank.role} role of rank {rank.rank} was not ready in {self.deadline.role_start_s:g} s"
            )

    def stop_role(self, rank: DeviceRank, reason: str) -> None:
        """End a role that is of no use any more; its `RoleExited` decides what comes next."""
        self.out.put(StopRole(self.out.next_seq(), rank.rank, rank.start, reason))

    def role_ready(self, e: RoleReady) -> None:
        rank = self.fleet.ranks.get(e.rank)
        if rank is None or rank.start != e.cmd or rank.status != "starting":
            return
        rank.status = "up"
        if rank.role == "rollout":
            engine = self.fleet.engines[rank.engine]
            if self.fleet.all_up(engine.ranks):
                engine.load.came_up()
                self.fleet.stirred[engine.id] = None
            return
        self._trainers_up += 1  # each once: one that ends takes the run with it
        if self._trainers_up == len(self.fleet.trainers):
            self._form_core()

    def role_stalled(self, e: RoleStalled) -> None:
        rank = self.fleet.ranks.get(e.rank)
        if rank is not None and rank.start == e.start and rank.status in ("starting", "up"):
            self.stop_role(rank, e.reason)

    def role_exited(self, e: RoleExited) -> None:
        rank = self.fleet.ranks.get(e.rank)
        if rank is None or rank.start != e.start or rank.status == "lost":
            return
        rank.status = "down"
        if rank.role == "trainer":
            self._fatal(f"the trainer of core rank {e.rank} ended: {e.reason}")
            return
        given_up = rank.restarts >= self.deadline.role_restarts
        if given_up:
            rank.status = "lost"
            self.out.report("error", f"rank {e.rank} is given up after {rank.restarts} restarts: {e.reason}")
        self._engine_down(rank.engine, e.reason)
        if given_up:
            return
        rank.restarts += 1
        rank.epoch += 1
        self._start(rank)

    # --- the core group and its first weights

    def _form_core(self) -> None:
        self._unformed = list(self.fleet.trainers)
        self._form_seq = self.out.put(FormGroup(self.out.next_seq(), "core", self.fleet.trainers, 0, 0))
        self._deadline(self.deadline.group_s, "form the core process group", lambda: self._unformed)

    def group_formed(self, e: GroupFormed) -> None:
        if e.cmd != self._form_seq or e.rank not in self._unformed:
            return
        self._unformed.remove(e.rank)
        if not self._unformed:
            self._unwarmed = list(self.fleet.trainers)
            self._warm_seq = self.out.put(WarmStart(self.out.next_seq(), self.fleet.trainers))
            self._deadline(self.deadline.warm_start_s, "finish the warm start", lambda: self._unwarmed)

    def warm_started(self, e: WarmStarted) -> None:
        if e.cmd == self._warm_seq and e.rank in self._unwarmed:
            self._unwarmed.remove(e.rank)
            self.warmed = not self._unwarmed

    def _deadline(self, seconds: float, what: str, missing: Callable[[], list[int]]) -> None:
        def check() -> None:
            if missing():
                self._fatal(f"core ranks {missing()} did not {what} within {seconds:g} s")

        self.out.after(seconds, check)
