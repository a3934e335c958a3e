"""The causality tree on cases that can be worked out by hand."""

import msgspec
import pytest

from libra.core.causality import TOOL_S, TURNS, CausalityTree, SavedTree, TreeConfig, restore, save
from libra.core.signal import Signal
from libra.errors import ConfigError, CoreError

LARGE = Signal("search", "large", "ok")
SMALL = Signal("search", "small", "ok")
ERROR = Signal("search", "small", "error")
LETTER = TreeConfig(decay=1.0)


def learn(tree, prompt, total, way=(), version=0, family="", traj=10**6):
    """`way`: (signal, tokens produced by then); every turn counts one, every call takes half a second."""
    tree.start(traj, prompt, family)
    for i, (signal, produced) in enumerate(way, 1):
        tree.advance(traj, signal, produced, i, i / 2)
    tree.finish(traj, total, len(way) + 1, len(way) / 2, version)


def at(tree, prompt, way=(), family="", traj=1):
    """The id of a trajectory that stands at the end of `way`."""
    tree.start(traj, prompt, family)
    for i, (signal, produced) in enumerate(way, 1):
        tree.advance(traj, signal, produced, i, i / 2)
    return traj


def test_nodes_learn_what_was_still_to_come():  # case 6
    tree = CausalityTree(LETTER)
    learn(tree, 0, 1_000, [(LARGE, 120), (SMALL, 700)])
    traj = at(tree, 0)
    assert tree.paper(traj).mean == 1_000
    assert tree.predict(traj, TURNS).mean == pytest.approx(3)
    assert tree.predict(traj, TOOL_S).mean == pytest.approx(1.0)
    tree.advance(traj, LARGE, 120, 1, 0.5)
    assert tree.paper(traj).mean == 880
    tree.advance(traj, SMALL, 700, 2, 1.0)
    known = tree.paper(traj)
    assert (known.mean, known.p90, known.visits, known.source, known.depth) == (300, 300, 1, "prompt", 2)
    assert tree.predict(traj, TURNS).mean == pytest.approx(1)
    assert tree.predict(traj, TOOL_S).mean == pytest.approx(0)


def test_a_trajectory_without_tools_teaches_both_roots():  # case 7
    tree = CausalityTree(LETTER)
    learn(tree, 0, 1_234)
    assert tree.paper(at(tree, 0, traj=1)).source == "prompt"
    stranger = tree.paper(at(tree, 99, traj=2))
    assert (stranger.mean, stranger.source, stranger.depth) == (1_234, "global", 0)


def test_empty_tree_answers_with_the_prior_and_says_so():  # case 1
    tree = CausalityTree()
    traj = at(tree, 0)
    assert tree.paper(traj) is None
    assert tree.paper_bins(traj, (5_000,)) is None
    residual = tree.predict(traj)
    assert (residual.mean, residual.evidence, residual.source) == (1_000, 0.0, "prior")
    assert sum(tree.slices(traj, k=4)) / 4 == pytest.approx(1_000)


def test_paper_lookup_prefers_the_own_prompt_then_all():  # cases 2 and 3
    tree = CausalityTree(LETTER)
    learn(tree, 7, 30_100, [(LARGE, 100)])
    learn(tree, 7, 3_100, [(SMALL, 100)])
    assert tree.paper(at(tree, 7, [(LARGE, 500)], traj=1)).mean == 30_000
    assert tree.paper(at(tree, 8, [(SMALL, 500)], traj=2)).mean == 3_000
    stray = tree.paper(at(tree, 8, [(SMALL, 500), (ERROR, 600)], traj=3))
    assert (stray.mean, stray.depth) == (3_000, 1)
    learn(tree, 8, 50)
    assert tree.paper(at(tree, 8, [(SMALL, 500)], traj=4)).mean == 50  # a known prompt wins, however little it says


@pytest.mark.parametrize(
    ("residuals", "mean", "p90"),  # case 4
    [([2_889] * 8 + [2_888, 4_000], 3_000, 2_889), ([2_750] * 8 + [4_000, 4_000], 3_000, 4_000),
     ([1_750] * 8 + [8_000, 8_000], 3_000, 8_000), ([1_000] * 3 + [15_000], 4_500, 15_000)],
)  # fmt: skip
def test_paper_mean_and_p90_are_exact(residuals, mean, p90):
    tree = CausalityTree(LETTER)
    for r in residuals:
        learn(tree, 0, r)
    known = tree.paper(at(tree, 0))
    assert (known.mean, known.p90) == (mean, p90)


def test_paper_bins_are_exact_and_inclusive():  # cases 5, 8 and 9
    tree = CausalityTree(LETTER)
    for r in (1_000, 1_000, 1_000, 15_000):
        learn(tree, 0, r)
    assert tree.paper_bins(at(tree, 0), (5_000,)) == (0.75, 0.25)
    ladder = CausalityTree(LETTER)
    for r in (1_000, 1_001, 6_000, 10_000):
        learn(ladder, 0, r)
    assert ladder.paper_bins(at(ladder, 0), (1_000, 3_000, 6_000)) == (0.25, 0.25, 0.25, 0.25)


def test_one_visit_borrows_from_the_crowd():
    """A known prompt with one visit must not beat a well-populated global node."""
    tree = CausalityTree(LETTER)
    for i in range(1_000):
        learn(tree, i, 1_000)
    learn(tree, 5_000, 20_000)
    tree.abandon(at(tree, 5_000))
    expected = 1 / 5 * 20_000 + 4 / 5 * 1_019  # one visit against k = 4
    assert tree.predict(at(tree, 5_000)).mean == pytest.approx(expected, rel=0.01)


