"""What a policy is asked, and what it answers.

    TurnView + Offer ──> Policy.choose ──> Decision: this engine now, or wait for that engine or bucket

The offer holds only engines that may take the turn: they are up, hold a version that the turn's slot allows, have a free
place in the batch, and KV room. So no policy can break the lag or overflow an engine, and comparisons between policies are
fair. It holds few: of each shape (and weight version) the roomiest and the least loaded engine, and the turn's last one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from msgspec import Struct

from libra.core.scheduler.load import EngineLoad
from libra.core.scheduler.shape import Shape

Target = int
"""What a turn waits for: an engine's id, or `bucket_target(b)`."""
Forecast = tuple[float, ...]
"""What a policy wants to know of a trajectory's residual, asked once a tool return; each policy says what it puts there."""
Foresight = Callable[[int], float]
"""True residual output tokens of a trajectory, by id: only a simulator can tell."""


def bucket_target(bucket: int) -> Target:
    """Any engine of this bucket."""
    return ~bucket


class TurnView(Struct, gc=False):
    """One waiting turn."""

    traj: int
    context_tokens: int
    budget_tokens: int
    need_tokens: int
    """KV room that it reserves."""
    last: EngineLoad | None
    """Where its last turn ran (it may be down by now); None for a first turn."""
    cached_tokens: int
    """Tokens of its context that `last` still holds."""
    forecast: Forecast
    may_wait: bool
    """False once the turn has waited as long as it may, or what the policy would wait for can not serve it."""


class Offer(Struct, gc=False):
    """Engines that may take the turn now, at least one; and those worth waiting for: of each shape without room the one that
    is nearest to it, and the turn's last engine if it has none. (Each of these has running turns, or it would have room.)
    """

    engines: list[EngineLoad]
    full: list[EngineLoad]
    stays: bool
    """Whether the turn's last engine is among `engines`."""


class Decision(Struct, frozen=True, gc=False):
    """`engine` takes the turn; or, where `wait_for` is given, the turn waits for that target."""

    engine: int
    reason: str
    candidates: tuple[tuple[int, float], ...] = ()
    """(engine, cost) of the best of each shape and of the last engine; what a cost is, the policy says."""
    wait_for: Target | None = None

    def explain(self) -> str:
        """One line for people."""
        what = f"engine {self.engine}"
        if self.wait_for is not None:
            what = f"wait for {f'engine {self.wait_for}' if self.wait_for >= 0 else f'bucket {~self.wait_for}'}"
        costs = ", ".join(f"{engine}: {cost:.4g}" for engine, cost in self.candidates)
        return f"{what}: {self.reason}" + (f" ({costs})" if costs else "")


class Policy(ABC):
    """One way to place turns. `shapes` are the buckets, by index."""

    rebalances = False
    """Whether running turns are looked at again, by `rather_elsewhere`."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = shapes
        self.by_tp = sorted(range(len(shapes)), key=lambda b: (shapes[b].tp, b))
        """Bucket indices from the smallest TP degree up."""

    def forecast(self, traj: int, since: float) -> Forecast:
        """Asked once a tool return; `since` tokens were sampled after the latest one (a turn was cut)."""
        return ()

    def residual_tokens(self, forecast: Forecast) -> float:
        """The mean of a forecast; 0 from policies that make none."""
        return 0.0

    def lead_s(self, forecast: Forecast) -> float:
        """How many seconds earlier than it came the turn counts as having come: its place in the queue of its slot."""
        return 0.0

    def memory(self) -> tuple[float, ...]:
        """What it remembers beside the tree; `recall` takes it back."""
        return ()

    def recall(self, memory: tuple[float, ...]) -> None:  # noqa: B027  # most remember nothing
        """Go on from what `memory` gave, in a policy that was just made."""

    @abstractmethod
    def choose(self, turn: TurnView, offer: Offer) -> Decision:
        """Ties break by engine id."""

    def rather_elsewhere(self, turn: TurnView, offer: Offer) -> Decision | None:
        """Where the turn, which runs on `turn.last` with all of its context there, should rather be; None: it stays."""
        return None

    # --- what several policies share

    def early_s(self, residual_tokens: float, most_s: float) -> float:
        """A lead by what the trajectory is predicted to need: its seconds on the first bucket, `most_s` at most."""
        shape = self.shapes[0]
        return min(most_s, residual_tokens * shape.factor * shape.typical_step_s)

    def pressure(self, load: EngineLoad) -> tuple[float, int]:
        """Outstanding tokens for the speed of the engine's shape, in seconds; ties by id."""
        return load.outstanding_tokens / self.shapes[load.bucket].speed, load.id

    def least_loaded(self, engines: Sequence[EngineLoad]) -> EngineLoad:
        return engines[0] if len(engines) == 1 else min(engines, key=self.pressure)

    def class_of(self, tokens: float, thresholds: Sequence[int]) -> int:
        """The bucket for a length: thresholds are inclusive, ascending, one between two buckets in order of TP."""
        place = sum(tokens > t for t in thresholds)
        return self.by_tp[min(place, len(self.by_tp) - 1)]

    def in_bucket(self, bucket: int, turn: TurnView, offer: Offer, reason: str) -> Decision:
        """The least loaded engine of `bucket`; where it has no room, wait for it or, if that may not be, spill over."""
        here = [e for e in offer.engines if e.bucket == bucket]
        if here:
            return Decision(self.least_loaded(here).id, reason)
        if turn.may_wait:
            return Decision(-1, reason, wait_for=bucket_target(bucket))
        return Decision(self.least_loaded(offer.engines).id, "its bucket cannot take it: least loaded elsewhere")
