"""What scheduling has learnt from a run: the tree, the pace of each bucket, what the policy remembers.

    Core.learned() ──> Learned ──(a file)──> Core(config, learned=...)      the same decisions from there on
                          └── carried_over(...) ──> Learned: what another run starts from

A snapshot changes nothing. With the trajectories in flight it holds their walks too, so a core that is brought to the same
event (by replaying) decides the same whether it kept its own state or was given the saved one. Another run has other
trajectories, versions and perhaps prompts: it starts from what `carried_over` leaves.
"""

from msgspec import Struct, structs

from libra.core.causality.saved import SavedTree, transplanted
from libra.core.causality.tree import TreeConfig
from libra.core.cost.correction import Kind
from libra.core.cost.reuse import Reuse


class Learned(Struct, frozen=True, kw_only=True):
    tree: SavedTree
    kinds: dict[str, Kind] = {}
    """The correction of costs, by bucket name."""
    turn_tokens: dict[str, float] = {}
    """Mean tokens of a turn, by bucket name."""
    reuse: dict[str, Reuse] = {}
    """How much of prefixes engines keep, by bucket name."""
    memory: tuple[float, ...] = ()
    """What the policy remembers beside the tree; its own affair."""


def at_rest(learned: Learned) -> Learned:
    """The same without the trajectories in flight and the engines of now."""
    reuse = {name: Reuse(x.hoped, x.reused) for name, x in learned.reuse.items()}
    return structs.replace(learned, tree=structs.replace(learned.tree, walks=[]), reuse=reuse)


def carried_over(learned: Learned, config: TreeConfig, same_prompts: bool) -> Learned:
    """The tree alone, as of version 0, under the forgetting of another run; prompts' own trees where the prompts are the same.

    Paces stay behind: they belong to the engines of the run that measured them, and are learnt anew within some 50 turns.
    """
    return Learned(tree=transplanted(learned.tree, config, same_prompts))
