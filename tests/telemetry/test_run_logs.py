"""The controller's log and the tails of other logs."""

from pathlib import Path

import pytest

from libra.telemetry.logs import RunLog, tail


def test_a_line_has_time_level_and_text(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "controller.log"
    with RunLog(path, clock=lambda: 12.3456, wall=lambda: 0.5) as log:
        log.info("hello")
        log.warning("two\nlines")
        log.error("\udcff is no text")
    assert path.read_text().splitlines() == [
        "1970-01-01T00:00:00.500Z    12.346 info    hello",
        "1970-01-01T00:00:00.500Z    12.346 warning two",
        "    | lines",
        r"1970-01-01T00:00:00.500Z    12.346 error   \udcff is no text",
    ]


def test_a_log_keeps_one_older_generation_and_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "controller.log"
    with RunLog(path, clock=lambda: 0.0, wall=lambda: 0.0, max_bytes=1000) as log:
        for i in range(200):
            log.info(f"line {i}")
    sizes = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    assert set(sizes) == {"controller.log", "controller.log.1"}
    assert max(sizes.values()) <= 1000
    assert path.read_text().endswith("line 199\n")


@pytest.mark.parametrize(
    ("data", "lines", "max_bytes", "expected"),
    [
        (b"a\nb\nc\n", 2, 100, "b\nc"),
        (b"a\nb\nc", 9, 100, "a\nb\nc"),
        (b"aaaa\nbbbb\ncc\n", 9, 7, "cc"),
        (b"x" * 50, 9, 10, "x" * 10),
        (b"\xff\n", 1, 10, "\ufffd"),
        (b"", 3, 10, ""),
    ],
)
def test_tail_gives_whole_last_lines_within_bounds(
    tmp_path: Path, data: bytes, lines: int, max_bytes: int, expected: str
) -> None:
    path = tmp_path / "role.log"
    path.write_bytes(data)
    assert tail(path, lines, max_bytes) == expected


def test_tail_of_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "none.log") == ""
