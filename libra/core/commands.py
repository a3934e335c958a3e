"""What the core asks of its shell. A shell carries each out and feeds the result back as an event.

`seq` numbers the commands of a run from 1 without gaps; an answering event names it in `cmd`. A shell never does what no
command asked for.
"""

from typing import Literal

from msgspec import Struct

from libra.core.events import LogprobGap

Role = Literal["trainer", "rollout", "gradient"]
Kind = Literal["train", "eval_start", "eval_end", "eval"]
"""eval: held-out tasks during the run."""
HeldOut = Literal["eval_start", "eval_end", "eval"]
Level = Literal["info", "warning", "error"]


class Command(Struct, frozen=True, tag=True, array_like=True, gc=False):
    seq: int


# --- ranks and roles


class StartRole(Command, frozen=True, tag=True, array_like=True):
    """Start a role process on `rank`, beside the one that runs there where a move prepares before it drains.

    `unit` is the id of its engine or replica, -1 for the core; `bucket` the index of an engine's bucket, else -1.
    """

    rank: int
    role: Role
    epoch: int
    unit: int
    bucket: int


class StopRole(Command, frozen=True, tag=True, array_like=True):
    """End the role process that `StartRole` number `start` began on `rank`."""

    rank: int
    start: int
    reason: str


class FormGroup(Command, frozen=True, tag=True, array_like=True):
    """The members, and nobody else, form process group `group`. `attempt` makes the store prefix unique."""

    group: str
    members: tuple[int, ...]
    epoch: int
    attempt: int


# --- weights


class WarmStart(Command, frozen=True, tag=True, array_like=True):
    """The core ranks load or make the warm start, then serve it as version 0."""

    ranks: tuple[int, ...]


class InstallWeights(Command, frozen=True, tag=True, array_like=True):
    """Each of the unit's `ranks` pulls `version` (or a newer one if it is gone) from the core ranks and swaps it in."""

    unit: int
    version: int
    ranks: tuple[int, ...]


# --- trajectories


class OpenTrajectory(Command, frozen=True, tag=True, array_like=True):
    """Open an environment session for sample `sample` of prompt `prompt`; `attempt` counts fresh starts from 0."""

    traj: int
    kind: Kind
    prompt: int
    sample: int
    attempt: int
    group: int = -1


class Generate(Command, frozen=True, tag=True, array_like=True):
    """Sample the trajectory's next turn (or the rest of a cut one) on `engine`."""

    traj: int
    engine: int
    max_new_tokens: int


class CutTurn(Command, frozen=True, tag=True, array_like=True):
    """End the running turn that `Generate` number `turn` began at its next token: `TurnGenerated` answers that command, as cut.

    A turn that has ended by itself meanwhile answers as it would have: the order comes too late and does nothing.
    """

    traj: int
    engine: int
    turn: int


class Act(Command, frozen=True, tag=True, array_like=True):
    """Give the sampled turn to the environment: a tool call, or the end of the episode."""

    traj: int


class Discard(Command, frozen=True, tag=True, array_like=True):
    """Close the sessions of these trajectories and forget their tokens."""

    trajs: tuple[int, ...]


# --- training


class Row(Struct, frozen=True, array_like=True):
    """One trajectory inside a micro-batch, with the advantage that all its sampled tokens carry."""

    traj: int
    advantage: float


class MicroBatch(Struct, frozen=True, array_like=True):
    """What one worker takes at a time. `tokens` counts all tokens of its rows."""

    id: int
    tokens: int
    rows: tuple[Row, ...]


class OpenStep(Command, frozen=True, tag=True, array_like=True):
    """Begin optimiser step `step` on batch `batch`. The loss is a sum over tokens divided by `loss_tokens`, fixed here."""

    step: int
    batch: int
    loss_tokens: int
    ranks: tuple[int, ...]


class Round(Command, frozen=True, tag=True, array_like=True):
    """One forward and backward on every core rank: `slots[i]` is for `ranks[i]`; None is a dummy."""

    step: int
    index: int
    ranks: tuple[int, ...]
    slots: tuple[MicroBatch | None, ...]


class Accumulate(Command, frozen=True, tag=True, array_like=True):
    """One round of a gradient replica, added to its sum of the step: `slots[i]` is for `ranks[i]`; None is a dummy.

    `step` is also the version that the replica must hold; `loss_tokens` is the step's divisor.
    """

    step: int
    replica: int
    ranks: tuple[int, ...]
    slots: tuple[MicroBatch | None, ...]
    loss_tokens: int


class OfferShare(Command, frozen=True, tag=True, array_like=True):
    """The replica's sum of the step is complete: its `ranks` serve it to the core ranks."""

    step: int
    replica: int
    ranks: tuple[int, ...]


