"""Properties of the tree and its sketches, against a naive reference that keeps everything."""

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.causality import TOOL_S, TURNS, CausalityTree, SavedTree, TreeConfig, restore, save
from libra.core.causality.forecast import share_of
from libra.core.causality.node import EXACT, Fading, Node, places_of
from libra.core.causality.sketch import RELATIVE_ERROR, TOKENS, UNITS, Profile
from libra.core.signal import Signal

SIGNALS = [Signal(t, s, "ok") for t in ("a", "b") for s in ("small", "large")]
tokens = st.one_of(st.integers(0, 50_000), st.floats(0, 50_000, allow_subnormal=False))


def trajectories(max_size, prompts=3):
    one = st.tuples(
        st.integers(0, prompts - 1),
        st.lists(st.tuples(st.sampled_from(SIGNALS), st.integers(1, 3_000)), max_size=5),
        st.integers(0, 20_000),
        st.integers(0, 3),
    )
    return st.lists(one, max_size=max_size)


def play(tree, runs, first=0):
    """Run each trajectory to its end; returns (prompt, signals, residual tokens at each depth) of all."""
    told, version = [], 0
    for traj, (prompt, way, rest, step) in enumerate(runs, first):
        tree.start(traj, prompt, "f")
        produced, marks = 0, [0]
        for i, (signal, sampled) in enumerate(way, 1):
            produced += sampled
            marks.append(produced)
            tree.advance(traj, signal, produced, i, i / 10)
        version += step
        tree.finish(traj, produced + rest, len(way) + 1, len(way) / 10, version)
        told.append((prompt, tuple(s for s, _ in way), [produced + rest - m for m in marks], version))
    return told


def nearest_rank(values, p):
    ordered = sorted(values)
    return ordered[math.ceil(p * len(ordered) - 1e-9) - 1]


@given(trajectories(25), st.integers(0, 3), st.lists(st.sampled_from(SIGNALS), max_size=5))
def test_paper_lookup_equals_the_naive_reference(runs, prompt, way):
    tree = CausalityTree(TreeConfig(decay=1.0))
    told = play(tree, runs)
    tree.start(10**6, prompt)
    for i, signal in enumerate(way, 1):
        tree.advance(10**6, signal, i, i, 0)
    own = [t for t in told if t[0] == prompt]
    pool = own or told
    known = tree.paper(10**6)
    if not pool:
        assert known is None
        return
    for depth in range(len(way), -1, -1):
        residuals = [t[2][depth] for t in pool if t[1][:depth] == tuple(way[:depth]) and len(t[1]) >= depth]
        if residuals:
            break
    assert (known.depth, known.visits, known.source) == (depth, len(residuals), "prompt" if own else "global")
    assert known.mean == pytest.approx(sum(residuals) / len(residuals))
    assert known.p90 == nearest_rank(residuals, 0.9)


