"""What every engine asks of a turn before it takes it, whoever computes."""

from collections.abc import Container

from libra.errors import RoleError
from libra.wire.messages import Turn


def check_turn(turn: Turn, version: int, here: Container[int], vocab_size: int) -> str:
    """What to call the turn in messages about it. RoleError if an engine of `version`, with turns of `here`, can not run it."""
    what = f"turn of trajectory {turn.traj}"
    if version < 0:
        raise RoleError(f"{what}: this engine has no weights yet; install a version before the first turn")
    if turn.traj in here:
        raise RoleError(f"{what}: another turn of it is still here; wait for its TurnDone")
    if not turn.tokens or turn.max_new_tokens < 1:
        raise RoleError(
            f"{what}: got {len(turn.tokens)} context tokens and max_new_tokens = {turn.max_new_tokens}, both must be"
            " at least 1"
        )
    if min(turn.tokens) < 0 or max(turn.tokens) >= vocab_size:
        raise RoleError(
            f"{what}: token ids from {min(turn.tokens)} to {max(turn.tokens)}, the vocabulary ends at"
            f" {vocab_size - 1}; controller and engine must use the same tokenizer"
        )
    return what
