"""Pictures of a simulation: what every engine did over time, with the tail, and how much trajectories still needed.

Fed by the simulation's `watch`; drawn at the end, the only place that loads matplotlib.

    engines.png     turns running on each engine over time, a row an engine, buckets apart; the last tenth of the ends marked
    residuals.png   tokens still to sample after 0, 1, 2, 4, 8, ... tool returns: quantiles over all training trajectories
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e

COLUMNS = 400
"""Time slots of the picture of engines."""
QUANTILES = (0.1, 0.5, 0.9)


class Plotter:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._names = [b.name for b in config.bucket for _ in range(b.engines)]
        self._began: dict[int, float] = {}
        self._turns: list[tuple[int, float, float]] = []
        """(engine, from, to)"""
        self._sampled: dict[int, list[int]] = {}
        """Trajectory -> tokens sampled before each tool return, and at its end."""
        self._so_far: dict[int, int] = {}
        self._ends: list[float] = []

    def watch(self, event: e.AnyEvent, commands: Sequence[c.Command]) -> None:
        match event:
            case e.TurnGenerated(t=t, cmd=cmd, traj=traj, engine=engine, tokens=tokens):
                self._turns.append((engine, self._began.pop(cmd, t), t))
                self._so_far[traj] = self._so_far.get(traj, 0) + tokens
            case e.ToolReturned(traj=traj):
                self._sampled.setdefault(traj, []).append(self._so_far.get(traj, 0))
            case e.EpisodeEnded(t=t, traj=traj):
                self._sampled.setdefault(traj, []).append(self._so_far.get(traj, 0))
                self._ends.append(t)
            case _:
                pass
        for command in commands:
            if isinstance(command, c.Generate):
                self._began[command.seq] = event.t

    def draw(self, directory: Path) -> list[Path]:
        """Write the pictures; returns their paths."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import colors, pyplot

        directory.mkdir(parents=True, exist_ok=True)
        paths = [directory / "engines.png", directory / "residuals.png"]
        figure, axes = pyplot.subplots(figsize=(11, 1.5 + 0.18 * len(self._names)), layout="constrained")
        end = max((t for _, _, t in self._turns), default=1.0)
        few_show = colors.PowerNorm(0.35)  # one turn of the tail must be seen beside a hundred
        extent = (0, end, len(self._names), 0)
        image = axes.imshow(self._occupancy(end), aspect="auto", interpolation="nearest", extent=extent, norm=few_show)
        figure.colorbar(image, label="turns running")
        for i, (before, after) in enumerate(pairwise(self._names), 1):
            if before != after:
                axes.axhline(i, color="white", linewidth=1)
        firsts = [i for i, name in enumerate(self._names) if name not in self._names[:i]]
        axes.set_yticks([i + 0.5 for i in firsts], [self._names[i] for i in firsts])
        if self._ends:
            tail = sorted(self._ends)[int(0.9 * (len(self._ends) - 1))]
            axes.axvline(tail, color="red", linewidth=1)
            axes.set_title(f"{self._config.scheduler.policy}: nine tenths had ended at the red line, {tail:,.0f} s")
        axes.set_xlabel("seconds")
        figure.savefig(paths[0], dpi=110)
        pyplot.close(figure)
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        returns, rows = self._residuals()
        for q, values in zip(QUANTILES, zip(*rows, strict=True), strict=True):
            axes.plot(returns, values, marker="o", label=f"{q:.0%} of the trajectories need at most")
        axes.set_xlabel("tool returns so far")
        axes.set_ylabel("tokens still to sample")
        axes.legend()
        figure.savefig(paths[1], dpi=110)
        pyplot.close(figure)
        return paths

    def _occupancy(self, end: float) -> list[list[float]]:
        """Mean turns running, by engine and slot of time."""
        slot = end / COLUMNS
        grid = [[0.0] * COLUMNS for _ in self._names]
        for engine, start, stop in self._turns:
            row = grid[engine]
            for i in range(min(int(start / slot), COLUMNS - 1), min(int(stop / slot), COLUMNS - 1) + 1):
                row[i] += max(0.0, min(stop, (i + 1) * slot) - max(start, i * slot)) / slot
        return grid

    def _residuals(self) -> tuple[list[int], list[list[int]]]:
        returns, rows = [], []
        k = 0
        while True:
            left = sorted(s[-1] - (s[k - 1] if k else 0) for s in self._sampled.values() if len(s) > k)
            if len(left) < 10 and rows:
                return returns, rows
            returns.append(k)
            rows.append([left[min(len(left) - 1, int(q * len(left)))] if left else 0 for q in QUANTILES])
            k = 2 * k if k else 1
