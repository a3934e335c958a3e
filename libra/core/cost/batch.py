"""One batch of sequences on one engine, to its end: continuous batching with a limited KV room, in closed form between events.

    waiting --admitted when the context it has fits--> running --all tokens sampled--> done
       ^                                                  |
       +---- pre-empted: the newest row gives its room ---+     (its context is prefilled again when it is re-admitted)

The rule is the usual one of inference engines: optimistic admission in order, no room reserved for growth, last in first
out when room runs dry. Between two events the batch does not change, so its seconds are `EngineCost.decode_s`. Prefill
stops decoding while it runs. The number of events is that of endings and pre-emptions, not of tokens.
Called by `calibration` and by a planner that wants the makespan of a share of the demand.
"""

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from libra.core.cost.engine import EngineCost
from libra.errors import PreflightError


class BatchOutcome(Struct, frozen=True):
    """What one engine did with its sequences."""

    makespan_s: float
    output_tokens: int
    decode_steps: int
    preemptions: int
    recomputed_tokens: int


class _Sequence:
    __slots__ = ("context", "preempted", "remaining")

    def __init__(self, prompt: int, output: int) -> None:
        self.context = prompt
        self.remaining = output
        self.preempted = False


def run_batch(
    engine: EngineCost, output_tokens: Sequence[int], prompt_tokens: int = 0, max_batch: int = 1 << 30
) -> BatchOutcome:
    """Run sequences of these output lengths, in this order of arrival, all present at the start.

    Raises PreflightError for a sequence that is longer than the engine's room even alone, or of negative length.
    """
    _check(engine, output_tokens, prompt_tokens, max_batch)
    waiting = deque(_Sequence(prompt_tokens, n) for n in output_tokens if n > 0)
    running: list[_Sequence] = []
    seconds, used, steps, preemptions, recomputed = 0.0, 0, 0, 0, 0
    while waiting or running:
        while waiting and len(running) < max_batch:
            head = waiting[0]
            if (
                used + head.context + len(running) + 1 > engine.capacity_tokens
            ):  # every row adds a token at the next step
                break
            running.append(waiting.popleft())
            seconds += engine.prefill_s(head.context)
            used += head.context
            recomputed += head.context if head.preempted else 0
        batch = len(running)
        stretch = min(min(row.remaining for row in running), (engine.capacity_tokens - used) // batch)
        if stretch == 0:
            victim = running.pop()
            victim.preempted = True
            used -= victim.context
            preemptions += 1
            waiting.appendleft(victim)
            continue
        seconds += engine.decode_s(stretch, batch, used)
        steps += stretch
        for row in running:
            row.remaining -= stretch
            row.context += stretch
        used += stretch * batch
        used -= sum(row.context for row in running if row.remaining == 0)
        running = [row for row in running if row.remaining]
    return BatchOutcome(
        makespan_s=seconds,
        output_tokens=sum(output_tokens),
        decode_steps=steps,
        preemptions=preemptions,
        recomputed_tokens=recomputed,
    )


def _check(engine: EngineCost, output_tokens: Sequence[int], prompt_tokens: int, max_batch: int) -> None:
    if prompt_tokens < 0 or min(output_tokens, default=0) < 0 or max_batch < 1:
        raise PreflightError(
            [
                f"batch: got prompts of {prompt_tokens}, outputs from {min(output_tokens, default=0)} tokens and max_batch "
                f"{max_batch}; expected lengths of 0 or more and at least one row"
            ]
        )
    longest = prompt_tokens + max(output_tokens, default=0)
    if longest > engine.capacity_tokens:
        raise PreflightError(
            [
                f"TP {engine.tp} of {engine.model.name} on {engine.hardware.name}: a sequence of {longest} tokens, expected at "
                f"most the engine's room of {engine.capacity_tokens}; shorten it or raise TP"
            ]
        )
