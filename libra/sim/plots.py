"""Pictures of a run, simulated or live: what every engine and rank did over time, with the tail, and how much was still needed.

    allocation.png  a row a rank: its role by colour, pale where it had nothing to do
    engines.png     a row an engine: turns running, buckets apart; a tail is what goes on, dark, where the rest is black
    residuals.png   tokens still to sample after 0, 1, 2, 4, 8, ... tool returns: the distribution over training trajectories

Drawn from a `History`; the only place in this room that loads matplotlib.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from libra.config.schema import Config
from libra.sim.history import DOWN, GRADIENT, LOST, STARTING, TRAINER, History, Interval

COLUMNS = 600
"""Time slots of a picture."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
FEWEST = 20
"""A distribution of fewer trajectories is not drawn."""
ROW_INCHES = 0.16
MOST_INCHES = 8.0
PALE = 0.25
"""Strength of the colour of a rank that has nothing to do."""
TRAINER_COLOUR = (0.12, 0.16, 0.22)
GRADIENT_COLOUR = (0.55, 0.58, 0.63)
BUCKET_COLOURS = (
    (0.15, 0.39, 0.92), (0.85, 0.47, 0.02), (0.08, 0.50, 0.24), (0.75, 0.15, 0.45), (0.40, 0.30, 0.75), (0.05, 0.55, 0.60),
)  # fmt: skip
OTHER_COLOURS = {STARTING: (0.95, 0.85, 0.35), DOWN: (0.85, 0.10, 0.10), LOST: (0.45, 0.0, 0.0)}

Grid = list[list[float]]


