"""The causality tree: after which sequence of tool returns how much remained.

    prompt 17 ── (search, large, ok) ── (search, small, ok) ...     one root a prompt,
    family "search" ── (search, large, ok) ...                      one a family of tasks,
    all ── (search, large, ok) ...                                  and one for all.

A trajectory walks the three trees side by side as its tools return. When it ends, every node on its way learns
what had still been to come (tokens, turns, tool seconds), and the roots learn its totals; a trajectory without any tool
return teaches the roots. Answers are explained in `forecast`, the nodes' memory in `node` and `sketch`.

Invariants.
- Constant work an event, whatever was learned before: a step down is one look-up a tree, an end touches at most
  3 (max_depth + 1) nodes, an answer asks at most `3 x _ASKED` of them.
- At most `max_nodes` nodes. Beyond, the least useful of the next `_CANDIDATES` leaves in a fixed round goes: the one with
  the least evidence at the present version.
- An answer depends on what was learned and on the trajectory's own signals, never on when it looked: nodes that appear
  (a sibling of the same group ends, so is evidence within the step) or go are noticed at the next question.
- Running siblings are not used as lower bounds: the survivors' rule already keeps early, short finishers from
  speaking for a trajectory that has outlived them.

The core's coordinator feeds it from the trajectory's events; policies ask. State is saved by `saved`.
"""

import math

from msgspec import Struct

from libra.core.causality.forecast import MOST_SHARE, SCOPES, Known, Residual, Source, blend, blend_slices, share_of
from libra.core.causality.node import Fading, Key, Node, Places, Seen, places_of
from libra.core.causality.sketch import TOKENS
from libra.core.causality.walk import Walk, spent_by
from libra.core.signal import Signal
from libra.errors import ConfigError, CoreError

PROMPT, FAMILY, ALL = 0, 1, 2
_ASKED = 4
"""Nodes that an answer asks in one tree: the deepest known ones, the last of them always the root."""
_ENOUGH = 0.05
"""An answer stops asking when less than this share is left over."""
_CANDIDATES = 4
"""Leaves compared when one has to go."""


Lesson = tuple[Seen, Places]
"""What had still been to come at one tool return, and the bins that count it."""


class TreeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    decay: float = 0.9
    """What an observation still counts after one more policy version, in (0, 1]; 1 never forgets."""
    pseudo_count: float = 4.0
    """k of the back-off: visits at which a node speaks for half of what it is asked."""
    max_nodes: int = 20_000
    """Of all trees together. A node takes 0.7 KB after one visit and 12 KB at most: 240 MB if all were busy; 20 to 35 MB in
    the bench, where one in twenty is."""
    max_depth: int = 16
    """Tool returns that the trees follow; what comes later is conditional on the tokens produced since."""
    prior: tuple[float, float, float] = (1000.0, 2.0, 1.0)
    """Mean residual tokens, turns and tool seconds before anything is known."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {got!r}: expected {expected}"
            for name, got, expected, good in (
                ("decay", self.decay, "0 < decay <= 1", 0 < self.decay <= 1),
                ("pseudo_count", self.pseudo_count, "a finite number > 0", 0 < self.pseudo_count < math.inf),
                ("max_nodes", self.max_nodes, "at least 16", self.max_nodes >= 16),
                ("max_depth", self.max_depth, "at least 1", self.max_depth >= 1),
                ("prior", self.prior, "finite numbers > 0", all(0 < p < math.inf for p in self.prior)),
            )
            if not good
        ]
        if problems:
            raise ConfigError("causality tree", problems)


class CausalityTree:
    """See the module. `traj` is the trajectory's id; a fresh attempt after `abandon` or `finish` may use it again."""

    def __init__(self, config: TreeConfig | None = None) -> None:
        self.config = config or TreeConfig()
        self.fading = Fading(self.config.decay)
        self.now = 0
        """The newest policy version that something was learned under."""
        self.serial = 0
        self.nodes: dict[int, Node] = {}
        """By serial number: parents before children."""
        self.roots: tuple[dict[Key, Node], dict[Key, Node], dict[Key, Node]] = ({}, {}, {})
        self.leaves: list[Node] = []
        self.hand = 0
        self.walks: dict[int, Walk] = {}

    # --- told by the core

    def start(self, traj: int, prompt: int | str, family: str = "") -> None:
        """A trajectory begins. `family` "" has no tree of its own."""
        if traj in self.walks:
            raise CoreError(f"causality: trajectory {traj} started twice; finish or abandon it first")
        self.walks[traj] = Walk(prompt, family)

    def advance(self, traj: int, signal: Signal, produced_tokens: float, turns: float, tool_s: float) -> None:
        """A tool returned. The three amounts are the trajectory's totals so far."""
        walk = self._walk(traj)
        walk.latest = spent_by(traj, walk.latest, (produced_tokens, turns, tool_s))
        walk.returns += 1
        if walk.returns <= self.config.max_depth:
            walk.signals.append(signal)
            walk.marks.append(walk.latest)

    def finish(self, traj: int, total_tokens: float, turns: float, tool_s: float, version: int) -> None:
        """The trajectory ended by itself, under policy `version`: its way learns what was still to come at each return."""
        walk = self._walk(traj)
        total = spent_by(traj, walk.latest, (total_tokens, turns, tool_s))
        del self.walks[traj]
        self.now = max(self.now, version)
        lessons: list[Lesson] = []
        for spent in walk.marks:
            seen = (total[0] - spent[0], total[1] - spent[1], total[2] - spent[2])
            lessons.append((seen, places_of(seen)))
        self._teach(PROMPT, walk.prompt, walk.signals, lessons, version)
        if walk.family:
            self._teach(FAMILY, walk.family, walk.signals, lessons, version)
        self._teach(ALL, "", walk.signals, lessons, version)

    def abandon(self, traj: int) -> None:
        """The trajectory failed or was dropped: nothing is learned from it."""
        self._walk(traj)
        del self.walks[traj]

    # --- asked by policies

    def predict(self, traj: int, quantity: int = TOKENS, since: float = 0.0) -> Residual:
        """What remains for `traj` of `quantity`, given `since` more of it was spent after the latest tool return."""
        return blend(self._sources(traj, quantity, since), self.config.prior[quantity])

    def sources(self, traj: int, since: float = 0.0) -> tuple[list[Source], list[Signal]]:
        """Who speaks when tokens are predicted, the most specific first; and the trajectory's signals so far."""
        return self._sources(traj, TOKENS, since), self._walk(traj).signals

    def slices(self, traj: int, since: float = 0.0, k: int = 8) -> tuple[float, ...]:
        """Residual tokens as the means of `k` equally probable slices, smallest first: for expected costs."""
        return blend_slices(self._sources(traj, TOKENS, since), self.config.prior[TOKENS], k)

    def paper(self, traj: int) -> Known | None:
        """The paper's look-up (residual tokens): the deepest known node, in the own prompt's tree if it is known, else in
        the tree of all. None while nothing at all is known. Its weights fade like all others: take decay = 1 for the letter.
        """
        found = self._paper_node(traj)
        if found is None:
            return None
        tail = found.profile(TOKENS, self.fading).beyond(0.0)
        assert tail is not None  # nobody is excluded at 0
        source = "prompt" if found.scope == PROMPT else "global"
        return Known(tail.mean, tail.quantile(0.9), found.visits, source, found.depth)

    def paper_bins(self, traj: int, edges_tokens: tuple[float, ...]) -> tuple[float, ...] | None:
        """Shares of the paper's node in (-inf, e0], (e0, e1], ..., (e_last, inf); None where `paper` is."""
        found = self._paper_node(traj)
        return None if found is None else found.profile(TOKENS, self.fading).shares(edges_tokens)

    # --- inside

    def _walk(self, traj: int) -> Walk:
        walk = self.walks.get(traj)
        if walk is None:
            raise CoreError(f"causality: trajectory {traj} is not running; expected `start` before anything else")
        return walk

    def _known(self, walk: Walk, scope: int) -> list[Node]:
        """Known nodes on the way of `walk`, root first. Constant work beyond what has changed since the last call."""
        path = walk.paths[scope]
        while path and not path[-1].alive:
            path.pop()
        if not path:
            root = self.roots[scope].get((walk.prompt, walk.family, "")[scope])
            if root is None:
                return path
            path.append(root)
        while len(path) <= len(walk.signals):
            children = path[-1].children
            child = children.get(walk.signals[len(path) - 1]) if children else None
            if child is None:
                break
            path.append(child)
        return path

    def _sources(self, traj: int, quantity: int, since: float) -> list[Source]:
        walk = self._walk(traj)
        spent = walk.latest[quantity] + since
        k, fading, now = self.config.pseudo_count, self.fading, self.now
        left, sources = 1.0, list[Source]()
        for scope in (PROMPT, FAMILY, ALL):
            path = self._known(walk, scope)
            if not path:
                continue
            deepest = len(path) - 1
            for depth in (*range(deepest, max(0, deepest - _ASKED + 1), -1), 0):
                node = path[depth]
                tail = node.profile(quantity, fading).beyond(spent - walk.marks[depth][quantity])
                if tail is None:
                    continue
                evidence = node.evidence(now, fading) * (tail.weight / node.weight)
                share = left * share_of(evidence, walk.returns - depth, k, MOST_SHARE if depth else 1.0)
                if share <= 0.0:  # faded to nothing
                    continue
                sources.append(Source(tail, share, evidence, SCOPES[scope], depth))
                left -= share
                if left < _ENOUGH:
                    sources[-1].share += left
                    return sources
        if sources:
            sources[-1].share += left
        return sources

    def _paper_node(self, traj: int) -> Node | None:
        walk = self._walk(traj)
        path = self._known(walk, PROMPT) or self._known(walk, ALL)
        return path[-1] if path else None

    def _teach(self, scope: int, root: Key, signals: list[Signal], lessons: list[Lesson], version: int) -> None:
        """Walk down from `root`, made as needed; the node of depth d learns lessons[d]."""
        node: Node | None = None
        fading, nodes, most = self.fading, self.nodes, self.config.max_nodes
        for depth, (seen, places) in enumerate(lessons):
            key = signals[depth - 1] if depth else root
            siblings = self.roots[scope] if node is None else node.children
            known = siblings.get(key) if siblings else None  # type: ignore[arg-type]  # below the roots every key is a signal
            node = known or self._grow(scope, depth, key, node, version)
            node.learn(seen, places, version, fading)
            if len(nodes) > most:
                self.drop_one()
                if not node.alive:
                    return

    def _grow(self, scope: int, depth: int, key: Key, parent: Node | None, version: int) -> Node:
        node = Node(self.serial, scope, depth, key, parent, version)
        self.serial += 1
        self.nodes[node.serial] = node
        if parent is None:
            self.roots[scope][key] = node
        else:
            if parent.children is None:
                parent.children = {}
            parent.children[key] = node  # type: ignore[index]  # below the roots every key is a signal
            if parent.slot >= 0:
                self._unleaf(parent)
        if scope != ALL or depth > 0:
            self._leaf(node)
        return node

    def _leaf(self, node: Node) -> None:
        node.slot = len(self.leaves)
        self.leaves.append(node)

    def _unleaf(self, node: Node) -> None:
        last = self.leaves.pop()
        if last is not node:
            self.leaves[node.slot] = last
            last.slot = node.slot
        node.slot = -1

    def drop_one(self) -> None:
        """Drop the least useful of the next few leaves."""
        start = self.hand if self.hand < len(self.leaves) else 0
        self.hand = start + _CANDIDATES
        least = self.leaves[start]
        least_evidence = math.inf
        for leaf in self.leaves[start : self.hand]:
            evidence = leaf.evidence(self.now, self.fading)
            if evidence < least_evidence:
                least, least_evidence = leaf, evidence
        self._unleaf(least)
        least.alive = False
        del self.nodes[least.serial]
        parent = least.parent
        if parent is None:
            del self.roots[least.scope][least.key]
            return
        assert parent.children is not None  # `least` is one of them
        del parent.children[least.key]  # type: ignore[arg-type]
        if not parent.children:
            parent.children = None
            if parent.scope != ALL or parent.depth > 0:
                self._leaf(parent)
