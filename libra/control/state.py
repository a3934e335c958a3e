"""What a simulation of the next minutes starts from: who does what, who is under way, and how the last ones went.

Made by the controller for a viewer that asks (`StateRequest`); read by `libra.sim.whatif` in a process of the viewer's.
"""

from msgspec import Struct

MOST_ENDED = 256
"""Trajectories that have ended and are told of: what new ones are drawn from."""
MOST_UNDER_WAY = 2048


class _Part(Struct, frozen=True, gc=False, array_like=True):
    pass


class UnitState(_Part, frozen=True, gc=False, array_like=True):
    """An engine or a gradient replica that works."""

    bucket: int
    """Index in the configuration; -1 for a replica."""
    ranks: tuple[int, ...]


class Spent(_Part, frozen=True, gc=False, array_like=True):
    """One turn of a trajectory: what it sampled, and the call that followed; `tool` "" where the turn ended the episode."""

    sampled_tokens: int
    tool: str
    tool_s: float
    status: str
    observed_tokens: int


class Ended(_Part, frozen=True, gc=False, array_like=True):
    """A trajectory that has ended by itself."""

    prompt_tokens: int
    turns: tuple[Spent, ...]


class UnderWay(_Part, frozen=True, gc=False, array_like=True):
    """A trajectory in flight."""

    group: int
    context_tokens: int
    sampled_tokens: int
    turns: int


class LiveState(Struct, frozen=True, gc=False, tag_field="kind", tag="livestate"):
    """At `t` of the run's clock."""

    t: float
    epoch: int
    step: int
    config: bytes
    """The resolved configuration, JSON."""
    units: tuple[UnitState, ...]
    spare: tuple[int, ...]
    """Ranks that a person took out of work."""
    factors: dict[str, float]
    """Observed over predicted seconds of a turn, by bucket."""
    train_s: float | None
    rollout_s: float | None
    """Both stages' smoothed seconds a batch."""
    ended: tuple[Ended, ...]
    under_way: tuple[UnderWay, ...]
    """Oldest first."""
