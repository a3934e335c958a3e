"""Tables of what trajectories happen in, and what they are worth: `[env]`, `[reward]`.

Parts of `libra.config.schema`, whose rules hold here as well.
"""

from typing import Annotated, Literal

from msgspec import Meta

from libra.config.types import Fraction, NonNegFloat, PosFloat, PosInt, Table


class VerifiableStage(Table, frozen=True, tag_field="name", tag="verifiable"):
    """The environment's own judgement of the answer."""

    weight: NonNegFloat = 1.0


class FormatStage(Table, frozen=True, tag_field="name", tag="format"):
    """The share of turns that had a legal form, 0 to 1."""

    weight: NonNegFloat = 0.1


class LengthStage(Table, frozen=True, tag_field="name", tag="length_penalty", kw_only=True):
    """0 up to the soft limit, then falling evenly to -1: DAPO's soft overlong punishment."""

    weight: NonNegFloat = 1.0
    soft_limit_tokens: PosInt
    """Sampled tokens of a whole trajectory that cost nothing."""
    ramp_tokens: PosInt
    """So many more cost the whole weight; the slope is weight / ramp_tokens a token."""


StageConfig = VerifiableStage | FormatStage | LengthStage


class RewardConfig(Table, frozen=True):
    """What a finished trajectory is worth: the weighted sum of its stages. Formulas stand in `libra.env.rewards`.

    A stage of weight 0 is measured and reported, and counts for nothing.
    """

    stage: Annotated[tuple[StageConfig, ...], Meta(min_length=1)] = (VerifiableStage(),)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stages, in order."""
        return tuple(str(s.__struct_config__.tag) for s in self.stage)


class ToolFault(Table, frozen=True):
    """Makes a share of tool calls misbehave: for tests of the system, never for training."""

    kind: Literal["none", "hang", "crash", "flood", "fail"] = "none"
    """hang: never returns; crash: the tool's process dies; flood: 50 MB of output; fail: an error for every call."""
    rate: Fraction = 0.0


class ToolLimits(Table, frozen=True):
    """What one tool call may take. Tools run in processes of their own."""

    workers: PosInt = 2
    deadline_s: PosFloat = 5.0
    output_bytes: PosInt = 65_536
    """Output beyond this is read and thrown away; the observation says that it was cut."""
    memory_bytes: PosInt = 1 << 30


class CalculatorConfig(Table, frozen=True, tag_field="name", tag="calculator"):
    """Flat chains (`43-12+7*2`, left to right) solved with a tool that does one operation a call."""

    max_operations: Annotated[int, Meta(ge=1, le=10)] = 10
    stop_probability: Annotated[float, Meta(gt=0, le=1)] = 0.4
    """After each operation the chain ends with this probability."""
    max_operand: Annotated[int, Meta(ge=2, le=49)] = 49
    max_calls: PosInt = 12
    max_errors: PosInt = 3
    turn_tokens: PosInt = 12
    """Sampled tokens in one turn at most."""
    trajectory_tokens: PosInt = 110
    """All tokens of one trajectory, prompt included."""
    tool: ToolLimits = ToolLimits()
    fault: ToolFault = ToolFault()


class LookupConfig(Table, frozen=True, tag_field="name", tag="lookup"):
    """Questions of several hops (`radium discoverer birthplace capital`) over a corpus that is searched one query a call."""

    max_hops: Annotated[int, Meta(ge=1, le=7)] = 6
    stop_probability: Annotated[float, Meta(gt=0, le=1)] = 0.3
    """After each hop the question ends with this probability."""
    max_calls: PosInt = 9
    max_errors: PosInt = 3
    turn_tokens: PosInt = 10
    """Sampled tokens in one turn at most."""
    trajectory_tokens: PosInt = 90
    """All tokens of one trajectory, prompt included."""
    tool: ToolLimits = ToolLimits()
    fault: ToolFault = ToolFault()


class WorkloadConfig(Table, frozen=True, tag_field="name", tag="workload"):
    """Recorded or made-up trajectories instead of an environment: lengths, signals and tool seconds. For emulated engines.

    What is None is as `libra.workload.spec` has it for the kind.
    """

    kind: Literal["search", "repair", "math"] = "search"
    informativeness: Fraction | None = None
    """Correlation of payload sizes and errors with a trajectory's length; 0: the signals mean nothing."""
    drift: PosFloat = 1.0
    """Factor on sampled tokens at the end of the drift."""
    drift_steps: PosInt = 100
    """Batches until then."""
    slow_share: Fraction | None = None
    """Share of tool calls that take one to ten minutes."""
    max_sampled_tokens: PosInt | None = None
    """Of one trajectory, which ends there."""
    max_context_tokens: PosInt | None = None
    """Of one trajectory, which ends there."""
    turn_tokens: PosInt = 4096
    """Cap of one turn, as the scheduler is told it and reserves room for. See `over_cap` for turns that are longer."""
    over_cap: Literal["overrun", "continue"] = "overrun"
    """overrun: the engine samples on beyond the cap, pre-empting others when its room runs out; continue: the turn ends at
    the cap and goes on as a further turn, after a tool return that observes nothing, so no room is ever exceeded."""
    trace: str = ""
    """A file of trajectories, or the directory of a run whose journal tells them, in place of `kind`. Groups with too few
    samples are filled up with trajectories of others."""
    shuffle: bool = True
    """The seed draws the order of a trace's groups; else the file's. A run's journal always keeps its order."""


LiveEnvConfig = CalculatorConfig | LookupConfig
"""Environments that a live run can have."""
EnvConfig = LiveEnvConfig | WorkloadConfig
