"""The published figures within the bounds that the design asks for. `tests/bench/calibration.py` prints the same anchors."""

from pathlib import Path

import pytest

from libra.config.parts import load_hardware, load_model
from libra.core.cost.calibration import Anchor, anchors, crossover_ratios, spread_lengths

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
A800 = load_hardware(CONFIGS / "hardware/a800-sxm4-80gb.toml")
QWEN14 = load_model(CONFIGS / "model/qwen3-14b.toml")
ANCHORS = list(anchors(A800, QWEN14))


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda a: a.name)
def test_a_published_figure_is_met_within_its_bounds(anchor: Anchor) -> None:
    assert anchor.low <= anchor.got <= anchor.high, f"{anchor.name}: got {anchor.got}, published {anchor.target}"


def test_the_bounds_are_those_of_the_design() -> None:
    bounds = {a.name: (a.low / a.target, a.high / a.target) for a in ANCHORS}
    assert bounds["crossover short 8xTP1 over 1xTP8"] == pytest.approx((0.75, 1.25))
    assert bounds["crossover long 1xTP8 over 8xTP1"] == pytest.approx((0.75, 1.25))
    assert bounds["training 1K to 32K"] == pytest.approx((0.9, 1.1))
    assert bounds["decode step TP8"] == pytest.approx((0.99, 1.01))
    grown = [a for a in ANCHORS if a.name.startswith("rollout")]
    assert (min(a.low for a in grown), max(a.high for a in grown)) == (60.0, 150.0)


def test_lengths_are_spread_over_the_whole_range_without_trend() -> None:
    lengths = spread_lengths(0, 1000, 100)
    assert max(lengths) > 980
    assert min(lengths) < 20
    assert sum(lengths[:50]) == pytest.approx(sum(lengths[50:]), rel=0.05)


@pytest.mark.parametrize("descending", [False, True])
def test_the_sign_of_the_crossover_does_not_hang_on_the_order_of_arrival(descending: bool) -> None:
    short, long = crossover_ratios(A800, QWEN14, lambda lengths: sorted(lengths, reverse=descending))
    assert short > 1.5
    assert long > 1.5