class Plotter:
    def __init__(self, config: Config) -> None:
        self._config = config
        self.history = History([b.name for b in config.bucket])
        self.watch = self.history.watch

    def draw(self, directory: Path) -> list[Path]:
        """Write the pictures; returns their paths."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        directory.mkdir(parents=True, exist_ok=True)
        paths: list[Path] = []
        for name, rows, figure in (
            ("allocation.png", self._config.devices, self._allocation),
            ("engines.png", len(self.history.engines), self._engines),
            ("residuals.png", 22, self._residuals),
        ):
            height = min(MOST_INCHES, 1.6 + ROW_INCHES * rows)
            fig, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
            figure(axes)
            paths.append(directory / name)
            fig.savefig(paths[-1], dpi=90)
            pyplot.close(fig)
        return paths

    # --- roles over time

    def _allocation(self, axes) -> None:  # type: ignore[no-untyped-def]  # matplotlib has no types
        from matplotlib.patches import Patch

        history, ranks = self.history, self._config.devices
        end = max(history.end, 1e-9)
        names = [b.name for b in self._config.bucket]
        colours = dict(zip(names, (BUCKET_COLOURS[i % len(BUCKET_COLOURS)] for i in range(len(names))), strict=True))
        colours |= {TRAINER: TRAINER_COLOUR, GRADIENT: GRADIENT_COLOUR, **OTHER_COLOURS}
        busy = share(history.rounds, end, ranks + 1)
        for engine, turns in enumerate(share(history.turns, end, 1 + max(history.engines, default=0))):
            for rank in history.ranks_of.get(engine, ()):
                busy[rank] = [a + b for a, b in zip(busy[rank], turns, strict=True)]
        image: list[list[tuple[float, ...]]] = [[(1.0, 1.0, 1.0)] * COLUMNS for _ in range(ranks)]
        roles = history.roles()
        for role in roles:
            at_work = busy[role.who] if role.what in (TRAINER, GRADIENT, *names) else None
            colour = colours[role.what]
            for i in columns(role, end):
                strength = 1.0 if at_work is None else PALE + (1.0 - PALE) * min(1.0, at_work[i])
                image[role.who - 1][i] = tuple(1.0 - strength * (1.0 - x) for x in colour)
        axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, end, ranks + 0.5, 0.5))
        seen = [name for name in (TRAINER, GRADIENT, *names, *OTHER_COLOURS) if any(r.what == name for r in roles)]
        axes.legend(
            handles=[Patch(color=colours[name], label=name) for name in seen],
            loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=8, frameon=False, fontsize=9,
        )  # fmt: skip
        axes.set_ylabel("rank")
        axes.set_xlabel("seconds; pale: nothing to do")

    # --- turns over time

    def _engines(self, axes) -> None:  # type: ignore[no-untyped-def]
        from matplotlib import colors

        history = self.history
        order = list(self._config.bucket_names)
        ids = sorted(history.engines, key=lambda id: (order.index(history.engines[id]), id))
        names = [history.engines[id] for id in ids]
        end = max(history.end, 1e-9)
        by_id = share(history.turns, end, 1 + max(ids, default=0))
        grid = [by_id[id] for id in ids]
        most = max((max(row) for row in grid), default=1.0)
        few_show = colors.PowerNorm(
            0.35, vmin=0.0, vmax=max(most, 1.0)
        )  # one turn of the tail is seen beside a hundred
        image = axes.imshow(
            grid, aspect="auto", interpolation="nearest", extent=(0, end, len(names), 0), norm=few_show, cmap="magma"
        )
        bar = axes.figure.colorbar(image, pad=0.01, label="turns running")
        bar.set_ticks([x for x in (0, 1, 4, 16, 64, 256) if x <= most])
        for i, (before, after) in enumerate(pairwise(names), 1):
            if before != after:
                axes.axhline(i, color="white", linewidth=1.5)
        spans = [(name, [i for i, n in enumerate(names) if n == name]) for name in dict.fromkeys(names)]
        axes.set_yticks([(ids[0] + ids[-1] + 1) / 2 for _, ids in spans], [name for name, _ in spans])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("seconds")
        title = f"{self._config.run.name}: {self._config.scheduler.policy}, {self._config.run.mode}"
        if history.ends and self._config.run.steps == 1:
            tail = sorted(history.ends)[int(0.9 * (len(history.ends) - 1))]
            axes.axvline(tail, color="cyan", linewidth=1.2)
            title += f"; nine tenths had ended at the line, {tail:,.0f} s"
        axes.set_title(title, fontsize=10)

    # --- what was still to come

    def _residuals(self, axes) -> None:  # type: ignore[no-untyped-def]
        returns, rows = residuals(self.history.sampled)
        places = range(len(returns))
        low, lower, middle, upper, high = zip(*rows, strict=True) if rows else ((),) * 5
        axes.fill_between(places, low, high, alpha=0.18, color="#2563eb", linewidth=0, label="10 % to 90 %")
        axes.fill_between(places, lower, upper, alpha=0.35, color="#2563eb", linewidth=0, label="25 % to 75 %")
        axes.plot(places, middle, marker="o", color="#1e3a8a", label="median")
        axes.set_xticks(places, [str(n) for n in returns])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tool returns so far")
        axes.set_ylabel("tokens still to sample")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{self._config.run.name}: residuals of {len(self.history.sampled):,} trajectories", fontsize=10)
        axes.legend(frameon=False, fontsize=9)


def columns(interval: Interval, end: float) -> range:
    """The time slots that an interval touches, of `COLUMNS` from 0 to `end`."""
    slot = end / COLUMNS
    return range(min(int(interval.start / slot), COLUMNS - 1), min(int(interval.stop / slot), COLUMNS - 1) + 1)


def share(intervals: Sequence[Interval], end: float, rows: int) -> Grid:
    """Mean number of intervals of each `who`, by time slot."""
    slot = end / COLUMNS
    grid = [[0.0] * COLUMNS for _ in range(rows)]
    for x in intervals:
        row = grid[x.who]
        for i in columns(x, end):
            row[i] += max(0.0, min(x.stop, (i + 1) * slot) - max(x.start, i * slot)) / slot
    return grid


def residuals(sampled: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """(tool returns, quantiles of what remained after so many): `sampled` has each trajectory's totals at returns and end."""
    returns: list[int] = []
    rows: list[list[int]] = []
    k = 0
    while True:
        left = sorted(s[-1] - (s[k - 1] if k else 0) for s in sampled if len(s) > k)
        if len(left) < (FEWEST if rows else 1):
            return returns, rows
        returns.append(k)
        rows.append([left[min(len(left) - 1, int(q * len(left)))] for q in QUANTILES])
        k = 2 * k if k else 1
