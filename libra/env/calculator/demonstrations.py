"""Scripted trajectories for the warm start: mostly bad ones, on purpose, so that RL has something to unlearn.

A share `give_up` of them stops early: after k of n operations, k uniform on 0..n-1, it answers with the value so far,
which is wrong (k = 0 answers the first value without any call). Giving up can strike at every length, one operation
included, so the share of right answers is 1 - give_up, the same for short and for long questions: 0.30 with the default
0.7, whence 0.30 is also the mean reward of a policy that imitates perfectly. The hazard of stopping is nowhere near 1,
so every question keeps a way to its reward that sampling finds.

A share `malformed` of the calls lacks its operand, or operator and operand; it meets the error and is tried again, as far
as the limits leave room for it. The session would give the same tokens back: a test replays demonstrations through it.
"""

import random

from libra.config.worlds import CalculatorConfig
from libra.env.calculator.session import prompt_tokens
from libra.env.calculator.tasks import Task, draw_task
from libra.env.calculator.tokens import encode
from libra.env.drawing import keyed_random
from libra.env.protocol import Demonstration

_ROUND_TOKENS = 7
"""A call and what comes back: `<call> 31 + 7 <run> <result> 38`."""
_ANSWER_TOKENS = 3


def demonstrations(
    config: CalculatorConfig, seed: int, n: int, give_up: float, malformed: float
) -> list[Demonstration]:
    """`n` demonstrations on questions of the training split; the same for the same arguments."""
    made = []
    for i in range(n):
        rng = keyed_random(seed, "demonstration", i)
        task = draw_task(config, rng.getrandbits(63), "train", i)
        made.append(_demonstrate(config, task, rng, give_up, malformed))
    return made


def _demonstrate(
    config: CalculatorConfig, task: Task, rng: random.Random, give_up: float, malformed: float
) -> Demonstration:
    operations = len(task.operators)
    steps = rng.randrange(operations) if rng.random() < give_up else operations
    steps = min(steps, config.max_calls)
    tokens = prompt_tokens(task)
    mask = [False] * len(tokens)
    room = (config.trajectory_tokens - len(tokens) - _ANSWER_TOKENS) // _ROUND_TOKENS - steps
    spare = max(0, min(config.max_errors, config.max_calls - steps, room))

    def add(text: str, sampled: bool) -> None:
        ids = encode(text)
        tokens.extend(ids)
        mask.extend([sampled] * len(ids))

    for value, operator, operand, after in zip(
        task.reached[:steps],
        task.operators[:steps],
        task.values[1 : steps + 1],
        task.reached[1 : steps + 1],
        strict=True,
    ):
        while spare > 0 and rng.random() < malformed:
            spare -= 1
            add(f"<call> {value} {operator} <run>" if rng.random() < 0.5 else f"<call> {value} <run>", True)
            add("<error> malformed", False)
        add(f"<call> {value} {operator} {operand} <run>", True)
        add(f"<result> {after}", False)
    add(f"<answer> {task.reached[steps]} <end>", True)
    return tokens, mask
