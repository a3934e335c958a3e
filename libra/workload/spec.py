"""What a generated workload is: the measured laws, and the knobs. `SPECS` holds search, repair and math.

Sources. *Repair*: 133 SWE-agent runs on SWE-bench Lite (5,788 turns): turns p10 25, p50 38, p90 63, p99 138; sampled
tokens a turn p50 77, p90 459, p99 874; observations p50 441, p90 1929, p99 5707; tool seconds p50 0.16, p99 2.6, max 25;
the low ends (p10 27, 90 and 0.13) from a half of these runs, as well as the end of a run where its context window ends.
Slow commands after statistics of daily coding agents: calls over one minute are 4.9 % of calls. *Search*: 2 to 10 turns,
tool latency log-normal around 0.4 s. *Math*: long chains of thought, few tool calls; mean 2.5K sampled tokens early, of
which the longest tenth of the trajectories hold about half. Every other figure is a free parameter, chosen so that these
come out; none of it says how informative a signal is, which is why that is a knob.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from libra.config.types import Fraction, PosFloat, PosInt
from libra.errors import ConfigError
from libra.workload.law import Law

Kind = Literal["search", "repair", "math"]


class ToolShare(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    share: PosFloat
    """Of the calls, relative to the other tools' shares."""


class WorkloadSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scores are standard normal; a share of variance w enters as sqrt(w), so every law holds whatever the knobs say."""

    kind: Kind
    prompt_tokens: Law
    turns: Law
    sampled_tokens: Law
    """Of one turn, before drift."""
    observed_tokens: Law
    tool_s: Law
    tools: Annotated[tuple[ToolShare, ...], Meta(min_length=1)]
    alike: Fraction
    """Share of the variance of a trajectory's length score that its prompt explains: how alike the samples of a group are."""
    steady: Fraction
    """Share of the variance of a turn's sampled tokens that the trajectory's length score explains."""
    informativeness: Fraction
    """Correlation of payload sizes and errors with the length score. 0: the signal carries nothing (the null workload)."""
    error_share: Fraction
    """Of the calls, where signals are uninformative; informative ones err more in the long trajectories, which call more."""
    slow_share: Fraction = 0.0
    """Of the calls; they take `slow_least_s` to `slow_most_s`, log-uniform, whatever the length score."""
    slow_least_s: PosFloat = 60.0
    slow_most_s: PosFloat = 600.0
    slow_timeout_share: Fraction = 0.2
    """Of the slow calls: killed at their deadline."""
    drift: PosFloat = 1.0
    """Factor on sampled tokens at the end of the drift, reached geometrically over `drift_steps`."""
    drift_steps: PosInt = 100
    max_sampled_tokens: PosInt = 40_960
    max_context_tokens: PosInt = 131_072
    """A trajectory that gets to either is cut, and ends."""

    def __post_init__(self) -> None:
        if self.slow_least_s > self.slow_most_s:
            got = f"slow_least_s = {self.slow_least_s} > slow_most_s = {self.slow_most_s}"
            raise ConfigError(f"workload {self.kind}", [f"got {got}; expected the least first"])
        if self.prompt_tokens.most >= self.max_context_tokens:
            got = f"prompt_tokens.most = {self.prompt_tokens.most}, max_context_tokens = {self.max_context_tokens}"
            raise ConfigError(f"workload {self.kind}", [f"got {got}; expected room beyond the longest prompt"])
        if self.turns.least < 1 or self.sampled_tokens.least < 1 or self.prompt_tokens.least < 1:
            least = (self.turns.least, self.sampled_tokens.least, self.prompt_tokens.least)
            what = f"least of turns, sampled_tokens and prompt_tokens: got {least}, expected at least 1 each"
            raise ConfigError(f"workload {self.kind}", [what])


def null(spec: WorkloadSpec) -> WorkloadSpec:
    """The same workload with signals that say nothing about length."""
    return structs.replace(spec, informativeness=0.0)


def drifting(spec: WorkloadSpec, factor: PosFloat, steps: PosInt) -> WorkloadSpec:
    return structs.replace(spec, drift=factor, drift_steps=steps)


SPECS: dict[Kind, WorkloadSpec] = {
    "search": WorkloadSpec(
        kind="search",
        prompt_tokens=Law(((0.5, 180), (0.9, 320)), least=32, most=2_048),
        turns=Law(((0.1, 2), (0.5, 4), (0.9, 8)), least=2, most=10),
        sampled_tokens=Law(((0.1, 60), (0.5, 200), (0.9, 900), (0.99, 3_500)), least=8),
        observed_tokens=Law(((0.1, 200), (0.5, 700), (0.9, 3_000), (0.99, 7_000)), least=1, most=16_000),
        tool_s=Law(((0.5, 0.4), (0.9, 1.2)), least=0.02, most=30),
        tools=(ToolShare("search", 4.0), ToolShare("open", 1.0)),
        alike=0.5,
        steady=0.5,
        informativeness=0.7,
        error_share=0.05,
    ),
    "repair": WorkloadSpec(
        kind="repair",
        prompt_tokens=Law(((0.1, 390), (0.5, 534), (0.9, 1_303)), least=100, most=8_192),
        turns=Law(((0.1, 25), (0.5, 38), (0.9, 63), (0.99, 138)), least=3, most=200),
        sampled_tokens=Law(((0.1, 27), (0.5, 77), (0.9, 459), (0.99, 874)), least=6),
        observed_tokens=Law(((0.1, 90), (0.5, 441), (0.9, 1_929), (0.99, 5_707)), least=1, most=14_000),
        tool_s=Law(((0.1, 0.13), (0.5, 0.16), (0.9, 0.4), (0.99, 2.6)), least=0.1, most=25),
        tools=(ToolShare("edit", 5.0), ToolShare("shell", 4.0), ToolShare("find", 1.0)),
        alike=0.4,
        steady=0.0,
        informativeness=0.1,
        error_share=0.17,
        slow_share=0.04,
    ),
    "math": WorkloadSpec(
        kind="math",
        prompt_tokens=Law(((0.5, 120), (0.9, 260)), least=24, most=2_048),
        turns=Law(((0.5, 1), (0.9, 3), (0.99, 6)), least=1, most=8),
        sampled_tokens=Law(((0.1, 240), (0.5, 750), (0.9, 2_400), (0.99, 7_000)), least=16),
        observed_tokens=Law(((0.5, 40), (0.9, 400), (0.99, 3_000)), least=1, most=8_192),
        tool_s=Law(((0.5, 0.3), (0.9, 1.5), (0.99, 8.0)), least=0.02, most=30),
        tools=(ToolShare("python", 1.0),),
        alike=0.6,
        steady=0.7,
        informativeness=0.5,
        error_share=0.15,
    ),
}
