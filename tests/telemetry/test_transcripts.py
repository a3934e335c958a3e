"""Transcripts: bounded on disk, found by number, read as a person reads them."""

from pathlib import Path

import msgspec
import pytest

from libra.cli.show import head, side_by_side, story
from libra.config.schema import TranscriptsConfig
from libra.config.worlds import CalculatorConfig
from libra.env.registry import environment
from libra.errors import LibraError
from libra.telemetry.transcripts import FILES, Return, Transcript, TranscriptWriter, Turn, find, names

CALCULATOR = environment(CalculatorConfig())


def transcript(traj: int = 5, group: int = 2, sample: int = 1, n: int = 0) -> Transcript:
    parts = ["<question> 43 - 12 <solve>", "<call> 43 - 12 <run>", "<result> 31", "<answer> 31 <end>"]
    ids = [CALCULATOR.encode(part) for part in parts]
    starts = [sum(map(len, ids[:i])) for i in range(4)]
    turns = [
        Turn(starts[1], len(ids[1]), 0, "main", 3, 4, "stop", -0.25),
        Turn(starts[3], len(ids[3]), 1, "wide", 4, 4, "stop", -0.5),
    ]
    returns = [Return(starts[2], len(ids[2]), "calculator", "ok", 0.0123)]
    tokens = [token for part in ids for token in part] + [0] * n
    return Transcript(traj, group, "train", 9, sample, 0, "ended", 1.0, "right", 1.5, 80.0, tokens, turns, returns)


def writer(directory: Path, **config: object) -> TranscriptWriter:
    complaints: list[str] = []
    made = TranscriptWriter(directory / "transcripts", TranscriptsConfig(**config), complaints.append)  # type: ignore[arg-type]
    made.complaints = complaints  # type: ignore[attr-defined]
    return made


def test_a_trajectory_is_read_as_it_was(tmp_path: Path) -> None:
    w = writer(tmp_path)
    for traj in range(10):
        w.write(transcript(traj, group=traj // 4, sample=traj % 4))
    w.close()
    assert find(tmp_path, traj=7) == [transcript(7, 1, 3)]
    assert [t.sample for t in find(tmp_path, group=1)] == [0, 1, 2, 3]
    assert names(tmp_path) == [(traj, traj // 4) for traj in range(10)]
    assert find(tmp_path, traj=99) == []


def test_the_disk_is_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    w = writer(tmp_path, max_bytes=1 << 16)
    for traj in range(3000):
        w.write(transcript(traj))
    w.write(transcript(5000, n=1 << 16))  # larger than a file: left out
    w.close()
    files = list((tmp_path / "transcripts").iterdir())
    assert len(files) <= FILES
    assert (1 << 15) < sum(f.stat().st_size for f in files) <= 1 << 16
    kept = [traj for traj, _ in names(tmp_path)]
    assert kept == list(range(kept[0], 3000))
    assert kept[0] > 0


def test_a_run_that_goes_on_appends_and_the_later_of_one_number_comes_last(tmp_path: Path) -> None:
    for reward in (0.0, 1.0):
        w = writer(tmp_path)
        w.write(msgspec.structs.replace(transcript(3), reward=reward))
        w.close()
    assert [t.reward for t in find(tmp_path, traj=3)] == [0.0, 1.0]


def test_a_last_record_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.write(transcript(1))
    w.write(transcript(2))
    w.close()
    (file,) = (tmp_path / "transcripts").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert names(tmp_path) == [(1, 2)]


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.write(transcript())
    w.close()
    (file,) = (tmp_path / "transcripts").iterdir()
    data = bytearray(file.read_bytes())
    data[5] = 9
    file.write_bytes(data)
    with pytest.raises(LibraError, match="transcript format 9, this code reads format 1"):
        names(tmp_path)


@pytest.mark.parametrize(("keep", "kept"), [("all", 64), ("sample", 4), ("none", 0)])
def test_whole_groups_are_kept_or_none_of_it(tmp_path: Path, keep: str, kept: int) -> None:
    w = writer(tmp_path, keep=keep)
    assert sum(w.wants("train", prompt) for prompt in range(64)) == kept


def test_a_disk_that_refuses_is_told_once_and_costs_nothing_else(tmp_path: Path) -> None:
    w = writer(tmp_path)
    (tmp_path / "transcripts").write_text("in the way")
    for _ in range(3):
        w.write(transcript())
    assert len(w.complaints) == 1  # type: ignore[attr-defined]
    assert "no more transcripts are kept" in w.complaints[0]  # type: ignore[attr-defined]
    assert not w.wants("train", 0)


def test_a_person_reads_turns_returns_reward_versions_and_places() -> None:
    lines = [*head(transcript()), *story(transcript(), CALCULATOR.decode)]
    text = "\n".join(lines)
    assert "trajectory 5: training, group 2, prompt 9, sample 1" in text
    assert "reward 1: right" in text
    assert "policy version 3 to 4; engine 0 (main) > engine 1 (wide)" in text
    assert lines[4] == "prompt    <question> 43 - 12 <solve>"
    assert "> <call> 43 - 12 <run>   [engine 0, v3-4, 5 tokens" in lines[5]
    assert "calculator < <result> 31   [ok, 12.3 ms]" in lines[6]
    assert "> <answer> 31 <end>   [engine 1, v4, 3 tokens" in lines[7]


def test_a_group_stands_side_by_side_as_wide_as_the_terminal() -> None:
    group = [transcript(traj, sample=traj) for traj in range(3)]
    wide = side_by_side(group, CALCULATOR.decode, 140).splitlines()
    assert all(f"trajectory {traj}:" in wide[0] for traj in range(3))
    assert max(map(len, wide)) <= 140
    narrow = side_by_side(group, CALCULATOR.decode, 60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.count("trajectory ") == 3
