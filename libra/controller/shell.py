"""Carries out the core's commands on real processes, and turns what they say into events.

    core's command ──> carry_out ──> a message on a link │ a session's task │ a timer │ a line for people
    message on a link ──> heard ──> event

One object holds what is live of a run: links by rank, episodes, addresses of weights.
"""

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from libra.config.schema import Config
from libra.controller.episodes import Episodes
from libra.controller.links import Link
from libra.controller.monitor import Monitor
from libra.controller.runtime import Runtime
from libra.controller.screen import Screen
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.env.protocol import Environment
from libra.errors import WireError
from libra.telemetry.journal import JournalWriter
from libra.telemetry.summary import Tally
from libra.wire import messages as m
from libra.wire.frames import AsyncReader
from libra.wire.rendezvous import Meeting

KILL_GRACE_S = 2.0
"""Between asking a role to end and killing it."""


class Shell:
    def __init__(
        self,
        config: Config,
        run_dir: Path,
        meeting: Meeting,
        journal: JournalWriter,
        tally: Tally,
        screen: Screen,
        environment: Environment,
        tasks: anyio.abc.TaskGroup,
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.core = Core(config)
        self.clock = clock
        self.runtime = Runtime(self.core, journal, tally, self.carry_out, clock)
        self.episodes = Episodes(
            environment, config.run.seed, config.live_env.tool.deadline_s, tasks, clock, self.runtime.post
        )
        self.monitor = Monitor(config.deadline, clock, self.runtime.post)
        self.finish: c.FinishRun | None = None
        self.finished = anyio.Event()
        self.all_gone = anyio.Event()
        """No supervisor is linked any more."""
        self._run_dir = run_dir
        self._meeting = meeting
        self._screen = screen
        self._tasks = tasks
        self._config_json = msgspec.json.encode(config)
        self._supervisors: dict[int, Link] = {}
        self._roles: dict[int, Link] = {}
        """The role link of each rank: of its present role process only."""
        self._starts: dict[int, int] = {}
        self._devices: dict[int, str] = {}
        self._sources: dict[int, str] = {}
        """Core rank -> address of its publisher."""
        self._complaints: dict[int, str] = {}

    # --- commands

    def carry_out(self, command: c.Command) -> None:
        match command:
            case c.Generate():
                self._generate(command)
            case c.CutTurn(traj=traj, engine=engine):
                self._to_roles(self.core.fleet.engines[engine].ranks, m.Cut(traj))
            case c.Act():
                self.episodes.act(command)
            case c.OpenTrajectory():
                self.episodes.open(command)
            case c.Discard():
                self._discard(command)
            case c.OpenStep(seq=seq, step=step, batch=batch, loss_tokens=loss_tokens, ranks=ranks):
                self._to_roles(ranks, m.Open(seq, step, batch, loss_tokens))
            case c.Round():
                self._round(command)
            case c.CloseStep(seq=seq, step=step, version=version, ranks=ranks):
                self._to_roles(ranks, m.Close(seq, step, version))
            case c.InstallWeights(seq=seq, engine=engine, version=version):
                sources = tuple(self._sources[r] for r in self.core.fleet.trainers)
                self._to_roles(self.core.fleet.engines[engine].ranks, m.Install(seq, version, sources))
            case c.StartRole():
                self._start_role(command)
            case c.StopRole(rank=rank, start=start, reason=reason):
                self._screen.report("warning", f"rank {rank}: its role is ended: {reason}")
                self._complaints.setdefault(start, reason)
                self._to_supervisor(rank, m.KillRole(start, KILL_GRACE_S))
            case c.FormGroup(seq=seq, group=group, members=members, epoch=epoch, attempt=attempt):
                prefix = f"{self._meeting.incarnation}/{epoch}/{group}/{attempt}"
                for index, rank in enumerate(members):
                    self._to_roles((rank,), m.FormMembers(seq, prefix, index, len(members)))
            case c.WarmStart(seq=seq, ranks=ranks):
                self._to_roles(ranks, m.StartWarm(seq))
            case c.SetTimer(seq=seq, at=at):
                self._tasks.start_soon(self._timer, seq, at)
            case c.Report() | c.BatchConsumed() | c.Evaluated():
                self._screen.command(self.clock(), command)
            case c.FinishRun():
                self.finish = command
                self.finished.set()
            case _:
                raise TypeError(f"no way to carry out {type(command).__name__}")

    def _generate(self, command: c.Generate) -> None:
        episode = self.episodes.all[command.traj]
        self._forget_prefix(episode.engine, episode.id, command.engine)
        episode.engine, episode.generating = command.engine, command.seq
        ranks = self.core.fleet.engines[command.engine].ranks
        self._to_roles(ranks, m.Turn(command.seq, episode.id, episode.tokens, command.max_new_tokens, episode.noise))

    def _forget_prefix(self, engine: int, traj: int, next_engine: int) -> None:
        """A trajectory that moves leaves no prefix behind."""
        if engine not in (-1, next_engine):
            self._to_roles(self.core.fleet.engines[engine].ranks, m.Forget([traj]))

    def _discard(self, command: c.Discard) -> None:
        by_engine: dict[int, list[int]] = {}
        for episode in self.episodes.discard(command.trajs):
            by_engine.setdefault(episode.engine, []).append(episode.id)
        for engine, trajs in by_engine.items():
            if engine >= 0:
                self._to_roles(self.core.fleet.engines[engine].ranks, m.Forget(trajs))

    def _round(self, command: c.Round) -> None:
        for rank, micro_batch in zip(command.ranks, command.slots, strict=True):
            rows = micro_batch.rows if micro_batch else ()
            samples = [self.episodes.all[row.traj].sample(row.advantage) for row in rows]
            self._to_roles((rank,), m.RunRound(command.seq, command.index, samples))

    def _start_role(self, command: c.StartRole) -> None:
        self._starts[command.rank] = command.seq
        self._roles.pop(command.rank, None)
        spec = m.RoleSpec(
            rank=command.rank,
            start=command.seq,
            role=command.role,
            epoch=command.epoch,
            engine=command.engine,
            bucket=command.bucket,
            incarnation=self._meeting.incarnation,
            token=self._meeting.token,
            controller=self._meeting.address,
            device=self._devices[command.rank],
            config=self._config_json,
        )
        log = str(self._run_dir / "logs" / f"rank-{command.rank}.{command.role}.{command.epoch}.log")
        self._to_supervisor(command.rank, m.SpawnRole(command.seq, spec, log, self.config.trainer.threads))
        self.monitor.role_started(command.rank, command.seq)

    async def _timer(self, seq: int, at: float) -> None:
        await anyio.sleep(max(0.0, at - self.clock()))
        self.runtime.post(e.TimerFired(max(at, self.clock()), seq))

    def _to_roles(self, ranks: tuple[int, ...], message: m.Message) -> None:
        """A rank without a role link is down: its RoleExited is on its way, and the core acts on that."""
        for rank in ranks:
            if (link := self._roles.get(rank)) is not None:
                link.send(message)

    def _to_supervisor(self, rank: int, message: m.Message) -> None:
        if (link := self._supervisors.get(rank)) is not None:
            link.send(message)

    # --- links

    async def serve(self, link: Link, reader: AsyncReader[m.ToController]) -> None:
        """One peer from its hello to the end of its link."""
        hello = link.hello
        if isinstance(hello, m.SupervisorHello):
            await self._serve_supervisor(link, hello, reader)
        else:
            await self._serve_role(link, hello, reader)

    async def _serve_supervisor(
        self, link: Link, hello: m.SupervisorHello, reader: AsyncReader[m.ToController]
    ) -> None:
        rank = hello.rank
        self._supervisors[rank] = link
        self._devices[rank] = hello.device
        self.monitor.joined(rank, link.close)
        self.runtime.post(e.RankJoined(self.clock(), rank, hello.host, hello.device))
        reason = "its link closed"
        try:
            while True:
                match await reader.receive():
                    case m.Heartbeat() as beat:
                        self.monitor.heartbeat(rank, beat)
                    case m.ChildExited(start=start, code=code, log_tail=log_tail):
                        self._role_exited(rank, start, code, log_tail)
                    case other:
                        raise WireError(f"unexpected {type(other).__name__} on a supervisor link")
        except WireError as x:
            reason = str(x)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        self.monitor.left(rank)
        del self._supervisors[rank]
        if not self._supervisors:
            self.all_gone.set()
        if not self.finished.is_set():
            self.runtime.post(e.RankLost(self.clock(), rank, self.monitor.why(rank) or reason))

    def _role_exited(self, rank: int, start: int, code: int, log_tail: str) -> None:
        if self._starts.get(rank) == start:
            self._roles.pop(rank, None)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = self._complaints.pop(start, "") or f"its process {how}"
        if not self.finished.is_set():
            self._screen.log(f"role of rank {rank} {how}; the end of its log:\n{log_tail}")
            self.runtime.post(e.RoleExited(self.clock(), rank, start, code, reason))

    async def _serve_role(self, link: Link, hello: m.RoleHello, reader: AsyncReader[m.ToController]) -> None:
        if self._starts.get(hello.rank) != hello.start:
            link.send(m.Refused(f"rank {hello.rank} has a newer role process than the one of start {hello.start}"))
            link.close()
            return
        self._roles[hello.rank] = link
        self.runtime.post(e.RoleReady(self.clock(), hello.start, hello.rank))
        try:
            while True:
                message = await reader.receive()
                if self._roles.get(hello.rank) is not link:
                    return  # an earlier process of this rank: its word does not count any more
                self._heard(hello.rank, hello.start, message)
        except WireError as x:
            self._complaints.setdefault(hello.start, str(x))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the supervisor reports its end

    def _heard(self, rank: int, start: int, message: m.ToController) -> None:
        now = self.clock()
        engine = self.core.fleet.ranks[rank].engine
        match message:
            case m.TurnsDone(turns=turns):
                for turn in turns:
                    self._turn_done(engine, turn)
            case m.RoundFinished(cmd=cmd, seconds=seconds):
                self.runtime.post(e.RoundDone(now, cmd, rank, seconds))
            case m.StepFinished():
                if message.detail:
                    self._screen.log(f"core rank {rank}: {message.detail}")
                x = message
                self.runtime.post(e.StepDone(now, x.cmd, rank, x.finite, x.loss, x.grad_norm, x.seconds, x.gap))
            case m.Held(version=version, address=address):
                self._sources[rank] = address
                self.runtime.post(e.WeightsHeld(now, rank, version))
            case m.Installed(cmd=cmd, version=version, seconds=seconds):
                self.runtime.post(e.WeightsInstalled(now, cmd, engine, version, seconds))
            case m.InstallFailed(cmd=cmd, version=version, reason=reason):
                self.runtime.post(e.WeightsFailed(now, cmd, engine, version, reason))
            case m.EngineStats():
                self._screen.engine_stats(engine, message)
            case m.Formed(cmd=cmd):
                self.runtime.post(e.GroupFormed(now, cmd, rank))
            case m.WarmProgress():
                self._screen.warm_progress(message)
            case m.Warmed(cmd=cmd, cached=cached, loss=loss, seconds=seconds):
                self.runtime.post(e.WarmStarted(now, cmd, rank, cached, loss, seconds))
            case m.Complaint(reason=reason, trace=trace):
                self._complaints[start] = reason
                self._screen.log(f"rank {rank}: {trace}")
            case _:
                raise WireError(f"unexpected {type(message).__name__} on a role link")

    def _turn_done(self, engine: int, turn: m.TurnDone) -> None:
        episode = self.episodes.all.get(turn.traj)
        if episode is None or episode.generating != turn.cmd:
            return  # discarded, or placed anew after its engine was given up
        episode.take(turn)
        oldest, newest = (min(turn.versions), max(turn.versions)) if turn.versions else (-1, -1)
        self.runtime.post(
            e.TurnGenerated(self.clock(), turn.cmd, turn.traj, engine, len(turn.tokens), oldest, newest, turn.finish)
        )

    # --- the end

    def stop_roles(self) -> None:
        """Ask every role, then every supervisor, to end."""
        for link in self._roles.values():
            link.send(m.Stop())
        if not self._supervisors:
            self.all_gone.set()
        for link in self._supervisors.values():
            link.send(m.Shutdown(self.config.deadline.stop_s / 2))
