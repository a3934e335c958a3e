"""The emulated rollout role: the simulator's engine, driven by real orders in real time.

    EmulatedTurn ──> Machine: prefill, batched decode, KV room, prefix cache ──> EmulatedTurnsDone
    Install ──(publication's seconds)──> swapped in between two steps ──> Installed

All ranks of an engine run this; its first rank is given the turns, the others hold weights. What the machine really takes is
the cost model's seconds times the hidden truth's pace of this engine.
"""

from libra.core.cost import EngineCost
from libra.rank.emulated_role import EmulatedRole
from libra.rank.link import RoleLink
from libra.sim.machine import NEVER, Machine, Row
from libra.sim.seconds import install_s, joining_s
from libra.wire import messages as m
from libra.workload.truth import Truth

STATS_S = 1.0
"""Real seconds between two reports of the gauges."""


class EmulatedEngine(EmulatedRole):
    def __init__(self, link: RoleLink) -> None:
        super().__init__(link)
        spec = link.spec
        bucket = self.config.bucket[spec.bucket]
        costs = EngineCost(self.cost.hardware, self.cost.model, bucket.tp)
        self.machine = Machine(spec.unit, costs, bucket.kv_tokens or costs.capacity_tokens)
        self._install_s = install_s(self.config, self.cost, bucket)
        self._truth = Truth(self.config.truth)
        self._running: dict[int, int] = {}
        """Trajectory -> the command of its turn."""
        self._sampled_tokens = 0
        self._stats()

    def take(self, order: object) -> None:
        machine = self.machine
        match order:
            case m.EmulatedTurn(cmd=cmd, traj=traj):
                self._running[traj] = cmd
                machine.submit(Row(cmd, traj, order.context_tokens, order.tokens, self.now), self.now)
            case m.Cut(traj=traj):
                if traj in self._running:
                    machine.cut(self._running[traj], self.now)
            case m.Forget(trajs=trajs):
                for traj in trajs:
                    self._forget(traj)
            case m.Install():
                self._install(order)
            case _:
                super().take(order)
        self._appointment()

    def _forget(self, traj: int) -> None:
        cmd = self._running.pop(traj, None)
        if cmd is None:
            self.machine.forget(traj)
        else:
            self.machine.cancel(cmd, traj, self.now)

    def _install(self, order: m.Install) -> None:
        """The first weights of a run that begins take no time; those of an engine that joins later take its activation."""
        seconds = self._install_s
        if self.machine.version < 0:
            joins = self.link.spec.epoch > 0 or order.version > 0
            seconds = joining_s(self.cost, "rollout") if joins else 0.0

        def arrived() -> None:
            self.machine.swap(order.cmd, order.version, seconds, self.now)
            self._appointment()

        self.at(self.now + seconds, arrived)

    # --- the machine

    def _appointment(self) -> None:
        """Keep the machine's newest appointment, if it has one that is not kept yet."""
        machine = self.machine
        if machine.until < NEVER and machine.appointed != machine.serial:
            machine.appointed = serial = machine.serial
            self.at(machine.until, lambda: self._wake(serial))

    def _wake(self, serial: int) -> None:
        machine = self.machine
        if machine.serial != serial:
            return
        self.link.doing = "generating" if machine.rows else "idle"
        done = [self._done(row) for row in machine.settle(self.now)]
        if done:
            self.link.send(m.EmulatedTurnsDone(done))
        if (install := machine.install) is not None:
            cmd, machine.version, seconds = install
            machine.install = None
            self.link.send(m.Installed(cmd, machine.version, seconds))
        machine.pace = self._truth.pace(machine.id, self.now)
        machine.proceed(self.now)
        self._appointment()

    def _done(self, row: Row) -> m.EmulatedTurnDone:
        if self._running.get(row.traj) == row.cmd:
            del self._running[row.traj]
        self._sampled_tokens += row.sampled
        oldest, newest = (row.oldest, self.machine.version) if row.sampled else (-1, -1)
        return m.EmulatedTurnDone(row.cmd, row.traj, row.sampled, oldest, newest, row.left > 0)

    def _stats(self) -> None:
        self.at(self.now + STATS_S * self.config.emulation.speed, self._stats)
        x = self.machine
        waiting = len(self._running) - len(x.rows)
        self.link.send(
            m.EngineStats(
                x.version,
                len(x.rows),
                waiting,
                x.kv,
                x.steps,
                self._sampled_tokens,
                x.prefilled_tokens,
                x.reused_tokens,
            )
        )
