"""How much of a prefix engines keep: learnt from their counters, and what placement makes of it."""

import pytest

from libra.config.schema import BucketConfig, Config, RolloutConfig, RunConfig, SchedulerConfig
from libra.core.cost.reuse import PRIOR_TOKENS, Reuse
from tests.core.virtual_shell import VirtualShell


def told(reuse: Reuse, share: float, reports: int = 400, tokens: int = 1000) -> Reuse:
    """An engine that keeps `share` of what it is hoped to keep."""
    counter = reuse.counters.get(0, 0)
    for _ in range(reports):
        reuse.hope(0, tokens)
        counter += int(share * tokens)
        reuse.report(0, counter)
    return reuse


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_comes_to_what_engines_keep(share: float) -> None:
    reuse = told(Reuse(), share)
    whole = 1000 / (1 - 0.95)
    assert reuse.share == pytest.approx((share * whole + PRIOR_TOKENS) / (whole + PRIOR_TOKENS), rel=1e-3)


def test_nothing_is_believed_before_anything_was_hoped_for() -> None:
    reuse = Reuse()
    for _ in range(100):
        reuse.report(0, 0)
    assert reuse.share == 1.0


def test_prompts_in_common_do_not_make_it_more_than_one() -> None:
    assert told(Reuse(), 3.0).share == 1.0


def test_an_engine_that_begins_anew_does_not_count_as_one_that_lost_everything() -> None:
    """Its counter goes back; what it says then is all of its own."""
    reuse = told(Reuse(), 1.0)
    reuse.hope(0, 1000)
    reuse.report(0, 1000)
    assert reuse.share == 1.0
    assert reuse.reused == pytest.approx(reuse.hoped)


def test_it_recovers() -> None:
    assert told(told(Reuse(), 0.0), 1.0).share > 0.99


CONFIG = Config(
    run=RunConfig(steps=12),
    bucket=(BucketConfig(name="a", engines=3, max_batch=6, kv_tokens=900),),
    rollout=RolloutConfig(groups_per_batch=4, samples_per_group=4),
    scheduler=SchedulerConfig(policy="causal", max_wait_s=1.0),
)


def test_a_run_whose_engines_keep_nothing_learns_so() -> None:
    forgetful = VirtualShell(CONFIG, seed=1, kept=0.0).run()
    faithful = VirtualShell(CONFIG, seed=1, kept=1.0).run()
    silent = VirtualShell(CONFIG, seed=1).run()
    assert forgetful.returned > 50, "turns came back to their engines, so there was something to be learnt"
    assert forgetful.core.placement.shapes[0].reuse.share < faithful.core.placement.shapes[0].reuse.share
    assert faithful.core.placement.shapes[0].reuse.share > 0.9
    assert silent.core.placement.shapes[0].reuse.share == 1.0
