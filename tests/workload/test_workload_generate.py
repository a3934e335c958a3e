"""Generated workloads against the statistics that they were fitted to."""

from itertools import pairwise
from statistics import NormalDist, fmean, quantiles, variance

import msgspec
import pytest

from libra.core.signal import SizeClasses
from libra.errors import ConfigError
from libra.workload import SPECS, Workload, WorkloadSpec
from libra.workload.law import Curve, Law
from libra.workload.spec import drifting, null

PROMPTS, SAMPLES = 150, 4
PAPER = {  # the published figures, all of the 133 runs: (percentile, value, tolerance)
    "turns": ((10, 25, 0.1), (50, 38, 0.1), (90, 63, 0.1), (99, 138, 0.2)),
    "sampled": ((50, 77, 0.1), (90, 459, 0.1), (99, 874, 0.1)),
    "observed": ((50, 441, 0.1), (90, 1_929, 0.1), (99, 5_707, 0.15)),
    "context": ((50, 38_000, 0.1), (90, 64_000, 0.2)),
    "tool_s": ((50, 0.16, 0.1), (99, 2.6, 0.2)),
}
HALF = {  # the half of those runs that is public, measured once: mean turns, sampled and observed tokens a turn
    "turns": 46.0, "sampled": 170.4, "observed": 787.6, "total": 7_843.0,
}  # fmt: skip


def draw(spec, prompts=PROMPTS, samples=SAMPLES, seed=5, step=0):
    workload = Workload(spec, seed)
    return [workload.trajectory(p, s, step) for p in range(prompts) for s in range(samples)]


@pytest.fixture(scope="module")
def repair():
    runs = draw(SPECS["repair"])
    calls = [t for r in runs for t in r.turns if t.tool]
    return {
        "turns": [len(r.turns) for r in runs],
        "sampled": [t.sampled_tokens for r in runs for t in r.turns],
        "observed": [t.observed_tokens for t in calls],
        "context": [r.context_tokens for r in runs],
        "tool_s": [t.tool_s for t in calls if t.tool_s < 60],
        "slow_s": [t.tool_s for t in calls if t.tool_s >= 60],
        "total": [r.sampled_tokens for r in runs],
    }


@pytest.mark.parametrize("what", list(PAPER))
def test_repair_has_the_published_percentiles(repair, what):
    cuts = quantiles(repair[what], n=100)
    for percent, value, tolerance in PAPER[what]:
        assert cuts[percent - 1] == pytest.approx(value, rel=tolerance), (what, percent)


@pytest.mark.parametrize("what", list(HALF))
def test_repair_has_the_means_of_the_public_half(repair, what):
    assert fmean(repair[what]) == pytest.approx(HALF[what], rel=0.15)


def test_slow_commands_are_few_and_take_most_of_the_tool_time(repair):
    slow, fast = repair["slow_s"], repair["tool_s"]
    assert 0.03 < len(slow) / (len(slow) + len(fast)) < 0.05
    assert 60 <= min(slow) <= max(slow) <= 600
    assert sum(slow) / (sum(slow) + sum(fast)) > 0.9
    assert max(fast) <= 25


def test_search_takes_two_to_ten_turns_and_tools_of_half_a_second():
    runs = draw(SPECS["search"])
    turns = [len(r.turns) for r in runs]
    assert (min(turns), max(turns)) == (2, 10)
    latency = quantiles([t.tool_s for r in runs for t in r.turns if t.tool], n=100)
    assert latency[49] == pytest.approx(0.4, rel=0.1)


