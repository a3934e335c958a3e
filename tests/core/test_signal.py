"""Signals: size classes and where a status comes from (cases 11 and 12)."""

import pytest

from libra.core.signal import LinePrefixes, SizeClasses, ToolExit, signal_of, status_of
from libra.errors import ConfigError


@pytest.mark.parametrize(
    ("tokens", "size"),
    [(0, "small"), (500, "small"), (501, "medium"), (5_000, "medium"), (5_001, "large"), (10**9, "large")],
)
def test_thresholds_are_inclusive(tokens, size):
    assert SizeClasses().of(tokens) == size
    assert signal_of("search", tokens, "ok").size == size


def test_status_comes_from_the_exit_state_only():
    shouts = LinePrefixes(error=("0 errors", "all"), timeout=("all",))
    assert status_of(ToolExit(0), "0 errors found", shouts) == "ok"
    assert status_of(ToolExit(None), "", shouts) == "timeout"
    assert status_of(ToolExit(1), "all fine", shouts) == "error"
    assert status_of(ToolExit(-11), "all fine") == "error"


def test_text_speaks_only_without_an_exit_state_and_when_plugged_in():
    text = "ran\nTraceback (most recent call last):"
    assert status_of(None, text) == "ok"
    assert status_of(None, text, LinePrefixes(error=("Traceback",))) == "error"
    assert status_of(None, "no Traceback here", LinePrefixes(error=("Traceback",))) == "ok"
    assert status_of(None, "deadline passed", LinePrefixes(timeout=("deadline",))) == "timeout"


@pytest.mark.parametrize("bounds", [(500, 500), (-1, 10), (600, 500)])
def test_contradicting_thresholds_are_refused(bounds):
    with pytest.raises(ConfigError, match="small_tokens < medium_tokens"):
        SizeClasses(small_tokens=bounds[0], medium_tokens=bounds[1])