@given(st.lists(tokens, min_size=1, max_size=3 * EXACT), st.integers(0, 2), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_quantiles_keep_to_the_stated_error_and_means_are_exact(values, quantity, p):
    fading = Fading(1.0)
    node = Node(0, 0, 0, "", None, 0)
    for v in values:
        node.learn((v, v, v), places_of((v, v, v)), 0, fading)
    tail = node.profile(quantity, fading).beyond(0)
    true = nearest_rank(values, p)
    assert tail.mean == pytest.approx(sum(values) / len(values))
    if len(values) <= EXACT:
        assert tail.quantile(p) == true
    else:
        assert abs(tail.quantile(p) - true) <= max(RELATIVE_ERROR * true * (1 + 1e-9), UNITS[quantity])


@given(st.lists(st.tuples(tokens, st.floats(0.01, 10)), min_size=1, max_size=40), st.floats(0, 60_000))
def test_tails_equal_the_naive_reference(pairs, since):
    pairs.sort()
    total = sum(w for _, w in pairs)
    profile = Profile([v for v, _ in pairs], [w for _, w in pairs], sum(v * w for v, w in pairs) / total)
    tail = profile.beyond(since)
    left = [(v - since, w) for v, w in pairs if v > since] if since > 0 else pairs
    if not left:
        assert tail is None
        return
    weight = sum(w for _, w in left)
    mean = sum(v * w for v, w in left) / weight
    assert tail.weight == pytest.approx(weight)
    assert tail.mean == pytest.approx(mean, abs=1e-6)
    assert sum(tail.slices(8)) / 8 == pytest.approx(mean, rel=1e-6, abs=1e-4)
    assert sum(profile.shares((100.0, 20_000.0))) == pytest.approx(1)


@given(st.floats(0, 1e6), st.floats(0.001, 1e6), st.integers(0, 40), st.floats(0.1, 100))
def test_share_grows_with_evidence_and_shrinks_with_distance(evidence, more, gap, k):
    assert share_of(evidence + more, gap, k) >= share_of(evidence, gap, k)
    assert share_of(evidence, gap + 1, k) <= share_of(evidence, gap, k)
    assert 0 <= share_of(evidence, gap, k) <= 1


@given(st.integers(1, 60), st.integers(2, 30_000))
def test_forecast_moves_towards_a_node_as_its_evidence_grows(visits, own):
    crowd = [(0, [], 1_000, 0)] * 100
    tree = CausalityTree(TreeConfig(decay=1.0))
    play(tree, crowd)
    distances = []
    for i in range(visits):
        play(tree, [(1, [], own, 0)], first=1_000 + i)
        tree.start(0, 1, "f")
        distances.append(abs(tree.predict(0).mean - own))
        tree.abandon(0)
    assert all(b <= a + 1e-6 * own for a, b in pairwise(distances))


def ask(tree, trajs):
    return [
        (tree.predict(t, q, since), tree.slices(t, since), tree.paper(t))
        for t in trajs
        for q in (TOKENS, TURNS, TOOL_S)
        for since in (0.0, 3.0, 5_000.0)
    ]


@settings(max_examples=40)
@given(trajectories(40, prompts=20), trajectories(20, prompts=20), st.integers(16, 60))
def test_a_restored_tree_answers_and_forgets_like_the_saved_one(before, after, max_nodes):
    tree = CausalityTree(TreeConfig(max_nodes=max_nodes, max_depth=3))
    play(tree, before)
    live = []
    for traj, (prompt, way, _, _) in enumerate(before[:5], 5_000):
        tree.start(traj, prompt, "f")
        for i, (signal, _) in enumerate(way, 1):
            tree.advance(traj, signal, 10 * i, i, i / 10)
        live.append(traj)
    ask(tree, live)  # caches must not matter
    twin = restore(msgspec.msgpack.decode(msgspec.msgpack.encode(save(tree)), type=SavedTree))
    assert ask(twin, live) == ask(tree, live)
    play(tree, after, first=10_000)
    play(twin, after, first=10_000)
    assert ask(twin, live) == ask(tree, live)
    assert save(twin) == save(tree)


@settings(max_examples=40)
@given(trajectories(60, prompts=40), st.integers(16, 40))
def test_memory_stays_within_its_bound_and_the_books_balance(runs, max_nodes):
    tree = CausalityTree(TreeConfig(max_nodes=max_nodes))
    for i, run in enumerate(runs):
        play(tree, [run], first=i)
        assert len(tree.nodes) <= max_nodes
    nodes = list(tree.nodes.values())
    leaves = [n for n in nodes if not n.children and (n.scope, n.depth) != (2, 0)]
    assert sorted(n.serial for n in leaves) == sorted(n.serial for n in tree.leaves)
    assert all(tree.leaves[n.slot] is n for n in leaves)
    assert all(n.alive and (n.parent is None or n.parent.alive) for n in nodes)
    assert all(n.bins is not None or len(n.seen) == n.visits <= EXACT for n in nodes)


def test_the_useful_stay_when_the_memory_is_full():
    tree = CausalityTree(TreeConfig(max_nodes=40, decay=1.0))
    for i in range(400):
        play(tree, [(0, [(SIGNALS[0], 10)], 500, 0), (1_000 + i, [], 50, 0)], first=2 * i)
    tree.start(10**6, 0, "f")
    tree.advance(10**6, SIGNALS[0], 10, 1, 0)
    known = tree.paper(10**6)
    assert (known.source, known.depth, known.visits) == ("prompt", 1, 400)
