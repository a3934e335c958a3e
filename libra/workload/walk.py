"""One trajectory of a workload under way: what is true of it, and how far it has come.

    tell ──> (the core places the turn) ──> tokens_of ──> (an engine samples) ──> took ──> act ──> tell ... ──> ended

The engine is asked for as many tokens as the workload says, within what the core allows; tokens count once they are given
back, so a turn that is lost with its engine is asked for again unchanged. Used by the live controller's emulated episodes.
"""

from msgspec import Struct

from libra.config.worlds import WorkloadConfig
from libra.core.events import Finish, Status
from libra.workload.trace import TraceTrajectory

CONTINUE = "continue"
"""Tool name of the return that lets a turn go on which was ended before it was over."""


class Return(Struct, frozen=True):
    """What the environment answers to a turn. `seconds` are the tool's; where `ended` nothing more is read."""

    tool: str
    status: Status
    observed_tokens: int
    seconds: float
    ended: bool


class Walk:
    """`most_sampled` and `most_context` are the workload's limits in tokens: all that the core may be told of the truth."""

    def __init__(self, truth: TraceTrajectory, rules: WorkloadConfig, most_sampled: int, most_context: int) -> None:
        self.truth = truth
        self.turn = 0
        self.sampled = 0
        """Of the present turn."""
        self.sampled_in_all = 0
        self.context = truth.prompt_tokens
        self.told = 0
        """What the core believes that the turn may still sample."""
        self._rules = rules
        self._most_sampled = most_sampled
        self._most_context = most_context

    def tell(self) -> int:
        """The cap of the next turn, as the core is told it; at least 1 while there is something to sample."""
        left = min(self._most_sampled - self.sampled_in_all, self._most_context - self.context)
        self.told = max(1, min(self._rules.turn_tokens, left))
        return self.told

    def tokens_of(self, max_new_tokens: int) -> int:
        """Tokens that an engine which is allowed so many will sample."""
        tokens = self.truth.turns[self.turn].sampled_tokens - self.sampled
        if self._rules.over_cap == "continue" or max_new_tokens < self.told:
            return min(tokens, max_new_tokens)
        return tokens

    def took(self, tokens: int, was_cut: bool) -> Finish:
        """An engine gave back so many; `was_cut`: before it had sampled all that it was asked for."""
        self.sampled += tokens
        self.sampled_in_all += tokens
        self.context += tokens
        self.told -= tokens
        if self.sampled == self.truth.turns[self.turn].sampled_tokens:
            return "stop"
        return "cut" if was_cut or self.told > 0 else "length"

    def act(self) -> Return:
        """The turn goes to the environment. `context` is then the next turn's; `tell` comes next, unless it `ended`."""
        turn = self.truth.turns[self.turn]
        if self.sampled < turn.sampled_tokens:
            return Return(CONTINUE, "ok", 0, 0.0, False)
        self.turn += 1
        if self.turn == len(self.truth.turns):
            return Return(turn.tool, turn.status, 0, turn.tool_s, True)
        self.sampled = 0
        self.context += turn.observed_tokens
        return Return(turn.tool, turn.status, turn.observed_tokens, turn.tool_s, False)
