"""The virtual shell: carries out the core's commands in virtual time and answers them as the live shell does.

    heap ──(earliest)──> an event ──> core ──> commands ──> carry_out ──> machines, tools, trainer ──> heap
                         an engine's appointment ──> settle ──> events ──> core ... ──> proceed

One at a time, to the end, before the next. No randomness and no clock: everything that is drawn comes from the plan's source
and its hidden truth, which the core is never told.
What must hold in any run is checked on the way and is a CoreError: KV room and batch as reserved, no trajectory in two
places, no turn on an engine without weights, no token that trains older than the lag allows. `watch(event, commands)` sees
everything that passes, in order: a journal, say.
"""

import gc
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.fleet import CORE
from libra.core.learned import Learned
from libra.errors import CoreError
from libra.sim.machine import NEVER, Machine, Row
from libra.sim.plan import Plan, plan
from libra.sim.report import EngineLife, Recorder, SimReport
from libra.sim.seconds import joining_s, replica_install_s, round_s, share_s
from libra.sim.source import reward
from libra.workload.trace import TraceTrajectory

CONTINUE = "continue"
"""Tool name of the return that lets a turn go on which was ended before it was over."""
Oracle = Callable[[int], int]
"""Trajectory -> tokens that it will still sample."""
Watch = Callable[[e.AnyEvent, Sequence[c.Command]], None]


def make_core(config: Config, oracle: Oracle, learned: Learned | None) -> Core:
    """The live job's core; `oracle` is for the policy that may know how long trajectories are."""
    return Core(config, oracle, learned)


