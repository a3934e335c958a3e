"""Made-up trajectories with the statistics of real ones, the same for the same seed, on any machine and in any order.

A prompt has a difficulty, each sample a deviation from it; together they are the trajectory's length score, standard
normal. Turns come from the score alone, sampled tokens of a turn from the score and noise, payloads and errors from the
score as far as the signal is informative, and from noise. Nothing else connects a signal with what remains, so at
informativeness 0 the signals of a trajectory and its length are independent.

    length score = sqrt(alike) x prompt + sqrt(1 - alike) x sample

The simulator asks for `trajectory(prompt, sample, step)`; a trajectory is drawn from a generator keyed by these and the
seed, so that it does not matter who asks first. A prompt keeps its difficulty over steps, its samples are drawn anew.
"""

import random
from bisect import bisect_right
from hashlib import blake2b
from itertools import accumulate
from math import sqrt
from statistics import NormalDist

from libra.core.events import Status
from libra.workload.law import Curve
from libra.workload.spec import WorkloadSpec
from libra.workload.trace import TraceTrajectory, TraceTurn


class Workload:
    """An endless set of prompts of one kind."""

    def __init__(self, spec: WorkloadSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self._prompt_tokens = Curve(spec.prompt_tokens)
        self._turns = Curve(spec.turns)
        self._sampled = Curve(spec.sampled_tokens)
        self._observed = Curve(spec.observed_tokens)
        self._tool_s = Curve(spec.tool_s)
        total = sum(t.share for t in spec.tools)
        self._tool_edges = list(accumulate(t.share / total for t in spec.tools))[:-1]
        error = spec.error_share
        self._error_above = (
            NormalDist().inv_cdf(1 - error) if 0 < error < 1 else (float("inf"), float("-inf"))[error >= 1]
        )

    def trajectory(self, prompt: int, sample: int, step: int = 0) -> TraceTrajectory:
        """Sample `sample` of prompt `prompt`, drawn at training step `step` (it sets the drift)."""
        spec = self.spec
        of_prompt = self._noise("prompt", prompt)
        difficulty = of_prompt.gauss(0, 1)
        noise = self._noise("sample", prompt, sample, step)
        score = sqrt(spec.alike) * difficulty + sqrt(1 - spec.alike) * noise.gauss(0, 1)
        factor = spec.drift ** min(1.0, step / spec.drift_steps)
        wanted = round(self._turns.at(score))
        prompt_tokens = round(self._prompt_tokens.at(of_prompt.gauss(0, 1)))
        left, room = spec.max_sampled_tokens, spec.max_context_tokens - prompt_tokens
        turns: list[TraceTurn] = []
        for i in range(wanted):
            z = sqrt(spec.steady) * score + sqrt(1 - spec.steady) * noise.gauss(0, 1)
            sampled = min(left, room, max(1, round(self._sampled.at(z) * factor)))
            turn = self._with_call(sampled, score, noise)
            left -= sampled
            room -= sampled + turn.observed_tokens
            if i == wanted - 1 or left <= 0 or room <= 0:
                turns.append(TraceTurn(sampled, "", 0.0, "ok", 0))
                break
            turns.append(turn)
        return TraceTrajectory(f"{spec.kind}-{prompt}", sample, spec.kind, prompt_tokens, tuple(turns))

    def _with_call(self, sampled: int, score: float, noise: random.Random) -> TraceTurn:
        spec = self.spec
        told, untold = spec.informativeness, sqrt(1 - spec.informativeness**2)
        tool = spec.tools[bisect_right(self._tool_edges, noise.random())].name
        observed = round(self._observed.at(told * score + untold * noise.gauss(0, 1)))
        failed = told * score + untold * noise.gauss(0, 1) > self._error_above
        status: Status = "error" if failed else "ok"
        if noise.random() < spec.slow_share:
            tool_s = spec.slow_least_s * (spec.slow_most_s / spec.slow_least_s) ** noise.random()
            if noise.random() < spec.slow_timeout_share:
                status = "timeout"
        else:
            tool_s = self._tool_s.at(noise.gauss(0, 1))
        return TraceTurn(sampled, tool, tool_s, status, observed)

    def _noise(self, *key: int | str) -> random.Random:
        text = "/".join(map(str, (self.seed, self.spec.kind, *key)))
        return random.Random(int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big"))
