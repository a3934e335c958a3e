"""The vocabulary of the links between processes: tagged Structs in length-prefixed msgpack, never pickle.

Two kinds of link reach the controller. A **supervisor link** carries the lifecycle of a rank's roles and its heartbeat;
a **role link**, opened by each role process itself, carries the bulk: turns, micro-batches, results. Both begin with a
hello that shows the run's token and incarnation; the controller closes a link whose hello does not match.
"""

from typing import Literal

from msgspec import Struct, field

from libra.core.events import LogprobGap
from libra.wire.base import Message
from libra.wire.saving import FilePart, Load, Loaded, Save, Saved, SaveFailed
from libra.wire.shares import FetchShare, OfferShare, ShareFetched, ShareLost, ShareNote, ShareOffered

PROTOCOL = 1
Preload = Literal["vllm", "torch", "nothing"]


__all__ = [
    "FetchShare", "FilePart", "Load", "Loaded", "Message", "OfferShare", "Save", "SaveFailed", "Saved",
    "ShareFetched", "ShareLost", "ShareNote", "ShareOffered",
]  # fmt: skip
"""Those that are defined elsewhere and belong to the vocabulary."""

# --- hellos (either kind of link)


class SupervisorHello(Message, frozen=True, tag=True):
    """`roles` are the starts of role processes that still live below it: a rank is not taken (back) before there are none."""

    protocol: int
    token: str
    incarnation: str
    rank: int
    host: str
    pid: int
    roles: tuple[int, ...] = ()


class RoleHello(Message, frozen=True, tag=True):
    """`start` is the sequence number of the `StartRole` command that began this process."""

    protocol: int
    token: str
    incarnation: str
    rank: int
    start: int
    pid: int


class Refused(Message, frozen=True, tag=True):
    """The controller's last word on a link that it closes."""

    reason: str


# --- controller <-> supervisor


class Welcome(Message, frozen=True, tag=True):
    """The answer to a supervisor's hello, and the acknowledgement of the time at which it was sent.

    `lease_s`: a role without an acknowledged heartbeat for so long must end by itself (the core's roles have no lease).
    `preload`: what a spare child imports before it knows what it will be; "vllm" includes "torch".
    `threads`: OMP_NUM_THREADS of every child.
    """

    heartbeat_s: float
    lease_s: float = 5.0
    preload: Preload = "nothing"
    threads: int = 1


class HeartbeatSeen(Message, frozen=True, tag=True):
    """The controller has heartbeat `n`: the lease runs on from the moment at which the supervisor *sent* it."""

    n: int


class SpawnRole(Message, frozen=True, tag=True):
    """Make a child the role of `spec`, with its output in `log`. The supervisor passes it on to the child's pipe as it is."""

    start: int
    spec: "RoleSpec"
    log: str


class KillRole(Message, frozen=True, tag=True):
    """End the child of `start`: asked to by EOF of its pipe, killed after `grace_s`."""

    start: int
    grace_s: float


class Shutdown(Message, frozen=True, tag=True):
    """End all roles and yourself with exit code 0."""

    grace_s: float


FORMING = "forming"
"""`doing` of a role that forms its group, and makes its engine: no progress shows for minutes, and it is not stalled."""


class RoleBeat(Struct, frozen=True):
    """`beats` is the progress counter of the child of `start`, `doing` its one-word stage."""

    start: int
    beats: int
    doing: str


class Heartbeat(Message, frozen=True, tag=True):
    """The supervisor lives, and so do these roles of its. `spare`: the next role need not wait for imports."""

    n: int
    roles: tuple[RoleBeat, ...] = ()
    spare: bool = False


class ChildExited(Message, frozen=True, tag=True):
    """The child of `start` ended; negative `code` is a signal. `log_tail` are the last lines of its log."""

    start: int
    code: int
    log_tail: str


# --- supervisor <-> role, on the pipe: SpawnRole once, then leases; beats the other way


class RoleSpec(Message, frozen=True, tag=True):
    """All a role process needs to begin. `config` is the JSON of the resolved configuration."""

    rank: int
    start: int
    role: Literal["trainer", "rollout", "gradient"]
    epoch: int
    unit: int
    bucket: int
    incarnation: str
    token: str
    controller: str
    """Path of the controller's Unix socket."""
    device: str
    """`run.device`; which one it is the role finds out (`libra.rank.device`)."""
    config: bytes
    emulated: bool = False
    """No device: the role waits as long as its work would take."""


class Lease(Message, frozen=True, tag=True):
    """Supervisor -> role: go on until CLOCK_MONOTONIC reads `until_s`, then end. Sent again whenever it moves."""

    until_s: float


class Beat(Message, frozen=True, tag=True):
    """Progress of a role; from a child without a role: it has imported what it was told to and can become one at once."""

    beats: int
    doing: str


# --- controller -> role


class FormMembers(Message, frozen=True, tag=True):
    """Join the group as `index` of `size` under the store prefix `prefix`."""

    cmd: int
    prefix: str
    index: int
    size: int


class StartWarm(Message, frozen=True, tag=True):
    cmd: int


class Install(Message, frozen=True, tag=True):
    """Pull `version` from `sources` (one address a core rank, in core order: "host:port")."""

    cmd: int
    version: int
    sources: tuple[str, ...]


class Turn(Message, frozen=True, tag=True):
    """Sample a turn: at most `max_new_tokens` after `tokens`. `noise` = (run seed, prompt ordinal, sample, attempt).

    `priority`: where turns wait inside an engine, or one has to give way, the smaller one goes first.
    """

    cmd: int
    traj: int
    tokens: list[int]
    max_new_tokens: int
    noise: tuple[int, int, int, int]
    priority: int = 0


