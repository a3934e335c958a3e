"""Questions of several hops: `radium discoverer birthplace capital`, followed from left to right, and their answers.

A task is a function of (seed, split, ordinal), drawn from a generator keyed by a hash of the three; a hash of the question says
which split it belongs to. Every hop is asked for: neither a relation nor a name occurs twice on the way, so stopping short is
never right by accident and "the relation after the one just used" is a place in the question.
"""

import random
from functools import cache

from msgspec import Struct

from libra.config.worlds import LookupConfig
from libra.env.drawing import is_heldout, keyed_random
from libra.env.lookup.corpus import known, word


class Task(Struct, frozen=True):
    """From `names[0]`, hop i follows `relations[i]` and reaches `names[i + 1]`; names as the corpus writes them."""

    names: tuple[str, ...]
    relations: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The names as words of the vocabulary."""
        return tuple(word(name) for name in self.names)

    @property
    def answer(self) -> str:
        return self.words[-1]

    @property
    def question(self) -> str:
        return " ".join([self.words[0], *self.relations])


@cache
def longest() -> int:
    """Hops of the longest question that the corpus has."""
    hops = 1
    while any(_walk(start, (), (start,), hops + 1, None) for start in known()):
        hops += 1
    return hops


def draw_task(config: LookupConfig, seed: int, split: str, ordinal: int) -> Task:
    """Task `ordinal` of `split` ("train" or "heldout")."""
    rng = keyed_random(seed, split, ordinal)
    while True:
        task = _draw(config, rng)
        if is_heldout(task.question) == (split == "heldout"):
            return task


def _draw(config: LookupConfig, rng: random.Random) -> Task:
    hops = 1
    while hops < config.max_hops and rng.random() >= config.stop_probability:
        hops += 1
    starts = list(known())
    while True:
        start = starts[rng.randrange(len(starts))]
        if (task := _walk(start, (), (start,), hops, rng)) is not None:
            return task


def _walk(
    at: str, relations: tuple[str, ...], names: tuple[str, ...], hops: int, rng: random.Random | None
) -> Task | None:
    """A way of `hops` more hops, ways tried in the generator's order (None: the corpus's); None where there is none."""
    if hops == 0:
        return Task(names, relations)
    ways = [(r, o) for r, o in known().get(at, {}).items() if r not in relations and o not in names]
    if rng is not None:
        rng.shuffle(ways)
    for relation, to in ways:
        if (task := _walk(to, (*relations, relation), (*names, to), hops - 1, rng)) is not None:
            return task
    return None
