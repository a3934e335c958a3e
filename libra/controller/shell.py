"""Carries out the core's commands on real processes, and turns what they say into events.

    core's command ──> carry_out ──> a message on a link │ a session's task │ a timer │ a line for people
    message on a link ──> heard ──> event

One object holds what is live of a run: links by rank, episodes, addresses of weights.
"""

from pathlib import Path

import anyio
import anyio.abc
import msgspec

from libra.config.rundir import TREE_FILE
from libra.control.messages import OrderRequest
from libra.controller.checkpoints import Checkpoints
from libra.controller.clock import Clock
from libra.controller.control import ControlRoom
from libra.controller.episodes import Transcripts
from libra.controller.links import Link
from libra.controller.monitor import Monitor
from libra.controller.runtime import Runtime
from libra.controller.screen import Screen
from libra.controller.world import World
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.fleet import CORE
from libra.errors import WireError
from libra.telemetry import tree_file
from libra.telemetry.journal import JournalWriter
from libra.telemetry.summary import Tally
from libra.telemetry.transcripts import DIRECTORY as TRANSCRIPTS
from libra.telemetry.transcripts import TranscriptWriter
from libra.wire import messages as m
from libra.wire.frames import AsyncReader
from libra.wire.rendezvous import Meeting

KILL_GRACE_S = 2.0
"""Between asking a role to end and killing it."""


