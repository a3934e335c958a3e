"""Scripted trajectories for the warm start: mostly bad ones, on purpose, so that RL has something to unlearn.

A share `give_up` of them stops early: after k of n hops, k uniform on 0..n-1, it answers with the name reached so far, which is
wrong. So the share of right answers is 1 - give_up, whatever the length: 0.30 with the default 0.7, whence 0.30 is also the
mean reward of a policy that imitates perfectly.

A share `malformed` of the queries is botched first: it has no words, or the relation of a later hop, with which no record is
found. It meets the error and is tried again, as far as the limits leave room for it. The session would give the same tokens
back: a test replays demonstrations through it.
"""

import random
from functools import cache

from libra.config.worlds import LookupConfig
from libra.env.drawing import keyed_random
from libra.env.lookup.corpus import facts, word
from libra.env.lookup.session import prompt_tokens
from libra.env.lookup.tasks import Task, draw_task
from libra.env.lookup.tokens import encode
from libra.env.protocol import Demonstration

_ROUND_TOKENS = 8
"""A query and what comes back: `<find> poland capital <run> <result> poland capital warsaw`."""
_ANSWER_TOKENS = 3


def demonstrations(config: LookupConfig, seed: int, n: int, give_up: float, malformed: float) -> list[Demonstration]:
    """`n` demonstrations on questions of the training split; the same for the same arguments."""
    made = []
    for i in range(n):
        rng = keyed_random(seed, "demonstration", i)
        task = draw_task(config, rng.getrandbits(63), "train", i)
        made.append(_demonstrate(config, task, rng, give_up, malformed))
    return made


def _demonstrate(
    config: LookupConfig, task: Task, rng: random.Random, give_up: float, malformed: float
) -> Demonstration:
    hops = len(task.relations)
    steps = rng.randrange(hops) if rng.random() < give_up else hops
    tokens = prompt_tokens(task)
    mask = [False] * len(tokens)
    room = (config.trajectory_tokens - len(tokens) - _ANSWER_TOKENS) // _ROUND_TOKENS - steps
    spare = max(0, min(config.max_errors, config.max_calls - steps, room))

    def add(text: str, sampled: bool) -> None:
        ids = encode(text)
        tokens.extend(ids)
        mask.extend([sampled] * len(ids))

    for i in range(steps):
        name, relation, reached = task.words[i], task.relations[i], task.words[i + 1]
        while spare > 0 and rng.random() < malformed:
            spare -= 1
            vain = [r for r in task.relations[i + 1 :] if (name, r) not in _occurring()]
            if vain and rng.random() < 0.5:
                add(f"<find> {name} {vain[0]} <run>", True)
                add("<error> nothing", False)
            else:
                add("<find> <run>", True)
                add("<error> malformed", False)
        add(f"<find> {name} {relation} <run>", True)
        add(f"<result> {name} {relation} {reached}", False)
    add(f"<answer> {task.words[steps]} <end>", True)
    return tokens, mask


@cache
def _occurring() -> frozenset[tuple[str, str]]:
    """(name, relation) of which some record speaks; a part of a longer name counts as a name, as it does for the search."""
    found: set[tuple[str, str]] = set()
    for fact in facts():
        for text in (fact.subject, fact.object):
            parts = word(text).split("_")
            spans = range(len(parts))
            found.update(("_".join(parts[a : b + 1]), fact.relation) for a in spans for b in spans[a:])
    return frozenset(found)
