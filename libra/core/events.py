"""What the core is told. The shells (live and simulated) make these; nothing else enters the core.

Every event carries `t`, seconds since the run began. An event that answers a command names it in `cmd` (its sequence
number). Events carry counts and ids, never token ids or text; `reason` is one short line for people.
"""

from typing import Literal

from msgspec import Struct

from libra.core.orders import Order

Finish = Literal["stop", "length", "cut"]
Status = Literal["ok", "error", "timeout"]


class Event(Struct, frozen=True, tag=True, array_like=True, gc=False):
    t: float


class Answer(Event, frozen=True, tag=True, array_like=True):
    """An event that answers command `cmd`."""

    cmd: int


# --- ranks and roles


class RunStarted(Event, frozen=True, tag=True, array_like=True):
    """The shell is ready to carry out commands. Always the first event, at t = 0."""


class RankJoined(Event, frozen=True, tag=True, array_like=True):
    """A supervisor said hello. `rank` counts from 1; `device` is `run.device`."""

    rank: int
    host: str
    device: str


class RankLost(Event, frozen=True, tag=True, array_like=True):
    """A supervisor is silent beyond its deadline, or its link broke."""

    rank: int
    reason: str


class RoleReady(Answer, frozen=True, tag=True, array_like=True):
    """The role process of `rank` runs and has said hello to the controller. Answers `StartRole`."""

    rank: int


class RoleExited(Event, frozen=True, tag=True, array_like=True):
    """The role process that `StartRole` number `start` began has ended (on its own or killed), or never came up."""

    rank: int
    start: int
    code: int | None
    reason: str


class RoleStalled(Event, frozen=True, tag=True, array_like=True):
    """The role process that `StartRole` number `start` began has orders but has made no progress for its deadline."""

    rank: int
    start: int
    reason: str


class GroupFormed(Answer, frozen=True, tag=True, array_like=True):
    """`rank` is a member of the group that `FormGroup` asked for, warmed up."""

    rank: int


# --- weights


class WarmStarted(Answer, frozen=True, tag=True, array_like=True):
    """Core rank `rank` holds the weights of the warm start. Answers `WarmStart`."""

    rank: int
    cached: bool
    loss: float
    seconds: float


class WeightsHeld(Event, frozen=True, tag=True, array_like=True):
    """Core rank `rank` serves its shards of `version` from a host buffer."""

    rank: int
    version: int


class WeightsInstalled(Answer, frozen=True, tag=True, array_like=True):
    """`rank` works with `version` from its next step on. Answers `InstallWeights`; `version` may be newer."""

    rank: int
    version: int
    seconds: float


class WeightsFailed(Answer, frozen=True, tag=True, array_like=True):
    """`rank` could not install the version asked for; it keeps the one it has."""

    rank: int
    version: int
    reason: str


# --- trajectories


class TurnReady(Answer, frozen=True, tag=True, array_like=True):
    """The environment session is open and its first turn can be sampled. Answers `OpenTrajectory`."""

    traj: int
    context_tokens: int
    max_new_tokens: int


class TurnGenerated(Answer, frozen=True, tag=True, array_like=True):
    """An engine finished, or cut, a turn. Answers `Generate`.

    `tokens` were sampled in this segment, by policy versions `oldest` to `newest` (both -1 where tokens == 0).
    """

    traj: int
    engine: int
    tokens: int
    oldest: int
    newest: int
    finish: Finish


class ToolReturned(Answer, frozen=True, tag=True, array_like=True):
    """A tool answered and the next turn is ready. Answers `Act`. The signal is (`tool`, `size`, `status`)."""

    traj: int
    tool: str
    status: Status
    observation_tokens: int
    seconds: float
    context_tokens: int
    max_new_tokens: int


class EpisodeEnded(Answer, frozen=True, tag=True, array_like=True):
    """The environment closed the episode with a reward. Answers `Act`."""

    traj: int
    reward: float
    loss_tokens: int
    """Sampled tokens of the whole trajectory: what carries loss."""
    total_tokens: int
    reward_stages: tuple[float, ...] = ()
    """What each stage of `[reward]` said, before its weight, in their order; nothing where there are none."""


class TrajectoryFailed(Answer, frozen=True, tag=True, array_like=True):
    """Infrastructure failed under the trajectory: its own terminal state, never reward 0. Answers `OpenTrajectory` or `Act`."""

    traj: int
    reason: str