def test_a_node_far_behind_says_less():
    tree = CausalityTree(TreeConfig(decay=1.0, max_depth=1))
    for _ in range(8):
        learn(tree, 0, 10_000)
    for i in range(200):
        learn(tree, 100 + i, 1_000)
    near = tree.predict(at(tree, 0, traj=1)).mean
    far = tree.predict(at(tree, 0, [(LARGE, 0), (SMALL, 0), (SMALL, 0)], traj=2)).mean
    assert 1_000 < far < near


def test_survivors_only():
    tree = CausalityTree(LETTER)
    for total in (100, 200, 1_000, 3_000):
        learn(tree, 0, total)
    traj = at(tree, 0)
    assert tree.predict(traj, since=0).mean == pytest.approx(1_075)
    residual = tree.predict(traj, since=500)
    assert (residual.mean, residual.p50, residual.p90) == pytest.approx((1_500, 500, 2_500))
    assert tree.slices(traj, since=500, k=2) == pytest.approx((500, 2_500))
    beyond_all = tree.predict(traj, since=5_000)
    assert (beyond_all.source, beyond_all.evidence) == ("prior", 0.0)


def test_mean_of_slices_is_the_mean():
    tree = CausalityTree(LETTER)
    for total in (10, 700, 900, 2_000, 2_500, 9_000):
        learn(tree, 0, total, family="f")
    for total in (5, 50, 500):
        learn(tree, 1, total, family="f")
    traj = at(tree, 1, family="f")
    slices = tree.slices(traj, k=8)
    assert sum(slices) / 8 == pytest.approx(tree.predict(traj).mean)
    assert list(slices) == sorted(slices)


def test_old_versions_fade():
    tree = CausalityTree(TreeConfig(decay=0.5))
    for _ in range(4):
        learn(tree, 0, 1_000, version=0)
    before = tree.predict(at(tree, 0, traj=1)).evidence
    learn(tree, 0, 9_000, version=4)
    residual = tree.predict(at(tree, 0, traj=2))
    assert residual.mean == pytest.approx((4 / 16 * 1_000 + 9_000) / (4 / 16 + 1))
    assert residual.evidence == pytest.approx(1.25)
    assert before == 4


def test_fading_survives_any_number_of_versions():
    tree = CausalityTree(TreeConfig(decay=0.5))
    for _ in range(40):  # enough for bins
        learn(tree, 0, 1_000, version=0)
    for version in (39, 41, 10**6, 10**6 - 1_500):
        learn(tree, 0, 9_000, version=version)
    assert tree.predict(at(tree, 0)).mean == pytest.approx(9_000, rel=0.001)
    learn(tree, 1, 500, version=3)  # an old straggler makes a new node
    late = tree.predict(at(tree, 1, traj=2))
    assert (late.source, tree.paper(2).mean) == ("global", 500)


def test_a_sibling_that_ends_is_evidence_at_once():
    tree = CausalityTree(LETTER)
    traj = at(tree, 0, [(LARGE, 10)])
    assert tree.predict(traj).source == "prior"
    learn(tree, 0, 510, [(LARGE, 10)])
    assert tree.predict(traj).mean == pytest.approx(500)
    assert tree.paper(traj).depth == 1


def test_the_family_speaks_before_all():
    tree = CausalityTree(LETTER)
    for i in range(50):
        learn(tree, i, 10_000, family="repair")
        learn(tree, 100 + i, 100, family="math")
    assert tree.predict(at(tree, 999, family="math", traj=1)).mean < 1_000
    assert tree.predict(at(tree, 999, family="new", traj=2)).mean == pytest.approx(5_050, rel=0.05)


def test_abandoned_trajectories_teach_nothing():
    tree = CausalityTree()
    tree.abandon(at(tree, 0, [(LARGE, 10)]))
    assert not tree.nodes
    assert not tree.walks


@pytest.mark.parametrize(
    ("act", "message"),
    [(lambda t: t.start(1, 0), "started twice"), (lambda t: t.advance(2, LARGE, 1, 1, 0), "not running"),
     (lambda t: t.advance(1, LARGE, 5, 1, 0), "tokens = 5, expected a finite total of at least 10"),
     (lambda t: t.finish(1, float("nan"), 2, 1, 0), "tokens = nan"),
     (lambda t: t.finish(1, 20, 2, float("inf"), 0), "tool_s = inf"), (lambda t: t.predict(3), "not running")],
)  # fmt: skip
def test_contradictions_are_errors(act, message):
    tree = CausalityTree()
    at(tree, 0, [(LARGE, 10)])
    with pytest.raises(CoreError, match=message):
        act(tree)


def test_bad_settings_are_named_all_at_once():
    with pytest.raises(ConfigError) as caught:
        TreeConfig(decay=0.0, pseudo_count=-1.0, max_nodes=3, max_depth=0, prior=(0.0, 1.0, 1.0))
    assert len(caught.value.problems) == 5


def test_an_unknown_format_is_refused_by_name():
    saved = msgspec.structs.replace(save(CausalityTree()), format=99)
    with pytest.raises(CoreError, match="format 99"):
        restore(msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=SavedTree))
