"""A scheduler that is made anew in the middle of a run: what it had learnt comes back from bytes, what is live is handed over.

Replaying a journal restores what is live (seats, routes, waiting turns); the saved state restores what was learnt. A test that
does this to one core and not to another, and finds the same commands, shows that nothing learnt is missing from what is saved.
"""

import msgspec

from libra.core.coordinator import Core
from libra.core.learned import Learned
from libra.core.placement import Placement
from libra.core.scheduler.policy import Foresight


def restart(core: Core, foresight: Foresight | None = None) -> None:
    saved = msgspec.msgpack.encode(core.learned())
    old, new = (
        core.placement,
        Placement(core.config, core.fleet, foresight, msgspec.msgpack.decode(saved, type=Learned)),
    )
    vars(new.seats).update(vars(old.seats))
    new._routes, new.decisions, new.decided = old._routes, old.decisions, old.decided
    for before, after in zip(old.shapes, new.shapes, strict=True):
        after.queued_tokens = before.queued_tokens
    new.index.changes, new.index.freed = old.index.changes, old.index.freed
    core.placement = core.rollout.placement = core.rollout.rebalance.placement = core.handover.placement = new