class EngineReported(Event, frozen=True, tag=True, array_like=True):
    """What an engine counts itself, when it has changed. The first three are of now, the others since its process began."""

    engine: int
    running: int
    waiting: int
    kv_tokens: int
    prefilled_tokens: int
    reused_tokens: int
    """Context tokens that it found in its prefix cache."""
    preemptions: int


# --- training


class RoundDone(Answer, frozen=True, tag=True, array_like=True):
    """One rank finished one round. Answers `Round`, or `Accumulate` of a replica."""

    rank: int
    seconds: float


class RoundRefused(Answer, frozen=True, tag=True, array_like=True):
    """A rank of a replica cannot take the order: it holds another version. Answers `Accumulate`."""

    rank: int
    reason: str


class ShareOffered(Answer, frozen=True, tag=True, array_like=True):
    """This rank of a replica serves its part of the share. Answers `OfferShare`."""

    rank: int


class ShareHeld(Answer, frozen=True, tag=True, array_like=True):
    """All that core rank `rank` needs of the share lies in its staging buffer. Answers `FetchShare`."""

    rank: int
    seconds: float


class ShareLost(Answer, frozen=True, tag=True, array_like=True):
    """The share cannot be offered, or core rank `rank` cannot fetch it. Answers `OfferShare` or `FetchShare`."""

    rank: int
    reason: str


class LogprobGap(Struct, frozen=True, array_like=True, gc=False):
    """|trainer - engine| log-probability of a step's tokens, mean and worst; None where there were none.

    `mean`, `worst`: tokens whose whole turn was sampled by the version that is trained: what is left is numerics.
    `rest_...`: all others, whose policy, or keys and values, were older: there the policies themselves differ.
    """

    mean: float | None = None
    worst: float | None = None
    rest_mean: float | None = None
    rest_worst: float | None = None

    def figures(self) -> dict[str, float | None]:
        """By the names that they have outside, in metrics and news: plain `gap` is the worst."""
        return {"gap": self.worst, "gap_mean": self.mean, "gap_rest": self.rest_worst, "gap_rest_mean": self.rest_mean}


class StepDone(Answer, frozen=True, tag=True, array_like=True):
    """One core rank closed the step. Answers `CloseStep`. `finite` False: no optimiser step was taken anywhere."""

    rank: int
    finite: bool
    loss: float
    grad_norm: float
    seconds: float
    gap: LogprobGap = LogprobGap()


# --- checkpoints


class CheckpointSaved(Answer, frozen=True, tag=True, array_like=True):
    """The checkpoint is whole and has its name. Answers `SaveCheckpoint`.

    `copy_s`: the longest that a core rank stood still for it. `seconds`: until all was written.
    """

    copy_s: float
    seconds: float
    bytes: int


class CheckpointFailed(Answer, frozen=True, tag=True, array_like=True):
    """Nothing of the checkpoint is left. Answers `SaveCheckpoint`."""

    reason: str


class CheckpointLoaded(Answer, frozen=True, tag=True, array_like=True):
    """Core rank `rank` holds the weights and moments of the checkpoint. Answers `LoadCheckpoint`."""

    rank: int
    seconds: float


# --- time and people


class TimerFired(Answer, frozen=True, tag=True, array_like=True):
    """The time that `SetTimer` asked for has come. Answers `SetTimer`."""


class StopRequested(Event, frozen=True, tag=True, array_like=True):
    """A person, or a signal, asks the run to end: after the open step (`now` False) or at once."""

    now: bool
    author: str


class OrderGiven(Event, frozen=True, tag=True, array_like=True):
    """A person's order. `expected_epoch` is the allocation that its author saw; None: whatever it is."""

    id: str
    author: str
    expected_epoch: int | None
    order: Order


AnyEvent = (
    RunStarted
    | RankJoined
    | RankLost
    | RoleReady
    | RoleExited
    | RoleStalled
    | GroupFormed
    | WarmStarted
    | WeightsHeld
    | WeightsInstalled
    | WeightsFailed
    | TurnReady
    | TurnGenerated
    | ToolReturned
    | EpisodeEnded
    | TrajectoryFailed
    | RoundDone
    | RoundRefused
    | ShareOffered
    | ShareHeld
    | ShareLost
    | StepDone
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointLoaded
    | EngineReported
    | TimerFired
    | StopRequested
    | OrderGiven
)
