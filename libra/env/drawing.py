"""Drawing tasks: generators and splits that depend on a key alone, the same in every process and on every day.

Called by environments' tasks and demonstrations.
"""

import random
from hashlib import blake2b

HELDOUT_SHARE = 0.2
"""Of all questions."""


def is_heldout(question: str) -> bool:
    """To which split a question belongs: a hash of itself says it, so the splits are disjoint for all seeds together."""
    return blake2b(question.encode(), digest_size=1, person=b"libra.split").digest()[0] < 256 * HELDOUT_SHARE


def keyed_random(*key: object) -> random.Random:
    """A generator that depends on the key alone (never on the process's hash seed)."""
    text = "\0".join(map(str, key))
    return random.Random(int.from_bytes(blake2b(text.encode(), digest_size=16, person=b"libra.tasks").digest(), "big"))
