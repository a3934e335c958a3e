"""Episodes as the controller keeps them: the environment session, and every token with what is known of it.

Token ids in, token ids out. What the policy sampled is marked and carries its log-probability and version; what was given has
zeros there. The core knows an episode by its id and its counts; this is where its contents live, until it is discarded.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

import anyio
import anyio.abc

from libra.config.worlds import RewardConfig
from libra.core import commands as c
from libra.core import events as e
from libra.env.protocol import Ended, Environment, Session
from libra.env.rewards import Record, worth
from libra.errors import EnvError
from libra.telemetry.transcripts import Return, Transcript, TranscriptWriter, Turn
from libra.wire import messages as m

ACT_MARGIN_S = 60.0
"""A session has its own deadline for the tool; beyond it and this margin (waiting for a free tool worker) it is broken."""


class Episode:
    def __init__(self, command: c.OpenTrajectory, session: Session, seed: int, began: float = 0.0) -> None:
        self.id = command.traj
        self.session = session
        self.noise = (seed, _noise_ordinal(command), command.sample, command.attempt)
        self.tokens: list[int] = []
        self.sampled = bytearray()
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.judged = self.formed = 0
        """Turns whose form the environment has judged, and those of them in a legal form."""
        self.turn_start = 0
        """Index of the first token of the running or last turn."""
        self.generating = 0
        """The `Generate` that is under way; 0 when none."""
        self.engine = -1
        """Where its last turn was sent."""
        self.scope = anyio.CancelScope()
        self.command = command
        self.began = began
        self.kept = False
        """It has been written down, or need not be."""
        self.turns: list[Turn] = []
        self.returns: list[Return] = []

    def give(self, tokens: list[int]) -> None:
        """Append tokens that the policy did not choose."""
        self.tokens += tokens
        self.sampled += bytes(len(tokens))
        self.logprobs += [0.0] * len(tokens)
        self.versions += [-1] * len(tokens)
        self.turn_start = len(self.tokens)

    def take(self, turn: m.TurnDone, engine: int = -1, bucket: str = "") -> None:
        """Append what an engine sampled."""
        n = len(turn.tokens)
        oldest, newest = (min(turn.versions), max(turn.versions)) if n else (-1, -1)
        logprob = round(sum(turn.logprobs) / n, 4) if n else 0.0
        self.turns.append(Turn(len(self.tokens), n, engine, bucket, oldest, newest, turn.finish, logprob))
        self.tokens += turn.tokens
        self.sampled += b"\x01" * len(turn.tokens)
        self.logprobs += turn.logprobs
        self.versions += turn.versions
        self.generating = 0

    @property
    def loss_tokens(self) -> int:
        return self.sampled.count(1)

    def transcript(
        self, now: float, end: Literal["ended", "failed", "dropped"], reward: float = 0.0, why: str = ""
    ) -> Transcript:
        """As people will read it."""
        o = self.command
        return Transcript(
            o.traj, o.group, o.kind, o.prompt, o.sample, o.attempt, end, reward, why, round(now - self.began, 4),
            round(now, 3), self.tokens, self.turns, self.returns,
        )  # fmt: skip

    def sample(self, advantage: float) -> m.Sample:
        """As training sees it."""
        return m.Sample(self.id, self.tokens, bytes(self.sampled), self.logprobs, self.versions, advantage)


def _noise_ordinal(command: c.OpenTrajectory) -> int:
    """Prompt ordinals of the four kinds of traffic must not share noise: two low bits tell the kind."""
    return command.prompt * 4 + ("train", "eval_start", "eval_end", "eval").index(command.kind)


class Transcripts(NamedTuple):
    """Where trajectories are written down; `bucket_of(engine)` is the name of its bucket."""

    writer: TranscriptWriter
    bucket_of: Callable[[int], str]


async def _close(sessions: list[Session]) -> None:
    """In one task: a task each would cost more than what most sessions have to free."""
    for session in sessions:
        await session.aclose()


class Episodes:
    """Runs the sessions of all episodes as tasks; every result goes to `post` as an event."""

    def __init__(
        self,
        environment: Environment,
        reward: RewardConfig,
        seed: int,
        tool_deadline_s: float,
        tasks: anyio.abc.TaskGroup,
        clock: Callable[[], float],
        post: Callable[[e.AnyEvent], None],
        transcripts: Transcripts,
    ) -> None:
        self.all: dict[int, Episode] = {}
        self._transcripts = transcripts
        self._environment = environment
        self._reward = reward
        self._seed = seed
        self._deadline_s = tool_deadline_s + ACT_MARGIN_S
        self._tasks = tasks
        self._clock = clock
        self._post = post

    def open(self, command: c.OpenTrajectory) -> None:
        split = "train" if command.kind == "train" else "heldout"
        key = (command.prompt, command.sample, command.attempt)
        session = self._environment.open(split, self._seed, command.prompt, key)
        episode = self.all[command.traj] = Episode(command, session, self._seed, self._clock())
        self._tasks.start_soon(self._guarded, episode, command.seq, self._open)

    def act(self, command: c.Act) -> None:
        self._tasks.start_soon(self._guarded, self.all[command.traj], command.seq, self._act)

    def discard(self, ids: tuple[int, ...]) -> list[Episode]:
        """Close the sessions and forget the tokens. Returns what was discarded."""
        gone = [self.all.pop(id) for id in ids]
        for episode in gone:
            episode.scope.cancel()
            self._keep(episode, "dropped")
        if gone:
            self._tasks.start_soon(_close, [episode.session for episode in gone])
        return gone

    def _keep(
        self, episode: Episode, end: Literal["ended", "failed", "dropped"], reward: float = 0.0, why: str = ""
    ) -> None:
        """Write it down, once: when it ends, or when it is given up before."""
        writer, command = self._transcripts.writer, episode.command
        if not episode.kept and writer.wants(command.kind, command.prompt):
            writer.write(episode.transcript(self._clock(), end, reward, why))
        episode.kept = True

    # --- what engines and trainers are sent, and what comes back

    def turn(self, command: c.Generate) -> m.Turn:
        episode = self.all[command.traj]
        priority = episode.id  # the older trajectory, which belongs to the earlier batch, first
        return m.Turn(command.seq, episode.id, episode.tokens, command.max_new_tokens, episode.noise, priority)

    def took(self, turn: m.TurnDone | m.EmulatedTurnDone, engine: int) -> e.TurnGenerated | None:
        """Keep what an engine sampled; None where nobody waits for it: discarded, or placed anew after its engine was lost."""
        episode = self.all.get(turn.traj)
        if episode is None or episode.generating != turn.cmd or not isinstance(turn, m.TurnDone):
            return None
        episode.take(turn, engine, self._transcripts.bucket_of(engine))
        oldest, newest = (min(turn.versions), max(turn.versions)) if turn.versions else (-1, -1)
        return e.TurnGenerated(
            self._clock(), turn.cmd, turn.traj, engine, len(turn.tokens), oldest, newest, turn.finish
        )

    def samples(self, rows: Sequence[c.Row]) -> list[m.Sample]:
        """The trajectories of a micro-batch, as trainers are sent them."""
        return [self.all[row.traj].sample(row.advantage) for row in rows]

    def counts(self, slots: Sequence[c.MicroBatch | None]) -> list[list[m.Counts]]:
        """None: real trainers are sent samples."""
        return []

    # --- sessions

    async def _guarded(self, episode: Episode, cmd: int, work: Callable[[Episode, int], Awaitable[e.AnyEvent]]) -> None:
        """Run one piece of a session under its deadline; whatever breaks in there fails this trajectory and nothing else."""
        event: e.AnyEvent | None = None
        with anyio.CancelScope() as episode.scope:
            try:
                with anyio.fail_after(self._deadline_s):
                    event = await work(episode, cmd)
            except EnvError as x:
                event = e.TrajectoryFailed(self._clock(), cmd, episode.id, str(x))
            except TimeoutError:
                reason = f"the environment gave no answer within {self._deadline_s:g} s"
                event = e.TrajectoryFailed(self._clock(), cmd, episode.id, reason)
            except Exception as x:  # an environment is code of others
                event = e.TrajectoryFailed(
                    self._clock(), cmd, episode.id, f"{type(x).__name__} in the environment: {x}"
                )
        if event is not None and episode.id in self.all:
            if isinstance(event, e.TrajectoryFailed):
                self._keep(episode, "failed", why=event.reason)
            self._post(event)

    async def _open(self, episode: Episode, cmd: int) -> e.AnyEvent:
        episode.give(await episode.session.prompt())
        context = len(episode.tokens)
        return e.TurnReady(self._clock(), cmd, episode.id, context, episode.session.turn_budget(context))

    async def _act(self, episode: Episode, cmd: int) -> e.AnyEvent:
        result = await episode.session.act(episode.tokens[episode.turn_start :])
        if result.formed is not None:
            episode.judged += 1
            episode.formed += result.formed
        if isinstance(result, Ended):
            loss_tokens = episode.loss_tokens
            said = worth(self._reward, Record(result.reward, episode.judged, episode.formed, loss_tokens))
            self._keep(episode, "ended", said.reward, result.why)
            return e.EpisodeEnded(
                self._clock(), cmd, episode.id, said.reward, loss_tokens, len(episode.tokens), said.stages
            )
        episode.returns.append(
            Return(len(episode.tokens), len(result.tokens), result.tool, result.status, round(result.seconds, 6))
        )
        episode.give(result.tokens)
        context = len(episode.tokens)
        return e.ToolReturned(
            self._clock(),
            cmd,
            episode.id,
            result.tool,
            result.status,
            len(result.tokens),
            result.seconds,
            context,
            episode.session.turn_budget(context),
        )
