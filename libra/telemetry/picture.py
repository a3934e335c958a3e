"""reward.png: `python -m libra.telemetry.picture RUN_DIR` draws a run from its metrics.jsonl and summary.json.

A process of its own, so that the controller never imports matplotlib (a CPU second and 45 MB) and can give it a deadline. Reads
finished files only; writes reward.png by write-then-rename. Exit code 0 drawn, 1 nothing to draw or unreadable.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from libra.telemetry import metrics, summary
from libra.telemetry.display import duration

FILE = "reward.png"
"""Name inside a run's directory."""
_BLUE, _ORANGE, _GREY, _GREEN = "#2563eb", "#d97706", "#6b7280", "#15803d"


def draw(run_dir: Path) -> Path:
    """Draw the picture and return its path. ValueError where there is no consumed batch to draw."""
    rows = metrics.read_metrics(run_dir / metrics.FILE)
    batches = [r for r in rows if r["kind"] == "batch" and r["reward"] is not None]
    if not batches:
        raise ValueError(f"{run_dir / metrics.FILE} has no consumed batch: nothing to draw")
    path = run_dir / summary.FILE
    total = summary.read_summary(path) if path.exists() else None
    fig, (top, lag, rate) = plt.subplots(
        3, 1, figsize=(9, 7), height_ratios=(4, 1, 1), sharex=True, layout="constrained"
    )
    _reward(top, batches, [r for r in rows if r["kind"] == "eval"])
    _lag(lag, batches)
    _rate(rate, batches, [r for r in rows if r["kind"] == "gauges"])
    rate.set_xlabel("batch (training step)")
    rate.set_xlim(0.5, max(r["batch"] for r in batches) + 1.5)
    rate.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (top, lag, rate):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    fig.align_ylabels()
    name = run_dir.resolve().name
    fig.suptitle(
        _title(total) if total is not None else f"{name} (no summary: the run did not end in order)", fontsize=13
    )
    target = run_dir / FILE
    fresh = run_dir / f".{os.getpid()}.{FILE}"
    fig.savefig(fresh, dpi=120)
    plt.close(fig)
    fresh.replace(target)
    return target


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean of the last `width` values up to and with each (fewer at the beginning)."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i + 1 - width) : i + 1])]


def _title(s: summary.Summary) -> str:
    end = "" if s.ok else "   FAILED"
    return f"{s.run}: {s.mode}, seed {s.seed}   {s.steps} steps in {duration(s.seconds)}{end}"


def _reward(axes: Axes, batches: list[dict[str, Any]], evals: list[dict[str, Any]]) -> None:
    x = [r["batch"] + 1 for r in batches]
    y = [r["reward"] for r in batches]
    axes.plot(x, y, color=_BLUE, alpha=0.3, linewidth=1, label="each batch")
    axes.plot(x, running_mean(y, summary.WINDOW), color=_BLUE, linewidth=2.2, label=f"mean of {summary.WINDOW}")
    skipped = [(a, b) for a, b, r in zip(x, y, batches, strict=True) if not r["trained"]]
    if skipped:
        axes.scatter(*zip(*skipped, strict=True), color=_GREY, marker="x", s=28, label="skipped batch", zorder=3)
    during = [(r["batch"] + 0.5, r["reward"]) for r in evals if r["which"] == "eval"]
    if during:
        axes.plot(*zip(*during, strict=True), color=_ORANGE, marker="o", markersize=5, linewidth=1, label="held-out")
    for row in [r for r in evals if r["which"] != "eval"]:
        start = row["which"] == "eval_start"
        axes.plot(
            [x[0] - 0.5 if start else x[-1] + 0.5],
            [row["reward"]],
            marker=">" if start else "<",
            markersize=11,
            color=_ORANGE if start else _GREEN,
            linestyle="none",
            clip_on=False,
            zorder=4,
            label=f"held-out {'before' if start else 'after'}: {row['reward']:.3f} ({row['tasks']} tasks)",
        )
    axes.set_ylabel("mean reward")
    low, high = min([0.0, *y]), max([1.0, *y])
    axes.set_ylim(low - 0.02, high + 0.02)
    axes.legend(loc="lower right", frameon=True, framealpha=0.9, fontsize=9)


def _lag(axes: Axes, batches: list[dict[str, Any]]) -> None:
    axes.step([r["batch"] + 1 for r in batches], [r["lag"] for r in batches], where="mid", color=_GREY)
    axes.set_ylabel("lag\n(versions)")
    axes.set_ylim(-0.2, max(r["lag"] for r in batches) + 0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def _rate(axes: Axes, batches: list[dict[str, Any]], gauges: list[dict[str, Any]]) -> None:
    """Tokens per second, placed between the batches by time, so that all panels share one axis."""
    ends = [r["t"] for r in batches]
    during = [r for r in gauges if ends[0] <= r["t"] <= ends[-1]]
    x = np.interp([r["t"] for r in during], ends, [r["batch"] + 1 for r in batches])
    axes.plot(x, [r["tokens_per_s"] for r in during], color=_GREEN, linewidth=1.2)
    axes.set_ylabel("sampled\n(tokens/s)")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m libra.telemetry.picture RUN_DIR", file=sys.stderr)
        return 1
    try:
        draw(Path(argv[0]))
    except (OSError, ValueError) as e:
        print(f"no picture: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
