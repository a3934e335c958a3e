"""Questions: flat chains such as `43 - 12 + 7 * 2`, evaluated left to right, and their answers.

A task is a function of (seed, split, ordinal), drawn from a generator keyed by a hash of the three. The splits are
disjoint by construction, for all seeds together: a hash of the question itself says which split it belongs to, and drawing
goes on until the split is the right one.

Every question is answerable and asks for each of its steps: intermediate values stay within 0..99, operands are distinct
(so "the operand after the one just used" is a place in the question), and every operation changes the value (so stopping
one step short is never right by accident).
"""

import random

from msgspec import Struct

from libra.config.worlds import CalculatorConfig
from libra.env.calculator.tokens import OPERATORS
from libra.env.calculator.tool import HIGHEST
from libra.env.drawing import is_heldout, keyed_random


class Task(Struct, frozen=True):
    """`values[0]`, then step i applies `operators[i]` with `values[i + 1]` and reaches `reached[i + 1]`."""

    values: tuple[int, ...]
    operators: tuple[str, ...]
    reached: tuple[int, ...]

    @property
    def answer(self) -> int:
        return self.reached[-1]

    @property
    def question(self) -> str:
        chain = [word for pair in zip(self.operators, map(str, self.values[1:]), strict=True) for word in pair]
        return " ".join([str(self.values[0]), *chain])


def operands(value: int, operator: str) -> range:
    """The operands with which `operator` changes `value` and stays within 0..HIGHEST; the tool has the same rule."""
    match operator:
        case "+":
            return range(1, HIGHEST - value + 1)
        case "-":
            return range(1, value + 1)
        case _:
            return range(2, HIGHEST // value + 1) if value else range(0)


def draw_task(config: CalculatorConfig, seed: int, split: str, ordinal: int) -> Task:
    """Task `ordinal` of `split` ("train" or "heldout")."""
    rng = keyed_random(seed, split, ordinal)
    while True:
        task = _draw(config, rng)
        if is_heldout(task.question) == (split == "heldout"):
            return task


def _draw(config: CalculatorConfig, rng: random.Random) -> Task:
    operations = 1
    while operations < config.max_operations and rng.random() >= config.stop_probability:
        operations += 1
    unused = list(range(1, config.max_operand + 1))
    value = unused.pop(rng.randrange(len(unused)))
    values, operators, reached = [value], [], [value]
    for _ in range(operations):
        # Never empty: each unused operand can be added (value <= 50) or taken away (value >= 49).
        legal = {o: [w for w in unused if w in allowed] for o in OPERATORS if (allowed := operands(value, o))}
        operator = rng.choice([o for o in OPERATORS if legal.get(o)])
        operand = rng.choice(legal[operator])
        value = value + operand if operator == "+" else value - operand if operator == "-" else value * operand
        unused.remove(operand)
        values.append(operand)
        operators.append(operator)
        reached.append(value)
    return Task(tuple(values), tuple(operators), tuple(reached))
