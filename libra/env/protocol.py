"""What an environment is to the rest of the house: token ids in, token ids out.

    open() -> prompt() -> [ turn_budget() -> (an engine samples) -> act() -> Observation ]* -> Ended
                                                                        \\-> EnvError: the trajectory is `failed`

Invariants:
- Sampled ids are never decoded and tokenised again; text exists only between a session and its tool.
- A task is a function of (seed, split, ordinal) alone: the same in every process and on every day.
- **A wrong answer is never a failure and a failure is never an answer.** A tool that *returns* an error is an Observation
  with status "error". A tool process that died, could not be started, or gave no answer by its deadline is infrastructure:
  `act` raises EnvError, the worker has been killed and is replaced, and the controller ends the trajectory as `failed`
  (retried fresh, never reward 0). Status "timeout" is for a tool that itself reports one in good order.
- Output beyond the limit is read and thrown away; the Observation says `truncated`, its status is the tool's exit state.

The controller (anyio, rank 0) runs sessions; roles use only `vocabulary`, `demonstrations` and `save_tokenizer`.
"""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from libra.core.events import Status

Split = Literal["train", "heldout"]
Demonstration = tuple[list[int], list[bool]]
"""Token ids of a whole trajectory, and for each whether the policy is to say it (True) or it was given (False)."""


class Vocabulary(Struct, frozen=True):
    """What engines and trainers must know of the tokens. Ids run from 0 to size - 1."""

    size: int
    pad_id: int
    stop_ids: tuple[int, ...]
    """A turn ends with the first of these that is sampled; it belongs to the turn."""


class Observation(Struct, frozen=True):
    """The tool answered: `tokens` are appended to the context, then the policy has its next turn."""

    tokens: list[int]
    tool: str
    """Name of the tool, "none" where the turn was no call at all."""
    status: Status
    seconds: float
    """Time in the tool, without the wait for a free worker."""
    truncated: bool
    formed: bool = True
    """The turn before it was a whole call in a legal form, whatever came of it."""


class Ended(Struct, frozen=True):
    """The episode is closed by its own rules."""

    reward: float
    """The environment's own judgement; what a trajectory is worth follows from it and `[reward]` (`libra.env.rewards`)."""
    why: str
    formed: bool | None = True
    """As above: the last turn was a whole answer or call. None: there was no turn, the room had run out."""


class Session(Protocol):
    """One episode. Its methods are called one at a time, in the order drawn above."""

    async def prompt(self) -> list[int]:
        """All given tokens up to the first sampled one. May raise EnvError."""
        ...

    def turn_budget(self, context_tokens: int) -> int:
        """Tokens that the next turn may sample; 0: no room is left, call `act([])`, which answers Ended."""
        ...

    async def act(self, sampled: list[int]) -> Observation | Ended:
        """Take a turn: `sampled` are its ids, the stop token included (absent if the turn ran into its budget).

        Raises EnvError when the infrastructure failed; the session is then of no further use.
        """
        ...

    async def aclose(self) -> None:
        """Free what the session holds. Never raises; may be called at any time, more than once."""
        ...


class Environment(Protocol):
    """Makes sessions, and owns the tool processes behind them."""

    @property
    def resume(self) -> Literal["replay", "snapshot", "restart"]:
        """How a trajectory continues after a restart: calls re-executed, state restored, or begun afresh."""
        ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Starts the tool workers, and ends them on the way out. EnvError if they cannot be started."""
        ...

    def open(self, split: Split, seed: int, ordinal: int, fault_key: tuple[int, ...]) -> Session:
        """A session on task `ordinal` of the split: cheap, does no I/O.

        `fault_key` names the attempt (prompt, sample, attempt): injected faults are drawn from it, so a retry has its own.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text; ValueError on a word outside the vocabulary."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """For people and tools: the exact inverse of `encode`."""
        ...

    def demonstrations(self, seed: int, n: int, give_up: float, malformed: float) -> list[Demonstration]:
        """`n` scripted training trajectories for the warm start; the same for the same arguments, in every process."""
        ...

    def save_tokenizer(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as `transformers.AutoTokenizer` reads them."""
        ...