class EmulatedTurn(Message, frozen=True, tag=True):
    """What `Turn` is to a real engine: sample `tokens` tokens after `context_tokens`."""

    cmd: int
    traj: int
    context_tokens: int
    tokens: int


class Cut(Message, frozen=True, tag=True):
    traj: int


class Forget(Message, frozen=True, tag=True):
    """The prefixes of these trajectories will not be needed again."""

    trajs: list[int]


class Open(Message, frozen=True, tag=True):
    cmd: int
    step: int
    batch: int
    loss_tokens: int


class Sample(Message, frozen=True, tag=True):
    """One trajectory as training sees it. `sampled[i]` is 1 where tokens[i] was sampled by the policy (carries loss).

    `logprobs` and `versions` have one entry for each token; they mean something only where `sampled` is 1.
    """

    traj: int
    tokens: list[int]
    sampled: bytes
    logprobs: list[float]
    versions: list[int]
    advantage: float


class Counts(Struct, frozen=True, array_like=True):
    """One trajectory as an emulated trainer sees it: all its tokens, and those that carry loss."""

    traj: int
    tokens: int
    loss_tokens: int


class RunRound(Message, frozen=True, tag=True):
    """This rank's part of a round; no samples: a dummy.

    `counts`: to emulated ranks only, in place of `samples`, what *every* rank of the round takes, in their order: so all of
    them know how long the slowest one works, without a collective.
    """

    cmd: int
    index: int
    samples: list[Sample]
    counts: list[list[Counts]] = field(default_factory=list)


class Close(Message, frozen=True, tag=True):
    """Add the staged shares of these replicas, in this order, then clip and step."""

    cmd: int
    step: int
    version: int
    shares: tuple[int, ...] = ()


# --- gradient replicas


class Accumulate(Message, frozen=True, tag=True):
    """This rank's part of one round of its replica (no samples: a dummy). The sum over the rounds of `step` is its share.

    Refused by a replica that does not hold exactly `version`. `loss_tokens` is the step's divisor. `counts` as in `RunRound`.
    """

    cmd: int
    step: int
    version: int
    loss_tokens: int
    samples: list[Sample]
    counts: list[list[Counts]] = field(default_factory=list)


class Stop(Message, frozen=True, tag=True):
    """End in good order: exit code 0."""


# --- role -> controller


class Formed(Message, frozen=True, tag=True):
    cmd: int


class WarmProgress(Message, frozen=True, tag=True):
    step: int
    steps: int
    loss: float


class Warmed(Message, frozen=True, tag=True):
    cmd: int
    cached: bool
    loss: float
    seconds: float


class Held(Message, frozen=True, tag=True):
    """This core rank serves `version` at `address`."""

    version: int
    address: str


class Installed(Message, frozen=True, tag=True):
    cmd: int
    version: int
    seconds: float


class InstallFailed(Message, frozen=True, tag=True):
    cmd: int
    version: int
    reason: str


class TurnDone(Message, frozen=True, tag=True):
    """`versions[i]` sampled `tokens[i]` with unfiltered log-probability `logprobs[i]`."""

    cmd: int
    traj: int
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Literal["stop", "length", "cut"]


class TurnsDone(Message, frozen=True, tag=True):
    """All turns that ended in one decode step."""

    turns: list[TurnDone]


class EmulatedTurnDone(Message, frozen=True, tag=True):
    """`tokens` were sampled, by versions `oldest` to `newest` (-1 where there are none); `cut`: not all that were asked for."""

    cmd: int
    traj: int
    tokens: int
    oldest: int
    newest: int
    cut: bool


class EmulatedTurnsDone(Message, frozen=True, tag=True):
    """All turns that ended at one step of an emulated engine."""

    turns: list[EmulatedTurnDone]


class EngineStats(Message, frozen=True, tag=True):
    """Gauges of now and counters since the start of the engine."""

    version: int
    running: int
    waiting: int
    kv_tokens: int
    decode_steps: int
    sampled_tokens: int
    prefilled_tokens: int
    reused_tokens: int
    """Context tokens found in the prefix cache."""
    preemptions: int = 0
    """Running turns that had to give their room away and were computed again."""


class RoundRefused(Message, frozen=True, tag=True):
    """A replica cannot take the order: it holds another version, or another step is open."""

    cmd: int
    reason: str


class RoundFinished(Message, frozen=True, tag=True):
    cmd: int
    seconds: float


class StepFinished(Message, frozen=True, tag=True):
    cmd: int
    finite: bool
    loss: float
    grad_norm: float
    seconds: float
    gap: LogprobGap
    detail: str


class Complaint(Message, frozen=True, tag=True):
    """The role cannot go on; it exits after this. `reason` is one line, `trace` for the log."""

    reason: str
    trace: str


ToController = (
    SupervisorHello
    | RoleHello
    | Heartbeat
    | ChildExited
    | Formed
    | WarmProgress
    | Warmed
    | Held
    | Installed
    | InstallFailed
    | TurnsDone
    | EmulatedTurnsDone
    | EngineStats
    | RoundFinished
    | RoundRefused
    | ShareOffered
    | ShareFetched
    | ShareLost
    | StepFinished
    | Saved
    | SaveFailed
    | Loaded
    | Complaint
)
ToSupervisor = Welcome | HeartbeatSeen | Refused | SpawnRole | KillRole | Shutdown
ToChild = SpawnRole | Lease
ToRole = (
    Refused
    | FormMembers
    | StartWarm
    | Install
    | Turn
    | EmulatedTurn
    | Cut
    | Forget
    | Open
    | RunRound
    | Close
    | Save
    | Load
    | Accumulate
    | OfferShare
    | FetchShare
    | Stop
)
