"""The scheduler's reference cases: right answers that were written down before the code, tried on the real policies."""

import pytest

from libra.config.schema import BucketConfig
from libra.core.causality import CausalityTree, TreeConfig
from libra.core.scheduler.cmlfq import Cmlfq
from libra.core.scheduler.expected_cost import ExpectedCost
from libra.core.scheduler.load import EngineLoad
from libra.core.scheduler.policy import Decision, Offer, Policy, TurnView, bucket_target
from libra.core.scheduler.seats import Seats
from libra.core.scheduler.shape import Shape
from libra.core.signal import Size, signal_of

SHORT, LONG = 0, 1


class TableCosts:
    """Decode seconds by residual tokens, whatever the batch; a prefill of anything, so a move, takes `move_s`."""

    def __init__(self, tp: int, decode_s: dict[int, float] | None = None, move_s: float = 0.0) -> None:
        self.tp = tp
        self.table = decode_s or {}
        self.move_s = move_s

    def step_s(self, batch: int, kv_tokens: float) -> float:
        return 1.0 / self.tp

    def decode_s(self, tokens: int, batch: int, kv_tokens: float) -> float:
        return self.table.get(tokens, tokens / self.tp)

    def prefill_s(self, new_tokens: int, cached_tokens: int = 0) -> float:
        return self.move_s


def shapes(*costs: TableCosts) -> list[Shape]:
    return [Shape(i, BucketConfig(name=f"b{i}", tp=c.tp), c) for i, c in enumerate(costs)]


def engines(n: int = 2) -> list[EngineLoad]:
    """One engine a bucket, bucket i of id i."""
    return [EngineLoad(i, i, 64, 100_000, version=0, up=True) for i in range(n)]


def ask(
    policy: Policy, last: EngineLoad | None, offered: list[EngineLoad], traj: int = 0, context: int = 1000
) -> Decision:
    forecast = policy.forecast(traj, 0.0)
    turn = TurnView(traj, context, 512, context + 512, last, 0, forecast, True)
    return policy.choose(turn, Offer(offered, [], last in offered))


def taught(residuals: list[float], size: Size = "large") -> CausalityTree:
    """A tree whose node (search, `size`, ok) has seen these residuals, with trajectory 0 standing at that node."""
    tree = CausalityTree(TreeConfig(decay=1.0))
    signal = signal_of("search", {"small": 100, "medium": 501, "large": 6000}[size], "ok")
    for i, residual in enumerate(residuals, start=1):
        tree.start(i, "other prompt")
        tree.advance(i, signal, 100, 1, 0.1)
        tree.finish(i, 100 + residual, 2, 0.1, 0)
    tree.start(0, "this prompt")
    tree.advance(0, signal, 100, 1, 0.1)
    return tree


def cmlfq(tree: CausalityTree) -> Cmlfq:
    return Cmlfq(shapes(TableCosts(1), TableCosts(2)), tree, (5_000, 50_000))


# --- cmlfq


def test_case_1_an_empty_tree_starts_a_request_in_the_short_bucket() -> None:
    tree = CausalityTree()
    tree.start(0, "p")
    assert ask(cmlfq(tree), None, engines(), context=1000).engine == SHORT


def test_case_2_evidence_of_a_long_residual_moves_to_the_long_bucket() -> None:
    short, long = engines()
    assert ask(cmlfq(taught([30_000])), short, [short, long]).engine == LONG


def test_case_3_evidence_of_a_short_residual_stays() -> None:
    short, long = engines()
    assert ask(cmlfq(taught([3_000], "small")), short, [short, long]).engine == SHORT


@pytest.mark.parametrize(("residuals", "disagree"), [([2750] * 8 + [4000] * 2, False), ([1750] * 8 + [8000] * 2, True)])
def test_case_4_mean_and_p90_must_agree(residuals: list[float], disagree: bool) -> None:
    tree = taught(residuals)
    known = tree.paper(0)
    assert known is not None
    assert (known.mean, known.p90) == (pytest.approx(3000), residuals[-1])
    short, long = engines()
    decision = ask(cmlfq(tree), short, [short, long])
    assert decision.engine == SHORT
    assert ("mean and P90 disagree" in decision.reason) == disagree
    if disagree:
        assert ask(cmlfq(tree), long, [short, long]).engine == LONG, "undecided: stay, wherever it is"
    else:
        assert ask(cmlfq(tree), long, [short, long]).engine == SHORT


