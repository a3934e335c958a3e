"""What a viewer sees of a run at one moment. Made by `libra.controller.view`, drawn by the command line and the dashboard.

A field may be added with a default, never renamed or given another meaning without a new `messages.PROTOCOL`. Times are
seconds; `_s` fields that say how long ago something was are measured at `Snapshot.t`, the run's own clock. Counters only
grow: a viewer that missed snapshots takes differences. None: not known, or does not apply.
"""

from msgspec import Struct

RESIDUAL_BINS = 22
"""Bins of a residual histogram: bin 0 holds residuals below 1 token, bin i those from 2^(i-1) up to 2^i."""


class _Part(Struct, frozen=True, gc=False):
    """Of scalars and tuples only, so never in a cycle: thousands a second need not be the garbage collector's business."""


class Alert(_Part, frozen=True, gc=False):
    """A warning or an error that was reported."""

    t: float
    level: str
    what: str


class RunPart(_Part, frozen=True, gc=False):
    """The run as a whole."""

    name: str
    mode: str
    seed: int
    policy: str
    phase: str
    """starting, warm start, eval_start, training, eval_end, ended."""
    step: int
    """Batches consumed."""
    steps: int
    version: int
    """Optimiser steps taken."""
    eta_s: float | None
    tokens_per_s: float
    tokens_sampled: int
    """Counter."""
    rewards: tuple[float | None, ...]
    """Mean reward of the last batches, oldest first; None where no trajectory of the batch ended with one."""
    heldout: dict[str, float]
    lag: int
    """Of the newest trained batch, in batches."""
    max_lag: int
    groups_ready: int
    """Complete groups that wait for the trainer."""
    in_flight: dict[str, int]
    """Trajectories by stage: opening, waiting, generating, acting, ready, training."""
    failed: int
    progress: float
    """Of what `label` names, 0 to 1; 0 and "" where there is nothing of the kind."""
    label: str
    alerts: tuple[Alert, ...]
    """The newest warnings and errors, oldest first."""
    rule: str = ""
    """What moves ranks by itself: the name of the rule, or "off"."""


class PacePart(_Part, frozen=True, gc=False):
    """Both stages' seconds for one batch, smoothed over some batches."""

    train_s: float | None
    """From the opening of a step to its end."""
    rollout_s: float | None
    """In which as many trajectories end as a batch has. Admission throttles rollout that runs ahead, and then this says so."""
    wait_s: float | None
    """That the trainer stood idle for a batch's last trajectories."""


class RankRow(_Part, frozen=True, gc=False):
    """One device rank."""

    rank: int
    host: str
    device: str
    role: str
    """trainer, rollout, gradient, moving, spare or lost."""
    unit: int
    """Its engine or gradient replica; -1 for a core trainer."""
    bucket: str
    """"" outside rollout."""
    status: str
    """absent, starting, up, down or lost."""
    seen_s: float | None
    """Age of its supervisor's last heartbeat."""
    doing: str
    """Its role's own word for its stage."""
    beats: int
    """Progress counter of its role process; -1: none yet."""
    busy_s: float
    """Counter: seconds of rounds and steps that it reported."""
    restarts: int
    """Of its unit."""
    move: int
    """The move that it takes part in; 0: none."""


class EngineRow(_Part, frozen=True, gc=False):
    id: int
    bucket: str
    ranks: tuple[int, ...]
    up: bool
    version: int
    installing: int
    """The version on its way; -1: none."""
    running: int
    waiting: int
    """Turns that wait inside the engine."""
    kv: float
    """Used share of its KV room."""
    kv_tokens: int
    outstanding_tokens: int
    """That its running turns may still sample."""
    residual_tokens: int
    """That its running trajectories are predicted to need in all; 0 from policies that do not predict."""
    sampled_tokens: int
    """Counter, as are the next three."""
    prefilled_tokens: int = 0
    """Context tokens that were computed."""
    reused_tokens: int = 0
    """Context tokens found in the prefix cache."""
    preemptions: int = 0
    """Running turns that had to give their room away and were computed again."""


class ReplicaRow(_Part, frozen=True, gc=False):
    """One gradient replica."""

    unit: int
    ranks: tuple[int, ...]
    status: str
    version: int
    micro_batches: int
    """Counter: taken so far."""


class BucketRow(_Part, frozen=True, gc=False):
    name: str
    tp: int
    engines: int
    up: int
    in_flight: int
    """Turns that run on its engines."""
    waiting_tokens: int
    """KV room of the turns that wait for this very bucket or one of its engines."""
    oldest_s: float | None
    """Since the oldest running turn began."""
    residual: tuple[int, ...]
    """Running turns by their trajectory's predicted residual tokens, in RESIDUAL_BINS bins."""
    factor: float
    """Observed over predicted seconds of a turn."""