@pytest.mark.parametrize("kind", ["search", "math"])
def test_early_means_and_tails(kind):
    totals = sorted(r.sampled_tokens for r in draw(SPECS[kind], prompts=600))
    assert fmean(totals) == pytest.approx(2_500, rel=0.2)
    assert sum(totals[-len(totals) // 10 :]) / sum(totals) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("kind", ["search", "math"])
def test_drift_multiplies_length_up_to_the_cap(kind):
    spec = drifting(SPECS[kind], factor=4.6, steps=50)
    early, late, later = (fmean(r.sampled_tokens for r in draw(spec, 800, 1, step=s)) for s in (0, 50, 500))
    assert 3.2 < late / early < 4.6
    assert later == pytest.approx(late, rel=0.25)
    assert max(r.sampled_tokens for r in draw(spec, step=50)) == spec.max_sampled_tokens


@pytest.mark.parametrize("kind", list(SPECS))
def test_limits_hold(kind):
    spec = msgspec.structs.replace(SPECS[kind], max_sampled_tokens=3_000, max_context_tokens=12_000)
    runs = draw(spec)
    assert max(r.sampled_tokens for r in runs) <= 3_000
    assert max(r.context_tokens for r in runs) <= 12_000


@pytest.mark.parametrize("kind", list(SPECS))
def test_the_same_seed_gives_the_same_in_any_order(kind):
    a, b = Workload(SPECS[kind], 1), Workload(SPECS[kind], 1)
    keys = [(p, s, t) for p in range(3) for s in range(3) for t in range(2)]
    assert [a.trajectory(*k) for k in keys] == [b.trajectory(*k) for k in reversed(keys)][::-1]
    assert a.trajectory(0, 0) != a.trajectory(0, 1)
    assert a.trajectory(0, 0) != a.trajectory(0, 0, step=1)
    assert a.trajectory(0, 0) != Workload(SPECS[kind], 2).trajectory(0, 0)


def test_a_known_trajectory_stays_what_it_is():
    """Reports of other days must stay comparable: whoever changes the drawing changes this on purpose."""
    first = Workload(SPECS["search"], 0).trajectory(0, 0)
    assert (first.prompt_tokens, [t.sampled_tokens for t in first.turns]) == KNOWN


KNOWN = (146, [117, 107])


@pytest.mark.parametrize("kind", list(SPECS))
def test_samples_of_a_prompt_are_alike(kind):
    workload = Workload(SPECS[kind], 0)
    groups = [[float(workload.trajectory(p, s).sampled_tokens) ** 0.25 for s in range(8)] for p in range(200)]
    within = fmean(variance(g) for g in groups)
    total = variance([v for g in groups for v in g])
    assert 1 - within / total == pytest.approx(SPECS[kind].alike, abs=0.15)


def told_by_first_return(spec):
    """Mean remaining tokens after a large or failed first observation, over the mean after another."""
    loud, quiet = [], []
    for r in draw(spec, prompts=1_500, samples=1):
        if len(r.turns) > 1:
            first = r.turns[0]
            big = SizeClasses(small_tokens=700).of(first.observed_tokens) != "small" or first.status == "error"
            (loud if big else quiet).append(r.sampled_tokens - first.sampled_tokens)
    return fmean(loud) / fmean(quiet)


def test_informative_signals_tell_and_null_ones_do_not():
    spec = SPECS["search"]
    assert told_by_first_return(spec) > 2
    assert told_by_first_return(null(spec)) == pytest.approx(1, abs=0.12)


def test_laws_pass_through_their_points_and_go_on_beyond():
    curve = Curve(Law(((0.1, 25), (0.5, 38), (0.9, 63)), least=1, most=500))
    score = NormalDist().inv_cdf
    assert [curve.at(score(p)) for p in (0.1, 0.5, 0.9)] == pytest.approx([25, 38, 63])
    values = [curve.at(z / 10) for z in range(-80, 81)]
    assert all(a <= b for a, b in pairwise(values))
    assert (curve.at(-60), curve.at(60)) == (1, 500)


@pytest.mark.parametrize(
    "points",
    [
        ((0.5, 1.0),),
        ((0.5, 2.0), (0.9, 1.0)),
        ((0.5, 1.0), (0.5, 2.0)),
        ((0.0, 1.0), (0.5, 2.0)),
        ((0.1, 0.0), (0.5, 1.0)),
    ],
)
def test_impossible_laws_are_refused(points):
    with pytest.raises(ConfigError, match="expected at least two"):
        Law(points, least=0)


def test_contradicting_specs_are_refused():
    replace = msgspec.structs.replace
    for change in ({"slow_least_s": 700.0}, {"max_context_tokens": 100}, {"turns": Law(((0.1, 1), (0.5, 2)), least=0)}):
        with pytest.raises(ConfigError, match="workload search: 1 problem"):
            replace(SPECS["search"], **change)


def test_a_spec_survives_a_file():
    text = msgspec.json.encode(SPECS["repair"])
    assert msgspec.json.decode(text, type=WorkloadSpec) == SPECS["repair"]
