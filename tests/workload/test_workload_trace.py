"""The trace format: what is written is read back; what is wrong is named by file, line and field."""

import json

import pytest

from libra.errors import ConfigError
from libra.workload import SPECS, Workload, read_trace, write_trace
from libra.workload.trace import parse_trace, require_room

GOOD = {
    "group": "g", "sample": 0, "family": "repair", "prompt_tokens": 100,
    "turns": [
        {"sampled_tokens": 7, "tool": "edit", "tool_s": 0.1, "status": "ok", "observed_tokens": 50},
        {"sampled_tokens": 9, "tool": "", "tool_s": 0.0, "status": "ok", "observed_tokens": 0},
    ],
}  # fmt: skip


def line(**changes):
    return json.dumps({**GOOD, **changes}).encode()


def turn(**changes):
    return [{**GOOD["turns"][0], **changes}, GOOD["turns"][1]]


def problems(*lines):
    with pytest.raises(ConfigError) as caught:
        parse_trace(lines, "my.jsonl")
    assert caught.value.source == "my.jsonl"
    return caught.value.problems


def test_round_trip(tmp_path):
    made = [Workload(SPECS[k], 3).trajectory(p, s) for k in SPECS for p in range(3) for s in range(2)]
    write_trace(tmp_path / "t.jsonl", made)
    assert read_trace(tmp_path / "t.jsonl") == made


def test_context_is_what_must_fit():
    (trajectory,) = parse_trace([line(turns=[GOOD["turns"][0], *turn(sampled_tokens=9)[:1]])], "x")
    assert trajectory.context_tokens == 100 + 7 + 50 + 9
    assert trajectory.sampled_tokens == 16


@pytest.mark.parametrize(
    ("bad", "field", "got"),
    [
        (line(prompt_tokens=-1), "prompt_tokens", "got -1, expected `int` >= 1"),
        (line(prompt_tokens=None), "prompt_tokens", "got null"),
        (line(turns=turn(sampled_tokens=0)), "turns[0].sampled_tokens", "got 0, expected `int` >= 1"),
        (line(turns=turn(observed_tokens=-5)), "turns[0].observed_tokens", "got -5"),
        (line(turns=turn(observed_tokens=1.5)), "turns[0].observed_tokens", "got 1.5"),
        (line(turns=turn(tool_s=-0.1)), "turns[0].tool_s", "got -0.1"),
        (line(turns=turn(tool_s=float("nan"))), "turns[0].tool_s", "got nan, expected a finite number"),
        (line(turns=turn(tool_s=float("inf"))), "turns[0].tool_s", "got inf"),
        (line(turns=turn(status="fine")), "turns[0].status", 'got "fine"'),
        (line(turns=[GOOD["turns"][1]] * 2), "turns[0].tool", 'got "", expected a name'),
        (line(turns=[]), "turns", "got []"),
        (line(surprise=1), "", "unknown field `surprise`"),
        (line(turns=[{"sampled_tokens": 5}]), "turns[0].tool", "missing"),
        (line().replace(b'"sample": 0, ', b""), "sample", "missing"),
        (line()[:-5], "", "not JSON"),
    ],
)
def test_faults_name_line_and_field(bad, field, got):
    (problem,) = problems(line(sample=1), b"", bad)
    assert problem.startswith(f"line 3, {field}: " if field else "line 3: ")
    assert got in problem


def test_all_faults_come_at_once_up_to_a_limit():
    assert len(problems(line(prompt_tokens=0), line(sample=1), line(sample=-1))) == 2
    assert problems(*[line(prompt_tokens=0)] * 50)[-1] == "reading stopped after 20 faults"


def test_a_sample_may_come_once():
    assert problems(line(), line()) == ["line 2, sample: group 'g' has its sample 0 on line 1"]


def test_files_that_hold_nothing_are_refused(tmp_path):
    assert "empty" in problems(b"", b"  ")[0]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_what_is_longer_than_any_engine_is_named():
    trajectories = parse_trace([line(), line(sample=1, prompt_tokens=9_000)], "x")
    require_room(trajectories, 9_066, "x")
    with pytest.raises(ConfigError, match=r"1 of 2 .* any engine's 9065 tokens.*group 'g' sample 1, needs 9066"):
        require_room(trajectories, 9_065, "x")