class TailRow(_Part, frozen=True, gc=False):
    """One trajectory among those that will be last: the largest predicted residuals, and the oldest."""

    id: int
    kind: str
    prompt: int
    sample: int
    group: int
    batch: int
    stage: str
    since_s: float
    """In this stage."""
    turns: int
    sampled_tokens: int
    context_tokens: int
    residual_mean: float
    residual_p90: float
    evidence: float
    """Trajectories behind the prediction, faded by version; 0: a prior."""
    signal: str
    """The last tool return, as `tool/size/status`; "" before the first."""
    engine: int
    """Where its turn runs, else where its last one did; -1: nowhere yet."""
    age_s: float
    slow: bool
    """Older than twice the mean age at which trajectories end."""
    stalled: bool
    """In this stage for longer than a standing role may take."""
    retrying: bool
    """Not the first attempt."""
    raised: bool = False
    """A person has put it before the others."""


class MoveRow(_Part, frozen=True, gc=False):
    """Ranks that change what they do, now or some time ago. Times are the run's clock."""

    id: int
    ranks: tuple[int, ...]
    what: str
    """As in "engine 3 -> replica 9"."""
    stage: str
    began: float
    since: float
    """When the stage began."""
    author: str
    """"" for the automatic rule."""
    reason: str


class AllocationPart(_Part, frozen=True, gc=False):
    """Who has which role, in numbers, and what is about to change."""

    epoch: int
    trainer: int
    rollout: int
    gradient: int
    moving: int
    spare: int
    lost: int
    hold_until: float | None
    """No automatic move before then (run's clock)."""
    moves: tuple[MoveRow, ...]
    recent: tuple[MoveRow, ...]
    """The last moves that ended, oldest first."""
    proposal: str
    """What the automatic rule would do next, and why; "" nothing."""
    paused: bool = False
    """No automatic move until a person resumes them."""
    gain: float | None = None
    """By what share the proposal promises to make a batch shorter."""
    home: dict[int, str] = {}
    """rank -> the bucket that it served last, of ranks that lend gradients or are spare; those that never served lack."""


class TrainerPart(_Part, frozen=True, gc=False):
    """The open optimiser step; `step` is None while the trainer waits for a batch."""

    step: int | None
    batch: int | None
    rounds_out: int
    """Handed out and not answered by every core rank."""
    rounds: int
    """Handed out so far."""
    micro_batches_left: int
    closing: bool
    waits_for: tuple[int, ...]
    """Core ranks whose answer is missing, of the oldest round or of the close."""
    since_s: float
    """Since the step was opened, or since the trainer is idle."""


class Snapshot(Struct, frozen=True, gc=False, tag_field="kind", tag="snapshot"):
    """Everything, at `t` seconds of the run's clock. `n` counts the snapshots that were made."""

    n: int
    t: float
    run: RunPart
    pace: PacePart
    allocation: AllocationPart
    trainer: TrainerPart
    ranks: tuple[RankRow, ...]
    engines: tuple[EngineRow, ...]
    replicas: tuple[ReplicaRow, ...]
    buckets: tuple[BucketRow, ...]
    tail: tuple[TailRow, ...]
    tail_of: int
    """Trajectories in flight that the tail was chosen from."""


class TurnRow(_Part, frozen=True, gc=False):
    """One turn of a trajectory, or what there is of it so far. A turn that was cut has several segments."""

    turn: int
    began: float
    """When it was sent to an engine (run's clock)."""
    sampled_tokens: int
    context_tokens: int
    """Before it."""
    engine: int
    """The last one that sampled for it."""
    bucket: str
    version: int
    """The newest that sampled for it; -1: none yet."""
    seconds: float | None
    """From its begin to its end; None while it runs."""
    tool_s: float | None
    signal: str
    """The tool return that ended it, as `tool/size/status`; "" before."""
    reason: str
    """Why the scheduler placed it there."""
    segments: int = 1


class NodeRow(_Part, frozen=True, gc=False):
    """A node of the causality tree that speaks for a trajectory: what those who came by here, and outlived it, still needed."""

    label: str
    """Its tree (prompt, family, all) and the signal that leads to it, as `tool/size/status`."""
    visits: float
    """Faded by version."""
    residual_mean: float
    residual_p90: float
    depth: int = 0
    """Tool returns from the root."""
    share: float = 0.0
    """Its say in the prediction; all shares sum to 1."""


class TrajectoryDetail(Struct, frozen=True, gc=False, tag_field="kind", tag="trajectorydetail"):
    """One trajectory turn by turn, at `t`. `found` is false for one that is over or never was: the rest then says nothing."""

    id: int
    t: float
    found: bool
    task: str = ""
    """train or held-out."""
    prompt: int = -1
    sample: int = -1
    group: int = -1
    batch: int = -1
    attempt: int = 0
    stage: str = ""
    reward: float | None = None
    turns: tuple[TurnRow, ...] = ()
    """The last ones; earlier ones are counted in `earlier`."""
    earlier: int = 0
    path: tuple[NodeRow, ...] = ()
    """From the least to the most specific."""