class Shell:
    def __init__(
        self,
        core: Core,
        world: World,
        run_dir: Path,
        meeting: Meeting,
        journal: JournalWriter,
        tally: Tally,
        screen: Screen,
        tasks: anyio.abc.TaskGroup,
        clock: Clock,
    ) -> None:
        self.config = config = world.config
        self.core = core
        self.clock = clock
        self.monitor = Monitor(config.deadline, clock.wall, self._noticed)
        self.control = ControlRoom(
            self.core,
            screen,
            self.monitor.linked,
            clock,
            meeting.incarnation,
            screen.log,
            self._order,
            wall=clock.wall,
        )
        self.runtime = Runtime(self.core, journal, (tally, self.control), self.carry_out, clock)
        self.episodes = world.episodes(tasks, clock, self.runtime.post, self._transcripts(run_dir, screen))
        self.checkpoints = Checkpoints(
            self.core, run_dir, meeting.incarnation, screen, tasks, clock,
            lambda message: self._to_unit(CORE, message), self.runtime.post,
        )  # fmt: skip
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
        """Start -> link of a role process that has said hello."""
        self._starts: dict[int, c.StartRole] = {}
        """Role processes that may run, by their start: a rank has two while it moves."""
        self._logs: dict[str, int] = {}
        """How many logs of this name were begun."""
        self._offers: dict[int, dict[int, m.ShareOffered]] = {}
        """Replica -> rank -> where its part of the share can be fetched."""
        self._sources: dict[int, str] = {}
        """Core rank -> address of its publisher."""
        self._complaints: dict[int, str] = {}
        self._saving = anyio.Lock()

    def _transcripts(self, run_dir: Path, screen: Screen) -> Transcripts:
        names, fleet = self.config.bucket_names, self.core.fleet
        writer = TranscriptWriter(
            run_dir / TRANSCRIPTS, self.config.transcripts, lambda what: screen.report("warning", what)
        )
        return Transcripts(writer, lambda engine: names[fleet.bucket_of(engine)])

    # --- commands

    def carry_out(self, command: c.Command) -> None:
        match command:
            case c.Generate():
                self._generate(command)
            case c.Act():
                self.episodes.act(command)
            case c.OpenTrajectory():
                self.episodes.open(command)
            case c.Discard():
                self._discard(command)
            case c.CutTurn(traj=traj, engine=engine):
                self._to_leader(engine, m.Cut(traj))
            case c.OpenStep(seq=seq, step=step, batch=batch, loss_tokens=loss_tokens):
                self._to_unit(CORE, m.Open(seq, step, batch, loss_tokens))
            case c.Round():
                self._round(command)
            case c.Accumulate():
                self._accumulate(command)
            case c.OfferShare(seq=seq, step=step, replica=replica):
                self._offers[replica] = {}
                self._to_unit(replica, m.OfferShare(seq, step))
            case c.FetchShare():
                self._fetch_share(command)
            case c.CloseStep(seq=seq, step=step, version=version, shares=shares):
                self._offers.clear()
                self._to_unit(CORE, m.Close(seq, step, version, shares))
            case c.InstallWeights(seq=seq, unit=unit, version=version):
                sources = tuple(self._sources[r] for r in self.core.fleet.trainers)
                self._to_unit(unit, m.Install(seq, version, sources))
            case c.StartRole():
                self._start_role(command)
            case c.StopRole(rank=rank, start=start, reason=reason):
                self._screen.log(f"rank {rank}: its role is ended: {reason}")
                self._complaints.setdefault(start, reason)
                self._to_supervisor(rank, m.KillRole(start, KILL_GRACE_S))
            case c.FormGroup(seq=seq, group=group, members=members, epoch=epoch, attempt=attempt):
                prefix = f"{self._meeting.incarnation}/{epoch}/{group}/{attempt}"
                unit = self._former(members[0])
                for index, rank in enumerate(members):
                    self._to_unit(unit, m.FormMembers(seq, prefix, index, len(members)), rank)
            case c.WarmStart(seq=seq):
                self._to_unit(CORE, m.StartWarm(seq))
            case c.SaveCheckpoint():
                self.checkpoints.save(command)
            case c.LoadCheckpoint():
                self.checkpoints.load(command)
            case c.TidyCheckpoints():
                self.checkpoints.tidy(command)
            case c.SetTimer(seq=seq, at=at):
                self._tasks.start_soon(self._timer, seq, at)
            case c.BatchConsumed(batch=batch):
                self._screen.command(self.clock(), command)
                if (batch + 1) % self.config.scheduler.tree.save_steps == 0:
                    self._tasks.start_soon(self.save_tree)
            case c.Report() | c.Evaluated() | c.MoveChanged():
                self._screen.command(self.clock(), command)
            case c.AnswerOrder(id=id, accepted=accepted, reason=reason, epoch=epoch):
                self.control.desk.answered(id, accepted, reason, epoch)
            case c.FinishRun():
                self.finish = command
                self.finished.set()
            case _:
                raise TypeError(f"no way to carry out {type(command).__name__}")

    def _generate(self, command: c.Generate) -> None:
        episode = self.episodes.all[command.traj]
        self._forget_prefix(episode.engine, episode.id, command.engine)
        episode.engine, episode.generating = command.engine, command.seq
        self._to_leader(command.engine, self.episodes.turn(command))

    def _forget_prefix(self, engine: int, traj: int, next_engine: int) -> None:
        """A trajectory that moves leaves no prefix behind."""
        if engine not in (-1, next_engine):
            self._to_leader(engine, m.Forget([traj]))

    def _discard(self, command: c.Discard) -> None:
        by_engine: dict[int, list[int]] = {}
        for episode in self.episodes.discard(command.trajs):
            by_engine.setdefault(episode.engine, []).append(episode.id)
        for engine, trajs in by_engine.items():
            if engine >= 0:
                self._to_leader(engine, m.Forget(trajs))

    def _round(self, command: c.Round) -> None:
        counts = self.episodes.counts(command.slots)
        for rank, micro_batch in zip(command.ranks, command.slots, strict=True):
            samples = self.episodes.samples(micro_batch.rows if micro_batch else ())
            self._to_unit(CORE, m.RunRound(command.seq, command.index, samples, counts), rank)

    def _accumulate(self, command: c.Accumulate) -> None:
        counts = self.episodes.counts(command.slots)
        for rank, micro_batch in zip(command.ranks, command.slots, strict=True):
            samples = self.episodes.samples(micro_batch.rows if micro_batch else ())
            order = m.Accumulate(command.seq, command.step, command.step, command.loss_tokens, samples, counts)
            self._to_unit(command.replica, order, rank)

    def _fetch_share(self, command: c.FetchShare) -> None:
        """What goes with the share is counted once: by the core's first rank."""
        offers = [self._offers[command.replica][rank] for rank in command.sources]
        addresses = tuple(offer.address for offer in offers)
        deadline_s = self.config.deadline.share_s
        for index, rank in enumerate(command.ranks):
            notes = [] if index else [offer.note for offer in offers]
            order = m.FetchShare(
                command.seq, command.step, command.replica, offers[0].version, addresses, notes, deadline_s
            )
            self._to_unit(CORE, order, rank)

    def _start_role(self, command: c.StartRole) -> None:
        self._starts[command.seq] = command
        spec = m.RoleSpec(
            rank=command.rank,
            start=command.seq,
            role=command.role,
            epoch=command.epoch,
            unit=command.unit,
            bucket=command.bucket,
            incarnation=self._meeting.incarnation,
            token=self._meeting.token,
            controller=self._meeting.address,
            device=self.config.run.device,
            config=self._config_json,
            emulated=self.config.emulated,
        )
        self._to_supervisor(command.rank, m.SpawnRole(command.seq, spec, str(self._log_of(command))))
        self.monitor.role_started(command.rank, command.seq)

    def _log_of(self, command: c.StartRole) -> Path:
        """`rank-3.rollout-0.log`; `rank-3.rollout-0.1.log` where that unit starts there once more."""
        role = command.role if command.unit == CORE else f"{command.role}-{command.unit}"
        name = f"rank-{command.rank}.{role}"
        again = self._logs.get(name, 0)
        self._logs[name] = again + 1
        return self._run_dir / "logs" / (f"{name}.{again}.log" if again else f"{name}.log")

    async def _timer(self, seq: int, at: float) -> None:
        await self.clock.sleep_until(at)
        self.runtime.post(e.TimerFired(max(at, self.clock()), seq))

    def _to_unit(self, id: int, message: m.Message, rank: int | None = None) -> None:
        """To all roles of a unit, or to that of one rank. One without a link is down: its end is on its way to the core."""
        unit = self.core.fleet.unit(id)
        for member in unit.ranks if unit is not None and rank is None else (rank,):
            start = unit.starts.get(member, 0) if unit is not None and member is not None else 0
            if (link := self._roles.get(start)) is not None:
                link.send(message)

    def _to_leader(self, engine: int, message: m.Message) -> None:
        """The first rank of an engine runs its turns. An engine that has moved away needs nothing any more."""
        if (unit := self.core.fleet.engines.get(engine)) is not None:
            self._to_unit(engine, message, unit.ranks[0])

    def _former(self, rank: int) -> int:
        """The unit of `rank` that is about to form its group."""
        units = [self._starts[start].unit for start in self._roles if self._starts[start].rank == rank]
        return next(id for id in units if (u := self.core.fleet.unit(id)) is not None and u.state == "forming")

    def _to_supervisor(self, rank: int, message: m.Message) -> None:
        if (link := self._supervisors.get(rank)) is not None:
            link.send(message)

    def _noticed(self, event: e.RoleStalled) -> None:
        """The monitor watches by real seconds."""
        self.runtime.post(msgspec.structs.replace(event, t=self.clock()))

    def _order(self, request: OrderRequest, author: str) -> None:
        """A person's order, on its way into the core as soon as the present event is done with."""

        async def give() -> None:
            order = e.OrderGiven(self.clock(), request.id, author, request.expected_epoch, request.order)
            self.runtime.post(order)

        self._tasks.start_soon(give)

    async def save_tree(self) -> None:
        """Write what scheduling has learnt; a disk that refuses costs this file, never the run."""
        async with self._saving:
            try:
                await anyio.to_thread.run_sync(
                    tree_file.write, self._run_dir / TREE_FILE, self.config, self.core.learned()
                )
            except OSError as x:
                self._screen.report("warning", f"{TREE_FILE} was not written: {x}")

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
        if rank in self._supervisors:
            self._rank_lost(rank, "its supervisor came back on a new link")
        self._supervisors[rank] = link
        self.monitor.joined(rank, link.close)
        if self.finished.is_set():
            link.send(m.Shutdown(0.0))
        else:
            self.runtime.post(e.RankJoined(self.clock(), rank, hello.host, self.config.run.device))
        reason = "its link closed"
        try:
            while True:
                match await reader.receive():
                    case m.Heartbeat() as beat:
                        link.send(m.HeartbeatSeen(beat.n))
                        self.monitor.heartbeat(rank, beat)
                    case m.ChildExited(start=start, code=code, log_tail=log_tail):
                        self._role_exited(rank, start, code, log_tail)
                    case other:
                        raise WireError(f"unexpected {type(other).__name__} on a supervisor link")
        except WireError as x:
            reason = str(x)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        if self._supervisors.get(rank) is link:
            self._rank_lost(rank, self.monitor.why(rank) or reason)

    def _rank_lost(self, rank: int, reason: str) -> None:
        """Cut off whatever of this rank is still linked. Its roles may live on until their lease ends: what they say is not
        heard any more, and no process of an earlier start is let in again."""
        self._supervisors.pop(rank).close()
        self.monitor.left(rank)
        for start in [start for start, command in self._starts.items() if command.rank == rank]:
            self._forget_role(start)
        if not self.finished.is_set():
            self.runtime.post(e.RankLost(self.clock(), rank, reason))
        elif not self._supervisors:
            self.all_gone.set()

    def _forget_role(self, start: int) -> None:
        self._starts.pop(start, None)
        if (role := self._roles.pop(start, None)) is not None:
            role.close()

    def _role_exited(self, rank: int, start: int, code: int, log_tail: str) -> None:
        self._forget_role(start)
        self.monitor.role_ended(rank, start)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = self._complaints.pop(start, "") or f"its process {how}"
        if not self.finished.is_set():
            self._screen.log(f"role of rank {rank} {how}; the end of its log:\n{log_tail}")
            self.runtime.post(e.RoleExited(self.clock(), rank, start, code, reason))

    async def _serve_role(self, link: Link, hello: m.RoleHello, reader: AsyncReader[m.ToController]) -> None:
        known = self._starts.get(hello.start)
        if known is None or known.rank != hello.rank:
            link.send(m.Refused(f"rank {hello.rank} does not run the role of start {hello.start} any more"))
            return
        self._roles[hello.start] = link
        self.runtime.post(e.RoleReady(self.clock(), hello.start, hello.rank))
        try:
            while True:
                message = await reader.receive()
                if self._roles.get(hello.start) is not link:
                    return  # it counts as ended: its word does not count any more
                self._heard(known, message)
        except WireError as x:
            self._complaints.setdefault(hello.start, str(x))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the supervisor reports its end

    def _heard(self, role: c.StartRole, message: m.ToController) -> None:
        now, rank, unit = self.clock(), role.rank, role.unit
        match message:
            case m.TurnsDone(turns=turns) | m.EmulatedTurnsDone(turns=turns):
                for turn in turns:
                    if (event := self.episodes.took(turn, unit)) is not None:
                        self.runtime.post(event)
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
                self.runtime.post(e.WeightsInstalled(now, cmd, rank, version, seconds))
            case m.InstallFailed(cmd=cmd, version=version, reason=reason):
                self.runtime.post(e.WeightsFailed(now, cmd, rank, version, reason))
            case m.RoundRefused(cmd=cmd, reason=reason):
                self.runtime.post(e.RoundRefused(now, cmd, rank, reason))
            case m.ShareOffered(cmd=cmd):
                self._offers.setdefault(unit, {})[rank] = message
                self.runtime.post(e.ShareOffered(now, cmd, rank))
            case m.ShareFetched(cmd=cmd, seconds=seconds):
                self.runtime.post(e.ShareHeld(now, cmd, rank, seconds))
            case m.ShareLost(cmd=cmd, reason=reason):
                self.runtime.post(e.ShareLost(now, cmd, rank, reason))
            case m.Saved() | m.SaveFailed():
                self.checkpoints.heard(rank, message)
            case m.Loaded(cmd=cmd, seconds=seconds):
                self.runtime.post(e.CheckpointLoaded(now, cmd, rank, seconds))
            case m.EngineStats():
                if self._screen.engine_stats(unit, message):
                    x = message
                    used = (x.running, x.waiting, x.kv_tokens, x.prefilled_tokens, x.reused_tokens, x.preemptions)
                    self.runtime.post(e.EngineReported(now, unit, *used))
            case m.Formed(cmd=cmd):
                self.runtime.post(e.GroupFormed(now, cmd, rank))
            case m.WarmProgress():
                self._screen.warm_progress(message)
            case m.Warmed(cmd=cmd, cached=cached, loss=loss, seconds=seconds):
                self.runtime.post(e.WarmStarted(now, cmd, rank, cached, loss, seconds))
            case m.Complaint(reason=reason, trace=trace):
                self._complaints[role.seq] = reason
                self._screen.log(f"rank {rank}: {trace}")
            case _:
                raise WireError(f"unexpected {type(message).__name__} on a role link")

    # --- the end

    def stop_roles(self) -> None:
        """Ask every role, then every supervisor, to end."""
        for link in self._roles.values():
            link.send(m.Stop())
        if not self._supervisors:
            self.all_gone.set()
        for link in self._supervisors.values():
            link.send(m.Shutdown(self.config.deadline.stop_s / 2))
