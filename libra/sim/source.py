"""Where the truth of a simulation comes from: what each sample of each prompt will do, and what it will be worth.

    generator (kind)  ─┐
    trace (file)      ─┼─> Source.trajectory(kind, prompt, sample, step), Source.reward(...)
    journal (run dir) ─┘

The same for the same seed, whoever asks first. Rewards are a simple model, only there so that groups have variance: each
prompt has a difficulty, evenly over `REWARD_RANGE`, and each sample succeeds with that probability.
"""

import random
from pathlib import Path
from typing import Protocol

from msgspec import structs

from libra.config.schema import Config
from libra.config.worlds import WorkloadConfig
from libra.core.commands import Kind
from libra.errors import ConfigError
from libra.sim.recorded import read_run
from libra.workload import SPECS, TraceTrajectory, Workload, read_trace
from libra.workload.jsonl import read_lines
from libra.workload.mooncake import read_mooncake, to_trajectories
from libra.workload.spec import WorkloadSpec
from libra.workload.swe import import_swe
from libra.workload.trace import require_room

REWARD_RANGE = (0.1, 0.9)
"""Chances of success of the hardest and the easiest prompt."""
HELD_OUT = 1 << 40
"""First prompt ordinal of the held-out tasks, far from those that are trained on."""


class Source(Protocol):
    """`step` is the batch that will train on the trajectory; it sets the drift."""

    max_sampled_tokens: int
    max_context_tokens: int

    def trajectory(self, kind: Kind, prompt: int, sample: int, step: int) -> TraceTrajectory: ...

    def require_room(self, room_tokens: int) -> None:
        """Raise ConfigError where a trajectory could not be held by the roomiest engine."""
        ...


def open_source(config: Config, workload: WorkloadConfig) -> Source:
    """The source that the configuration names. Raises ConfigError naming file, line and field of every fault."""
    seed, samples = config.run.seed, config.rollout.samples_per_group
    if not workload.trace:
        return Generated(_spec(workload), seed)
    path = Path(workload.trace)
    if path.is_dir():
        return Recorded(read_run(path), str(path), samples, seed, shuffle=False)
    return Recorded(_read_file(path), str(path), samples, seed, workload.shuffle)


def _read_file(path: Path) -> list[TraceTrajectory]:
    """A file in the format of traces, or in one of those that can be imported: its first line tells."""
    first = next((line for line in read_lines(path) if line.strip()), b"")
    if b'"hash_ids"' in first:
        return to_trajectories(read_mooncake(path))
    if b'"instance"' in first:
        return import_swe(path).trajectories
    return read_trace(path)


def reward(seed: int, kind: Kind, prompt: int, sample: int, step: int) -> float:
    """1.0 or 0.0."""
    low, high = REWARD_RANGE
    chance = low + (high - low) * random.Random(f"{seed}/chance/{kind == 'train'}/{prompt}").random()
    return float(random.Random(f"{seed}/reward/{kind}/{prompt}/{sample}/{step}").random() < chance)


def _spec(w: WorkloadConfig) -> WorkloadSpec:
    changes = {
        name: value
        for name in ("informativeness", "slow_share", "max_sampled_tokens", "max_context_tokens")
        if (value := getattr(w, name)) is not None
    }
    return structs.replace(SPECS[w.kind], drift=w.drift, drift_steps=w.drift_steps, **changes)


class Generated:
    """An endless set of prompts of one kind."""

    def __init__(self, spec: WorkloadSpec, seed: int) -> None:
        self._workload = Workload(spec, seed)
        self.max_sampled_tokens = spec.max_sampled_tokens
        self.max_context_tokens = spec.max_context_tokens

    def trajectory(self, kind: Kind, prompt: int, sample: int, step: int) -> TraceTrajectory:
        ordinal = prompt if kind == "train" else HELD_OUT + prompt
        return self._workload.trajectory(ordinal, sample, step)

    def require_room(self, room_tokens: int) -> None:
        if self.max_context_tokens > room_tokens:
            raise ConfigError(
                "workload",
                [
                    f"env.max_context_tokens: got {self.max_context_tokens}, expected at most {room_tokens}, the room of the "
                    "roomiest engine; set it lower, or give a bucket a higher tp"
                ],
            )


class Recorded:
    """A finite set of trajectories: its groups in turn, and again from the first when all have been used."""

    def __init__(
        self, trajectories: list[TraceTrajectory], source: str, samples: int, seed: int, shuffle: bool
    ) -> None:
        if not trajectories:
            raise ConfigError(source, ["no trajectory in it has ended; expected at least one"])
        self._all = trajectories
        self._source = source
        order = random.Random(f"{seed}/trace")
        groups: dict[str, list[TraceTrajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group, []).append(trajectory)
        self._groups = list(groups.values())
        if shuffle:
            order.shuffle(self._groups)
        for group in self._groups:
            group += (order.choice(trajectories) for _ in range(samples - len(group)))
        self.max_sampled_tokens = max(t.sampled_tokens for t in trajectories)
        self.max_context_tokens = max(t.context_tokens for t in trajectories)

    def trajectory(self, kind: Kind, prompt: int, sample: int, step: int) -> TraceTrajectory:
        group = self._groups[prompt % len(self._groups)]
        return group[sample % len(group)]

    def require_room(self, room_tokens: int) -> None:
        require_room(self._all, room_tokens, self._source)
