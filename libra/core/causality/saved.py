"""The tree as plain Structs: saved with the run, restored to the very same answers and the very same later drops.

`transplanted` makes of a saved tree what another run may start from.
"""

from array import array

from msgspec import Struct, structs

from libra.core.causality.node import Node, Seen
from libra.core.causality.sketch import new_bins
from libra.core.causality.tree import ALL, PROMPT, CausalityTree, TreeConfig
from libra.core.causality.walk import Spent, Walk
from libra.core.signal import Signal
from libra.errors import CoreError

FORMAT = 1
FADED = 1e-6
"""Evidence below which a node is nothing that another run could learn from."""


SavedBins = dict[int, float]
"""Weights by bin, without the empty ones."""


class SavedNode(Struct, frozen=True, array_like=True):
    serial: int
    parent: int
    """Serial number of the parent; -1 for a root."""
    scope: int
    signal: Signal | None
    root: int | str
    """A root's key, where `signal` is None."""
    base: int
    visits: int
    weight: float
    sums: tuple[float, float, float]
    seen: list[Seen]
    weights: list[float]
    bins: tuple[SavedBins, SavedBins, SavedBins] | None


class SavedWalk(Struct, frozen=True, array_like=True):
    traj: int
    prompt: int | str
    family: str
    signals: list[Signal]
    marks: list[Spent]
    latest: Spent
    returns: int


class SavedTree(Struct, frozen=True):
    format: int
    config: TreeConfig
    now: int
    serial: int
    hand: int
    nodes: list[SavedNode]
    """Parents before children."""
    leaves: list[int]
    walks: list[SavedWalk]


def save(tree: CausalityTree) -> SavedTree:
    """A snapshot; the tree is left exactly as it was."""
    return SavedTree(
        FORMAT,
        tree.config,
        tree.now,
        tree.serial,
        tree.hand,
        [_save_node(n) for n in tree.nodes.values()],
        [n.serial for n in tree.leaves],
        [
            SavedWalk(traj, w.prompt, w.family, list(w.signals), list(w.marks), w.latest, w.returns)
            for traj, w in tree.walks.items()
        ],
    )


def restore(saved: SavedTree) -> CausalityTree:
    """The tree that was saved."""
    if saved.format != FORMAT:
        raise CoreError(
            f"saved causality tree has format {saved.format}, this code reads {FORMAT}: use its own version"
        )
    tree = CausalityTree(saved.config)
    tree.now, tree.serial, tree.hand = saved.now, saved.serial, saved.hand
    for s in saved.nodes:
        _restore_node(tree, s)
    for slot, serial in enumerate(saved.leaves):
        leaf = tree.nodes[serial]
        leaf.slot = slot
        tree.leaves.append(leaf)
    for s in saved.walks:
        walk = Walk(s.prompt, s.family)
        walk.signals, walk.marks = list(s.signals), list(s.marks)
        walk.latest, walk.returns = s.latest, s.returns
        tree.walks[s.traj] = walk
    return tree


def transplanted(saved: SavedTree, config: TreeConfig, same_prompts: bool) -> SavedTree:
    """What is known, weighed as of now, as if it had been learned at version 0, under `config`.

    Trajectories in flight stay behind, as does what has faded to nothing and, unless the other run has the `same_prompts`,
    what is known of single prompts. A smaller `max_nodes` drops the least useful nodes.
    """
    tree = restore(structs.replace(saved, walks=[]))
    kept: set[int] = set()
    for node in tree.nodes.values():
        foreign = node.scope == PROMPT and not same_prompts
        orphan = node.parent is not None and node.parent.serial not in kept
        if foreign or orphan or node.evidence(tree.now, tree.fading) < FADED:
            continue
        node.rebase(tree.now, tree.fading)
        node.base = 0
        kept.add(node.serial)
    inner = {n.parent.serial for n in tree.nodes.values() if n.parent is not None and n.serial in kept}
    tree.nodes = {serial: n for serial, n in tree.nodes.items() if serial in kept}
    tree.leaves = [n for n in tree.nodes.values() if n.serial not in inner and (n.scope, n.depth) != (ALL, 0)]
    tree.now = tree.hand = 0
    moved = restore(structs.replace(save(tree), config=config))
    while len(moved.nodes) > config.max_nodes:
        moved.drop_one()
    return save(moved)


def _save_node(node: Node) -> SavedNode:
    signal, root = (node.key, "") if isinstance(node.key, Signal) else (None, node.key)
    return SavedNode(
        node.serial,
        -1 if node.parent is None else node.parent.serial,
        node.scope,
        signal,
        root,
        node.base,
        node.visits,
        node.weight,
        node.sums,
        list(node.seen),
        list(node.weights),
        None if node.bins is None else (_sparse(node.bins[0]), _sparse(node.bins[1]), _sparse(node.bins[2])),
    )


def _restore_node(tree: CausalityTree, s: SavedNode) -> None:
    parent = None if s.parent < 0 else tree.nodes[s.parent]
    key = s.root if s.signal is None else s.signal
    node = Node(s.serial, s.scope, 0 if parent is None else parent.depth + 1, key, parent, s.base)
    node.visits, node.weight, node.sums = s.visits, s.weight, s.sums
    node.seen, node.weights = list(s.seen), list(s.weights)
    node.bins = None if s.bins is None else (_dense(s.bins[0]), _dense(s.bins[1]), _dense(s.bins[2]))
    tree.nodes[s.serial] = node
    if parent is None:
        tree.roots[s.scope][key] = node
        return
    if parent.children is None:
        parent.children = {}
    assert s.signal is not None  # only roots have none
    parent.children[s.signal] = node


def _sparse(bins: "array[float]") -> SavedBins:
    return {i: w for i, w in enumerate(bins) if w}


def _dense(weights: SavedBins) -> "array[float]":
    bins = new_bins()
    for i, w in weights.items():
        bins[i] = w
    return bins
