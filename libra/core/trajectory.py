"""Trajectories and groups: what the core remembers of an episode. Counts only; the tokens live in the shell.

    opening ──> waiting ──> generating ──> acting ──> ended
                   ^            │            │
                   └── cut ─────┘            │ tool returned
                   └─────────────────────────┘
    (any) ──> failed: infrastructure broke; never a reward      (any) ──> dropped: its group will not train

A group is the G samples of one prompt. It is complete when each of its samples has ended, and spoilt as soon as one sample
has failed more often than it may be retried: a spoilt group is dropped whole and counted.
"""

from dataclasses import dataclass, field
from typing import Literal

from libra.core.commands import Kind

Stage = Literal["opening", "waiting", "generating", "acting", "ended", "failed", "dropped"]
NO_VERSION = -1
"""The version of something that has no sampled token yet, or of an engine without weights."""


@dataclass(slots=True)
class Trajectory:
    id: int
    group: "Group"
    sample: int
    attempt: int
    awaited: int
    """Sequence number of the command (open, generate or act) whose answer moves it on; any other answer is stale."""
    stage: Stage = "opening"
    engine: int = -1
    """Where the running turn is; while another stage lasts, where the last turn was (its prefix may still be there)."""
    context_tokens: int = 0
    max_new_tokens: int = 0
    cap_tokens: int = 0
    """`max_new_tokens` as it was when the turn became ready."""
    sampled_tokens: int = 0
    oldest_version: int = NO_VERSION
    newest_version: int = NO_VERSION
    turns: int = 0
    tool_s: float = 0.0
    """Seconds in tools."""
    ticket: int = 0
    """Its valid entry among the waiting turns."""
    waits_for: int | None = None
    """The engine or bucket that its policy wants it to wait for."""
    arrival: float = 0.0
    """Virtual time since when the turn waits: its place in the queue."""
    retargets: int = 0
    """How often the waiting turn has gone from one target to another."""
    patient: bool = True
    """Whether it may be made to wait for one target; False once it has for long enough, until its next turn."""
    raised: bool = False
    """A person wants its turns placed before all others."""
    cuts: int = 0
    """How often a running turn of it was ordered to be cut."""
    reward: float = 0.0
    loss_tokens: int = 0
    total_tokens: int = 0

    def sampled(self, tokens: int, oldest: int, newest: int) -> None:
        """Count tokens of one segment, sampled by versions `oldest` to `newest`."""
        self.sampled_tokens += tokens
        self.context_tokens += tokens
        self.max_new_tokens -= tokens
        if tokens and (self.oldest_version == NO_VERSION or oldest < self.oldest_version):
            self.oldest_version = oldest
        if tokens and newest > self.newest_version:
            self.newest_version = newest

    def resumed(self) -> None:
        """The turn was cut and goes on. Only simulated engines outrun a cap: what is left of the turn has it again."""
        if self.max_new_tokens <= 0:
            self.max_new_tokens = self.cap_tokens

    @property
    def live(self) -> bool:
        return self.stage in ("opening", "waiting", "generating", "acting")


@dataclass(slots=True)
class Group:
    id: int
    kind: Kind
    slot: int
    """Ordinal of the batch that will consume it."""
    prompt: int
    members: list[Trajectory] = field(default_factory=list["Trajectory"])
    """The current attempt of each sample, in sample order."""
    spoilt: bool = False

    @property
    def complete(self) -> bool:
        """Nothing of it is still on its way."""
        return self.spoilt or all(m.stage == "ended" for m in self.members)