def test_case_5_thresholds_are_inclusive() -> None:
    policy = Cmlfq(shapes(*(TableCosts(tp) for tp in (1, 2, 4, 8))), CausalityTree(), (1000, 3000, 6000))
    names = "s", "m", "l", "xl"
    got = {n: names[policy.class_of(n, policy.thresholds)] for n in (1000, 1001, 6000, 10000)}
    assert got == {1000: "s", 1001: "m", 6000: "l", 10000: "xl"}


def test_cmlfq_waits_for_its_bucket_and_spills_only_when_it_may_not() -> None:
    short, long = engines()
    policy = cmlfq(taught([30_000]))
    turn = TurnView(0, 1000, 512, 1512, short, 0, policy.forecast(0, 0.0), True)
    assert policy.choose(turn, Offer([short], [long], True)).wait_for == bucket_target(LONG)
    turn.may_wait = False
    assert policy.choose(turn, Offer([short], [long], True)).engine == SHORT


# --- the tree


def test_case_6_each_return_learns_what_was_still_to_come() -> None:
    tree = CausalityTree(TreeConfig(decay=1.0))
    first, second = signal_of("search", 100, "ok"), signal_of("search", 6000, "error")
    tree.start(1, "p")
    tree.advance(1, first, 120, 1, 0.0)
    tree.advance(1, second, 700, 2, 0.0)
    tree.finish(1, 1000, 3, 0.0, 0)
    tree.start(2, "q")
    known = [tree.paper(2)]
    for signal, produced in ((first, 120), (second, 700)):
        tree.advance(2, signal, produced, 1 if produced == 120 else 2, 0.0)
        known.append(tree.paper(2))
    assert [(k.mean, k.depth) for k in known if k] == [(1000, 0), (880, 1), (300, 2)]


def test_case_7_without_a_tool_return_both_roots_learn_the_total() -> None:
    tree = CausalityTree(TreeConfig(decay=1.0))
    tree.start(1, "p")
    tree.finish(1, 640, 1, 0.0, 0)
    for prompt, source in (("p", "prompt"), ("q", "global")):
        tree.start(2, prompt)
        known = tree.paper(2)
        assert known is not None
        assert (known.mean, known.source) == (640, source)
        tree.abandon(2)


# --- expected cost


def expected_cost(tree: CausalityTree, move_s: float) -> ExpectedCost:
    decode = {1: {1000: 2.0, 15_000: 20.0}, 4: {1000: 4.0, 15_000: 5.0}}
    costs = [TableCosts(tp, decode[tp], move_s) for tp in (1, 4)]
    return ExpectedCost(shapes(*costs), tree, edges=(5_000,), lengths=(1000, 15_000))


def test_case_8_the_least_expected_cost_moves() -> None:
    here, there = engines()
    decision = ask(expected_cost(taught([1000, 1000, 1000, 15_000]), move_s=1.0), here, [here, there])
    assert dict(decision.candidates) == {0: pytest.approx(6.5), 1: pytest.approx(5.25)}
    assert decision.engine == 1


def test_case_9_a_tie_stays() -> None:
    here, there = engines()
    decision = ask(expected_cost(taught([15_000]), move_s=15.0), here, [here, there])
    assert dict(decision.candidates) == {0: pytest.approx(20.0), 1: pytest.approx(20.0)}
    assert decision.engine == 0


def test_case_10_moves_are_transactions() -> None:
    source, target = 0, 1
    seats = Seats()
    seats.reserve(7, source)
    seats.commit(7)
    counts = []
    for act in (lambda: seats.reserve(7, target), lambda: seats.rollback(7), lambda: seats.reserve(7, target),
                lambda: seats.commit(7), lambda: seats.finish(7)):  # fmt: skip
        act()
        counts.append((seats.active[source], seats.active[target]))
    assert counts == [(1, 1), (1, 0), (1, 1), (0, 1), (0, 0)]
