"""metrics.jsonl: one object a line, readable at any moment."""

import math
from pathlib import Path

import pytest

from libra.core import commands as c
from libra.telemetry.metrics import Gauges, MetricsWriter, read_metrics

GAUGES = Gauges(tokens_per_s=10.0, queue_groups=1, version=2, lag=1, in_flight={"waiting": 3}, engine_kv=(0.5,))
BATCH = c.BatchConsumed(9, 4, 5, True, 0.25, 20, 15, 160, 900, 1, 0.5, math.nan, 1.5)


def test_each_kind_has_its_line_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        metrics.command(1.23456, BATCH)
        assert len(read_metrics(path)) == 1
        metrics.command(2.0, c.Evaluated(10, "eval_end", 5, 200, 1, 0.75))
        metrics.command(3.0, c.Report(11, "warning", "two\nlines"))
        metrics.command(3.5, c.Act(12, 7))
        metrics.gauges(4.0, GAUGES)
    batch, evaluated, report, gauges = read_metrics(path)
    assert (batch["kind"], batch["t"], batch["batch"], batch["reward"], batch["loss"]) == (
        "batch",
        1.2346,
        4,
        0.25,
        None,
    )
    assert "seq" not in batch
    assert (evaluated["kind"], evaluated["which"], evaluated["reward"]) == ("eval", "eval_end", 0.75)
    assert (report["level"], report["what"]) == ("warning", "two\nlines")
    assert (gauges["kind"], gauges["in_flight"], gauges["engine_kv"]) == ("gauges", {"waiting": 3}, [0.5])


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        metrics.command(1.0, BATCH)
        metrics.gauges(2.0, GAUGES)
    path.write_bytes(path.read_bytes()[:-4])
    assert [row["kind"] for row in read_metrics(path)] == ["batch"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "batch"}\nnonsense\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl line 2 is no JSON object"):
        read_metrics(path)


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []
