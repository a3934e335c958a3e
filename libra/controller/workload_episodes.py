"""Episodes of an emulated job: trajectories of a workload, of which only counts exist.

What `libra.controller.episodes` is to a real job. Trajectories and rewards are those that `libra simulate` sees with the
same configuration and seed. A tool is a wait; nothing in here can fail.
"""

from collections.abc import Callable, Sequence

import anyio
import anyio.abc
from msgspec import structs

from libra.controller.clock import Clock
from libra.core import commands as c
from libra.core import events as e
from libra.sim.plan import Plan
from libra.sim.source import reward
from libra.wire import messages as m
from libra.workload.walk import Return, Walk


class WorkloadEpisode:
    def __init__(self, command: c.OpenTrajectory, batch: int, walk: Walk) -> None:
        self.id = command.traj
        self.command = command
        self.batch = batch
        self.walk = walk
        self.generating = 0
        """The `Generate` that is under way; 0 when none."""
        self.engine = -1
        """Where its last turn was sent."""
        self.scope = anyio.CancelScope()


class WorkloadEpisodes:
    """The tools of all episodes wait as tasks; every result goes to `post` as an event."""

    def __init__(
        self, prepared: Plan, tasks: anyio.abc.TaskGroup, clock: Clock, post: Callable[[e.AnyEvent], None]
    ) -> None:
        self.all: dict[int, WorkloadEpisode] = {}
        self._plan = prepared
        self._tasks = tasks
        self._clock = clock
        self._post = post

    def open(self, command: c.OpenTrajectory) -> None:
        config, source = self._plan.config, self._plan.source
        batch = command.prompt // config.rollout.groups_per_batch if command.kind == "train" else 0
        truth = source.trajectory(command.kind, command.prompt, command.sample, batch)
        walk = Walk(truth, self._plan.workload, source.max_sampled_tokens, source.max_context_tokens)
        self.all[command.traj] = WorkloadEpisode(command, batch, walk)
        self._post(e.TurnReady(self._clock(), command.seq, command.traj, walk.context, walk.tell()))

    def act(self, command: c.Act) -> None:
        episode, began = self.all[command.traj], self._clock()
        back = self._perturbed(episode, episode.walk.act())
        if back.seconds > 0:
            self._tasks.start_soon(self._tool, episode, command.seq, back, began + back.seconds)
        else:
            self._post(self._returned(episode, command.seq, back))

    def discard(self, ids: tuple[int, ...]) -> list[WorkloadEpisode]:
        """Forget the episodes. Returns what was discarded."""
        gone = [self.all.pop(id) for id in ids]
        for episode in gone:
            episode.scope.cancel()
        return gone

    # --- what engines and trainers are sent, and what comes back

    def turn(self, command: c.Generate) -> m.EmulatedTurn:
        walk = self.all[command.traj].walk
        return m.EmulatedTurn(command.seq, command.traj, walk.context, walk.tokens_of(command.max_new_tokens))

    def took(self, turn: m.TurnDone | m.EmulatedTurnDone, engine: int) -> e.TurnGenerated | None:
        """Count what an engine sampled; None where nobody waits for it any more."""
        episode = self.all.get(turn.traj)
        if episode is None or episode.generating != turn.cmd or not isinstance(turn, m.EmulatedTurnDone):
            return None
        episode.generating = 0
        finish = episode.walk.took(turn.tokens, turn.cut)
        return e.TurnGenerated(
            self._clock(), turn.cmd, turn.traj, engine, turn.tokens, turn.oldest, turn.newest, finish
        )

    def samples(self, rows: Sequence[c.Row]) -> list[m.Sample]:
        """None: emulated trainers are sent counts."""
        return []

    def counts(self, slots: Sequence[c.MicroBatch | None]) -> list[list[m.Counts]]:
        return [[self._counts(row.traj) for row in slot.rows] if slot else [] for slot in slots]

    def _counts(self, traj: int) -> m.Counts:
        walk = self.all[traj].walk
        return m.Counts(traj, walk.context, walk.sampled_in_all)

    # --- tools

    def _perturbed(self, episode: WorkloadEpisode, back: Return) -> Return:
        """How long the tool really takes."""
        command, turn = episode.command, episode.walk.turn - 1
        factor = self._plan.truth.tool(command.kind, command.prompt, command.sample, episode.batch, turn)
        return back if factor == 1.0 else structs.replace(back, seconds=back.seconds * factor)

    async def _tool(self, episode: WorkloadEpisode, cmd: int, back: Return, until: float) -> None:
        with episode.scope:
            await self._clock.sleep_until(until)
            self._post(self._returned(episode, cmd, back))

    def _returned(self, episode: WorkloadEpisode, cmd: int, back: Return) -> e.AnyEvent:
        walk, command, now = episode.walk, episode.command, self._clock()
        if back.ended:
            seed = self._plan.config.run.seed
            worth = reward(seed, command.kind, command.prompt, command.sample, episode.batch)
            return e.EpisodeEnded(now, cmd, episode.id, worth, walk.sampled_in_all, walk.context)
        return e.ToolReturned(
            now,
            cmd,
            episode.id,
            back.tool,
            back.status,
            back.observed_tokens,
            back.seconds,
            walk.context,
            walk.tell(),
        )