@contextmanager
def no_collector() -> Iterator[None]:
    """A run makes millions of objects and, of those in cycles, some thousands: to look for them took a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Episode:
    """A trajectory under way: the truth, and how far it has come."""

    __slots__ = (
        "batch", "cap", "cmd", "context", "engine", "entered", "in_training", "kind", "left", "oldest", "prompt", "reserved",
        "sample", "sampled", "stages", "told", "total", "truth", "turn", "turns",
    )  # fmt: skip

    def __init__(self, command: c.OpenTrajectory, truth: TraceTrajectory, batch: int, now: float) -> None:
        self.kind: c.Kind = command.kind
        self.prompt = command.prompt
        self.sample = command.sample
        self.batch = batch
        self.truth = truth
        self.turns = truth.turns
        self.turn = 0
        self.sampled = 0
        """Of the present turn."""
        self.total = truth.sampled_tokens
        self.left = self.total
        """To sample, of the whole trajectory."""
        self.context = truth.prompt_tokens
        self.cap = self.told = 0
        """What the core was told that the turn may sample, and what it believes that it may still."""
        self.cmd = 0
        """The running `Generate`; 0 when there is none."""
        self.engine = -1
        """Where it runs or ran last."""
        self.reserved = 0
        self.oldest = -1
        self.entered = now
        """When it entered its present stage."""
        self.in_training = False
        self.stages = [0.0] * 5
        """Seconds so far, of the first five of `STAGES`."""


class Simulation:
    """One run of a plan. `run` to the end; `report` afterwards."""

    def __init__(
        self,
        prepared: Plan,
        watch: Watch | None = None,
        make_core: Callable[[Config, Oracle, Learned | None], Core] = make_core,
    ) -> None:
        config = prepared.config
        self.plan = prepared
        self.config = config
        self.workload = prepared.workload
        self.core = make_core(config, self.still_to_sample, prepared.learned)
        self.truth = None if prepared.truth.is_plain else prepared.truth
        self.recorder = Recorder(prepared)
        self.now = 0.0
        self.finish: c.FinishRun | None = None
        self.events = 0
        self._watch = watch
        self._heap: list[tuple[float, int, e.AnyEvent | tuple[Machine, int] | Callable[[], None]]] = []
        self._n = 0
        self._episodes: dict[int, Episode] = {}
        self._machines: dict[int, Machine] = {}
        """Of the engines that stand, by id."""
        self._began: dict[int, float] = {}
        """When each of them came."""
        self._gone: list[EngineLife] = []
        """Engines that ended."""
        self._reserved: dict[int, int] = {}
        self._running: dict[int, int] = {}
        self._starts: dict[int, c.StartRole] = {}
        """Role processes that run, by their start."""
        self._installs: dict[int, c.InstallWeights] = {}
        self._free_s: dict[int, float] = {}
        """When the core, or a gradient replica, has done what it was told so far; by unit."""
        self._warm = False

    def still_to_sample(self, traj: int) -> int:
        """The truth, for the policy that is allowed to know it."""
        episode = self._episodes[traj]
        if not episode.cmd:
            return episode.left
        return episode.left - self._machines[episode.engine].sampled(episode.cmd, self.now)

    def run(self) -> SimReport:
        """Raises CoreError where the core breaks a promise or the run stands still."""
        with no_collector():
            return self._run()

    def _run(self) -> SimReport:
        self._at(0.0, e.RunStarted(0.0))
        for rank in range(1, self.config.devices + 1):
            self._at(0.0, e.RankJoined(0.0, rank, "simulated", "emulated"))
        heap, pop = self._heap, heapq.heappop
        while self.finish is None:
            if not heap:
                raise CoreError(f"the run stands still at {self.now:.3f} s: {self.core.rollout.stages()}")
            self.now, _, item = pop(heap)
            if isinstance(item, tuple):
                machine, serial = item
                if machine.serial == serial:
                    self._wake(machine)
            elif callable(item):
                item()
            else:
                self._feed(item)
        return self.report()

    def report(self) -> SimReport:
        lives = [*self._gone, *(self._life(machine) for machine in self._machines.values())]
        return self.recorder.report(lives, self.core.placement.correction.kinds(), self.now)

    def watch(self, watch: Watch) -> None:
        """See everything that passes from now on."""
        self._watch = watch

    def tell(self, event: e.AnyEvent) -> None:
        """Something that happens from outside, at its own time: a person's order."""
        self._at(event.t, event)

    # --- the heap

    def _at(self, t: float, item: e.AnyEvent | tuple[Machine, int] | Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._heap, (t, self._n, item))

    def _feed(self, event: e.AnyEvent) -> None:
        """One event through the core, and everything that the core makes of it."""
        if self.finish is not None:
            return
        self.events += 1
        if isinstance(event, e.TurnReady | e.ToolReturned):
            self._enter(event.traj)
        elif isinstance(event, e.EpisodeEnded):
            self._ended(event)
        commands = self.core.handle(event)
        tally = self.recorder.tally
        tally.event(event)
        for command in commands:
            tally.command(command)
        if self._watch is not None:
            self._watch(event, commands)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: c.Command) -> None:
        match command:
            case c.Generate():
                self._generate(command)
            case c.CutTurn(engine=engine, turn=turn):
                self.recorder.turns_cut += 1
                self._machines[engine].cut(turn, self.now)
                self._appointment(self._machines[engine])
            case c.Act():
                self._act(command)
            case c.OpenTrajectory():
                self._open(command)
            case c.Discard(trajs=trajs):
                for traj in trajs:
                    self._discard(traj)
            case c.SetTimer(seq=seq, at=at):
                self._at(at, e.TimerFired(at, seq))
            case c.Round() | c.Accumulate():
                self._round(command)
            case c.OfferShare(seq=seq, replica=replica, ranks=ranks):
                t = max(self.now, self._free_s.get(replica, 0.0))
                for rank in ranks:
                    self._at(t, e.ShareOffered(t, seq, rank))
            case c.FetchShare(seq=seq, ranks=ranks):
                seconds = share_s(self.plan.cost, len(ranks), self.config.simulation.same_node)
                for rank in ranks:
                    self._at(self.now + seconds, e.ShareHeld(self.now + seconds, seq, rank, seconds))
            case c.CloseStep():
                self._close(command)
            case c.InstallWeights():
                self._install(command)
            case c.StartRole():
                self._start(command)
            case c.StopRole(rank=rank, start=start, reason=reason):
                self._stop(start)
                self._at(self.now, e.RoleExited(self.now, rank, start, -9, reason))
            case c.FormGroup(seq=seq, members=members):
                for rank in members:
                    self._at(self.now, e.GroupFormed(self.now, seq, rank))
            case c.WarmStart(seq=seq, ranks=ranks):
                for rank in ranks:
                    self._at(self.now, e.WarmStarted(self.now, seq, rank, True, 0.0, 0.0))
                    self._at(self.now, e.WeightsHeld(self.now, rank, 0))
                self._warm = True
            case c.LoadCheckpoint(seq=seq, version=version, ranks=ranks):
                for rank in ranks:
                    self._at(self.now, e.CheckpointLoaded(self.now, seq, rank, 0.0))
                    self._at(self.now, e.WeightsHeld(self.now, rank, version))
                self._warm = True
            case c.SaveCheckpoint(seq=seq):
                self._at(self.now, e.CheckpointSaved(self.now, seq, 0.0, 0.0, 0))
            case c.FinishRun():
                self.finish = command
            case c.OpenStep() | c.Report() | c.BatchConsumed() | c.Evaluated() | c.MoveChanged() | c.AnswerOrder():
                pass
            case c.TidyCheckpoints():
                pass
            case _:
                raise TypeError(f"no way to carry out {type(command).__name__}")

    # --- roles and weights

    def _start(self, command: c.StartRole) -> None:
        """At once before the run is warm; later, when ranks move, it takes what a change of role takes."""
        self._starts[command.seq] = command
        if command.role == "rollout" and command.unit not in self._machines:
            bucket = self.config.bucket[command.bucket]
            self._machines[command.unit] = Machine(command.unit, self.plan.engines[command.bucket], bucket.kv_tokens)
            self._reserved[command.unit] = self._running[command.unit] = 0
            self._began[command.unit] = self.now
        t = self.now + (joining_s(self.plan.cost, command.role) if self._warm else 0.0)
        self._at(t, e.RoleReady(t, command.seq, command.rank))

    def _life(self, machine: Machine) -> EngineLife:
        bucket = self.config.bucket[self.core.fleet.bucket_of(machine.id)]
        return EngineLife(machine, bucket.name, self._began[machine.id], self.now)

    def _stop(self, start: int) -> None:
        """What an engine held is gone with it; the core has placed its turns anew, or drained it before."""
        command = self._starts.pop(start, None)
        machine = self._machines.pop(command.unit, None) if command is not None else None
        if machine is None:
            return
        self._gone.append(self._life(machine))
        for episode in self._episodes.values():
            if episode.engine == machine.id:
                episode.engine, episode.cmd = -1, 0

    def _install(self, command: c.InstallWeights) -> None:
        machine = self._machines.get(command.unit)
        if machine is None:
            self._install_replica(command)
            return
        seconds = self.plan.install_s[self.core.fleet.bucket_of(machine.id)] if command.version else 0.0
        self._installs[command.seq] = command

        def arrived() -> None:
            machine.swap(command.seq, command.version, seconds, self.now)
            self._appointment(machine)

        self._at(self.now + seconds, arrived)

    def _install_replica(self, command: c.InstallWeights) -> None:
        seconds = replica_install_s(self.config, self.plan.cost) if command.version else 0.0
        t = max(self.now + seconds, self._free_s.get(command.unit, 0.0))
        for rank in command.ranks:
            self._at(t, e.WeightsInstalled(t, command.seq, rank, command.version, seconds))

    # --- trajectories

    def _open(self, command: c.OpenTrajectory) -> None:
        batch = command.prompt // self.config.rollout.groups_per_batch if command.kind == "train" else 0
        truth = self.plan.source.trajectory(command.kind, command.prompt, command.sample, batch)
        episode = self._episodes[command.traj] = Episode(command, truth, batch, self.now)
        if command.kind == "train":
            self.recorder.bound.add(truth)
            self.recorder.opened(batch, self.now)
        told = self._tell(episode)
        self._at(self.now, e.TurnReady(self.now, command.seq, command.traj, episode.context, told))

    def _tell(self, episode: Episode) -> int:
        """The cap of the next turn, as the core is told it; at least 1 while there is something to sample."""
        source = self.plan.source
        left = min(
            source.max_sampled_tokens - episode.total + episode.left, source.max_context_tokens - episode.context
        )
        episode.cap = episode.told = max(1, min(self.workload.turn_tokens, left))
        return episode.told

    def _enter(self, traj: int) -> None:
        """It begins to wait for an engine: the tool is over."""
        episode = self._episodes.get(traj)
        if episode is not None:
            episode.stages[4] += self.now - episode.entered
            episode.entered = self.now

    def _generate(self, command: c.Generate) -> None:
        traj, engine, now = command.traj, command.engine, self.now
        episode, machine = self._episodes[traj], self._machines[engine]
        self._reserve(command, episode, machine)
        if episode.engine != engine and episode.engine in self._machines:
            self._machines[episode.engine].forget(traj)  # a trajectory that moves leaves no prefix behind
        episode.stages[0] += now - episode.entered
        episode.entered = now
        episode.engine, episode.cmd = engine, command.seq
        tokens = episode.turns[episode.turn].sampled_tokens - episode.sampled
        if self.workload.over_cap == "continue" or command.max_new_tokens < episode.told:
            tokens = min(tokens, command.max_new_tokens)
        self.recorder.turns += 1
        self.recorder.first_turn_s = min(self.recorder.first_turn_s, now)
        machine.submit(Row(command.seq, traj, episode.context, tokens, now), now)
        self._appointment(machine)

    def _reserve(self, command: c.Generate, episode: Episode, machine: Machine) -> None:
        engine = command.engine
        bucket = self.config.bucket[self.core.fleet.bucket_of(engine)]
        episode.reserved = episode.context + math.ceil(self.config.scheduler.reserve_share * command.max_new_tokens)
        self._reserved[engine] += episode.reserved
        self._running[engine] += 1
        what = f"turn {command.seq} of trajectory {command.traj} on engine {engine}"
        if episode.cmd:
            raise CoreError(f"{what}: it runs already, on engine {episode.engine}")
        if self._reserved[engine] > bucket.kv_tokens:
            raise CoreError(
                f"{what}: {self._reserved[engine]} tokens are promised, there is room for {bucket.kv_tokens}"
            )
        if self._running[engine] > bucket.max_batch:
            raise CoreError(f"{what}: {self._running[engine]} turns, expected at most {bucket.max_batch}")
        if machine.version < 0:
            raise CoreError(f"{what}: it has no weights yet")

    def _release(self, episode: Episode) -> None:
        self._reserved[episode.engine] -= episode.reserved
        self._running[episode.engine] -= 1
        episode.cmd = 0

    def _appointment(self, machine: Machine) -> None:
        """Keep the machine's newest appointment, if it has one that is not on the heap yet."""
        if machine.until < NEVER and machine.appointed != machine.serial:
            machine.appointed = machine.serial
            self._at(machine.until, (machine, machine.serial))

    def _wake(self, machine: Machine) -> None:
        for row in machine.settle(self.now):
            self._turn_over(machine, row)
        if (install := machine.install) is not None:
            cmd, version, seconds = install
            machine.version, machine.install = version, None
            for rank in self._installs.pop(cmd).ranks:
                self._feed(e.WeightsInstalled(self.now, cmd, rank, version, seconds))
        if self.truth is not None:
            machine.pace = self.truth.pace(machine.id, self.now)
        machine.proceed(self.now)
        self._appointment(machine)

    def _turn_over(self, machine: Machine, row: Row) -> None:
        episode = self._episodes.get(row.traj)
        if episode is None or episode.cmd != row.cmd:
            return
        now, tokens = self.now, row.sampled
        self._release(episode)
        episode.sampled += tokens
        episode.context += tokens
        episode.left -= tokens
        episode.told -= tokens
        joined = row.joined if row.joined >= 0 else now
        prefill_from = min(row.prefill_from, joined)
        episode.stages[1] += prefill_from - row.submitted
        episode.stages[2] += joined - prefill_from
        episode.stages[3] += now - joined
        episode.entered = now
        if tokens and (episode.oldest < 0 or row.oldest < episode.oldest):
            episode.oldest = row.oldest
        finish: e.Finish = "stop"
        if episode.sampled < episode.turns[episode.turn].sampled_tokens:
            finish = "cut" if row.cut or row.outgrown or episode.told > 0 else "length"
            if finish == "cut" and episode.told <= 0:  # it outran its cap: the rest has the same again
                episode.told = episode.cap
        oldest, newest = (row.oldest, machine.version) if tokens else (-1, -1)
        self.recorder.last_turn_s = now
        self._feed(e.TurnGenerated(now, row.cmd, row.traj, machine.id, tokens, oldest, newest, finish))

    def _act(self, command: c.Act) -> None:
        episode, now, seq, traj = self._episodes[command.traj], self.now, command.seq, command.traj
        episode.entered = now
        turn = episode.turns[episode.turn]
        if episode.sampled < turn.sampled_tokens:
            told = self._tell(episode)
            self._at(now, e.ToolReturned(now, seq, traj, CONTINUE, "ok", 0, 0.0, episode.context, told))
            return
        tool_s = turn.tool_s
        if self.truth is not None:
            tool_s *= self.truth.tool(episode.kind, episode.prompt, episode.sample, episode.batch, episode.turn)
        t = now + tool_s
        episode.turn += 1
        if episode.turn == len(episode.turns):
            worth = reward(self.config.run.seed, episode.kind, episode.prompt, episode.sample, episode.batch)
            self._at(t, e.EpisodeEnded(t, seq, traj, worth, episode.total, episode.context))
            return
        episode.sampled = 0
        episode.context += turn.observed_tokens
        told = self._tell(episode)
        observed = turn.observed_tokens
        self._at(t, e.ToolReturned(t, seq, traj, turn.tool, turn.status, observed, tool_s, episode.context, told))

    def _ended(self, event: e.EpisodeEnded) -> None:
        episode = self._episodes.get(event.traj)
        if episode is not None and episode.kind == "train":
            episode.stages[4] += self.now - episode.entered
            episode.entered = self.now
            self.recorder.finished(episode.batch, self.now, episode.stages)

    def _discard(self, traj: int) -> None:
        episode = self._episodes.pop(traj)
        machine = self._machines.get(episode.engine)
        if machine is not None:
            if episode.cmd:
                machine.cancel(episode.cmd, traj, self.now)
                self._release(episode)
                self._appointment(machine)
            else:
                machine.forget(traj)
        if episode.in_training:
            self.recorder.stage_s["training"] += self.now - episode.entered

    # --- training

    def _round(self, command: c.Round | c.Accumulate) -> None:
        """Of the core, or of a replica; each takes one after the other."""
        slots: list[list[int]] = []
        for micro in command.slots:
            slots.append([])
            for row in micro.rows if micro is not None else ():
                episode = self._episodes[row.traj]
                self._check_lag(command.step, episode, row.traj)
                self.recorder.stage_s["ready"] += self.now - episode.entered
                episode.entered, episode.in_training = self.now, True
                slots[-1].append(episode.context)
        seconds = round_s(self.config, self.plan.cost, slots)
        unit = command.replica if isinstance(command, c.Accumulate) else CORE
        if unit == CORE:
            self.recorder.trainer_busy_s += seconds
        self._free_s[unit] = t = max(self.now, self._free_s.get(unit, 0.0)) + seconds
        for rank in command.ranks:
            self._at(t, e.RoundDone(t, command.seq, rank, seconds))

    def _check_lag(self, step: int, episode: Episode, traj: int) -> None:
        if step - episode.oldest > self.config.max_lag:
            raise CoreError(
                f"trajectory {traj} trains at version {step} with a token of version {episode.oldest}: a lag of "
                f"{step - episode.oldest}, expected at most {self.config.max_lag}"
            )

    def _close(self, command: c.CloseStep) -> None:
        t = max(self.now, self._free_s.get(CORE, 0.0))
        for rank in command.ranks:
            self._at(t, e.StepDone(t, command.seq, rank, True, 0.0, 0.0, 0.0))
            self._at(t, e.WeightsHeld(t, rank, command.version))


def simulate(config: Config, watch: Watch | None = None) -> SimReport:
    """Plan and run. Raises PreflightError or ConfigError for what cannot be simulated."""
    return Simulation(plan(config), watch).run()