class FetchShare(Command, frozen=True, tag=True, array_like=True):
    """Each core rank of `ranks` fetches its part of the replica's share from `sources` into a staging buffer."""

    step: int
    replica: int
    sources: tuple[int, ...]
    ranks: tuple[int, ...]


class CloseStep(Command, frozen=True, tag=True, array_like=True):
    """No more rounds: add these replicas' shares, in this order, clip by the global norm, check that all is finite, step,
    and serve the result as `version`. Each core rank holds each of the shares."""

    step: int
    version: int
    ranks: tuple[int, ...]
    shares: tuple[int, ...] = ()


# --- time, people, end


class MoveChanged(Command, frozen=True, tag=True, array_like=True):
    """A move enters a stage: for the log, the display and the metrics."""

    move: int
    stage: str
    """draining, preparing, ready, returning or failed."""
    epoch: int
    ranks: tuple[int, ...]
    what: str
    """"engine 3 -> replica 9", for people."""
    author: str
    reason: str
    seconds: float
    """Since the move began."""
    to: Role | Literal["spare"]
    """What its ranks become."""


class AnswerOrder(Command, frozen=True, tag=True, array_like=True):
    """What becomes of a person's order. Refused: nothing has changed, and `reason` says why."""

    id: str
    accepted: bool
    reason: str
    epoch: int


class SetTimer(Command, frozen=True, tag=True, array_like=True):
    """Answer with `TimerFired` once the run's clock reaches `at` (seconds)."""

    at: float


class Report(Command, frozen=True, tag=True, array_like=True):
    """Tell people: one line for the log, the display and the metrics."""

    level: Level
    what: str


class BatchConsumed(Command, frozen=True, tag=True, array_like=True):
    """A batch was trained or skipped: one row of the metrics."""

    batch: int
    version: int
    trained: bool
    reward: float
    """Mean over all trajectories of the batch that ended with a reward, dropped groups included."""
    groups: int
    groups_trained: int
    trajectories: int
    loss_tokens: int
    lag: int
    wait_s: float
    """Seconds that the trainer stood idle for this batch's last trajectories."""
    loss: float
    grad_norm: float
    gap: LogprobGap = LogprobGap()
    reward_stages: dict[str, float] = {}
    """What `reward` is made of: the mean of each stage over the same trajectories, before its weight."""


class Evaluated(Command, frozen=True, tag=True, array_like=True):
    """One evaluation is over: its held-out tasks have ended, or its time has."""

    kind: HeldOut
    version: int
    """The newest when it began: no token of it is older."""
    tasks: int
    failed: int
    """Without a reward, for whatever reason."""
    reward: float
    """Mean over the others."""
    batch: int = 0
    """Batches consumed when it began."""
    newest: int = -1
    """The newest version that sampled for it; weights go on changing under one that runs beside training."""
    given_up: int = 0
    """Of those that failed: under way when its time was over."""
    reward_stages: dict[str, float] = {}
    """As in `BatchConsumed`."""


class SaveCheckpoint(Command, frozen=True, tag=True, array_like=True):
    """Write checkpoint `step`: the core ranks as they are after `step` consumed batches, at `version`, and this core.

    It lies between two steps in each core rank's orders. A rank copies, goes on, and writes beside its work.
    """

    step: int
    version: int
    ranks: tuple[int, ...]


class LoadCheckpoint(Command, frozen=True, tag=True, array_like=True):
    """In place of `WarmStart` where a run is resumed: the core ranks load checkpoint `step` and serve it as `version`."""

    step: int
    version: int
    ranks: tuple[int, ...]


class TidyCheckpoints(Command, frozen=True, tag=True, array_like=True):
    """Checkpoints `steps` go. `best` (0: none yet) has the best held-out reward so far, `reward`."""

    steps: tuple[int, ...]
    best: int
    reward: float


class FinishRun(Command, frozen=True, tag=True, array_like=True):
    """Stop all roles in good order, write the summary, end. `ok` False: something broke; `reason` says what."""

    ok: bool
    reason: str


AnyCommand = (
    StartRole
    | StopRole
    | FormGroup
    | WarmStart
    | InstallWeights
    | OpenTrajectory
    | Generate
    | CutTurn
    | Act
    | Discard
    | OpenStep
    | Round
    | Accumulate
    | OfferShare
    | FetchShare
    | CloseStep
    | SetTimer
    | Report
    | MoveChanged
    | AnswerOrder
    | SaveCheckpoint
    | LoadCheckpoint
    | TidyCheckpoints
    | BatchConsumed
    | Evaluated
    | FinishRun
)
