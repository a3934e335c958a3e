"""Import of SWE-agent recordings and of Mooncake traces, and export to the latter."""

import json
from itertools import pairwise

import pytest

from libra.errors import ConfigError
from libra.workload import SPECS, Workload
from libra.workload.mooncake import from_trajectories, read_mooncake, to_trajectories, write_mooncake
from libra.workload.swe import import_swe


def swe_turn(i, given, out, tool_s=0.2, **more):
    return {"i": i, "in": given, "out": out, "prefill_s": 0.1, "decode_s": 1.0, "llm_s": 1.1, "tool_s": tool_s, **more}


NULL = swe_turn(3, None, None, None)


def swe_file(tmp_path, *runs):
    path = tmp_path / "swe.jsonl"
    rows = [{"instance": name, "concurrency": 4, "exit": None, "turns": turns} for name, turns in runs]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_observations_are_what_the_context_grew_by(tmp_path):
    first = [swe_turn(1, 400, 50, cmd="edit", err=True), swe_turn(2, 1_450, 20, cmd=""), swe_turn(3, 1_500, 7)]
    done = import_swe(swe_file(tmp_path, ("a", first), ("b", [swe_turn(1, 10, 5)]), ("a", [swe_turn(1, 11, 5)])))
    a = done.trajectories[0]
    assert (a.group, a.sample, a.family, a.prompt_tokens) == ("a", 0, "repair", 400)
    assert [(t.sampled_tokens, t.observed_tokens, t.tool, t.status) for t in a.turns] == [
        (50, 1_000, "edit", "ok"),
        (20, 30, "shell", "ok"),
        (7, 0, "shell", "ok"),
    ]
    assert [(t.group, t.sample) for t in done.trajectories] == [("a", 0), ("b", 0), ("a", 1)]
    assert (done.turns_dropped, done.runs_with_nulls, done.runs_with_cuts) == (0, 0, 0)


def test_nulls_are_left_out_and_counted(tmp_path):
    ok, later = swe_turn(1, 100, 10), swe_turn(4, 300, 10)
    done = import_swe(swe_file(tmp_path, ("end", [ok, NULL]), ("middle", [ok, NULL, later]), ("all", [NULL])))
    assert [(t.group, len(t.turns)) for t in done.trajectories] == [("end", 1)]
    assert (done.turns_dropped, done.runs_with_nulls) == (1, 2)


def test_a_context_that_shrinks_is_left_out_and_counted(tmp_path):
    cut = import_swe(swe_file(tmp_path, ("cut", [swe_turn(1, 500, 50), swe_turn(2, 400, 5)])))
    assert (cut.trajectories, cut.runs_with_cuts) == ([], 1)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (swe_turn(1, -5, 5), "in"),
        (swe_turn(1, 5, 0), "out"),
        (swe_turn(1, 5, 5, float("nan")), "tool_s"),
        ({"out": 1}, "in"),
    ],
)
def test_bad_numbers_of_a_recording_are_named(tmp_path, bad, field):
    path = swe_file(tmp_path, ("fine", [swe_turn(1, 5, 5)]), ("bad", [bad]))
    with pytest.raises(ConfigError, match=rf"swe\.jsonl: 1 problem\n  - line 2, turns\[0\]\.{field}: "):
        import_swe(path)


PUBLISHED = [
    {"timestamp": 0, "input_length": 2290, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]},
    {"timestamp": 3000, "input_length": 1024, "output_length": 3, "hash_ids": [0, 42]},
    {"timestamp": 3000.5, "input_length": 600, "output_length": 3, "hash_ids": [7], "session_id": "x"},
]


def mooncake_file(tmp_path, *rows):
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_mooncake_rows_become_single_turns_and_survive_a_round_trip(tmp_path):
    requests = read_mooncake(mooncake_file(tmp_path, *PUBLISHED))
    trajectories = to_trajectories(requests)
    assert [(t.prompt_tokens, t.sampled_tokens, t.arrival_s) for t in trajectories] == [
        (2_290, 316, 0), (1_024, 3, 3), (600, 3, 3.0005)]  # fmt: skip
    write_mooncake(tmp_path / "again.jsonl", requests)
    assert read_mooncake(tmp_path / "again.jsonl") == requests


@pytest.mark.parametrize(
    ("change", "message"),
    [({"timestamp": -1}, "timestamp: got -1"), ({"input_length": 0}, "input_length: got 0"),
     ({"output_length": None}, "output_length: got null"), ({"hash_ids": [-1]}, r"hash_ids\[0\]: got -1"),
     ({"hash_ids": [1, 2]}, "hash_ids: got 2 ids, expected 5 blocks of 512 tokens for input_length 2290")],
)  # fmt: skip
def test_bad_mooncake_rows_are_named(tmp_path, change, message):
    path = mooncake_file(tmp_path, PUBLISHED[1], {**PUBLISHED[0], **change})
    with pytest.raises(ConfigError, match=f"line 2, {message}"):
        read_mooncake(path)


def test_export_shares_blocks_where_prefixes_are_shared(tmp_path):
    workload = Workload(SPECS["repair"], 0)
    samples = [workload.trajectory(1, 0), workload.trajectory(1, 1), workload.trajectory(2, 0)]
    requests = from_trajectories(samples, decode_tokens_per_s=40.0)
    write_mooncake(tmp_path / "out.jsonl", requests)
    assert read_mooncake(tmp_path / "out.jsonl") == requests
    assert len(requests) == sum(len(t.turns) for t in samples)
    assert [r.timestamp for r in requests] == sorted(r.timestamp for r in requests)
    opening = [from_trajectories([t], 40.0) for t in samples]
    for trajectory, turns in zip(samples, opening, strict=True):
        for before, after in pairwise(turns):
            full = before.input_length // 512
            assert after.hash_ids[:full] == before.hash_ids[:full]  # a turn keeps its own history's blocks
        assert turns[0].input_length == trajectory.prompt_tokens
    starts = [r for r in requests if r.timestamp == 0]
    assert starts[0].hash_ids == starts[1].hash_ids  # samples of one prompt
    first, other = set(starts[0].hash_ids), set(starts[2].hash_ids)
    assert not first & other
