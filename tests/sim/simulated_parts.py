"""Small configurations, and a trace made by hand, that the simulator's tests share."""

from pathlib import Path
from typing import Any

from msgspec import structs

from libra.config import Config, load
from libra.workload import TraceTrajectory, TraceTurn, write_trace

CONFIGS = Path(__file__).parents[2] / "configs"
BATCH = load(CONFIGS / "sim-batch.toml")


def small(**changes: Any) -> Config:
    """Two groups of four a batch on one engine of each shape. `changes` are `section__key=value`."""
    sections: dict[str, dict[str, Any]] = {}
    rollout = {"rollout__groups_per_batch": 2, "rollout__samples_per_group": 4}
    for name, value in (rollout | changes).items():
        section, _, key = name.partition("__")
        sections.setdefault(section, {})[key] = value
    config = structs.replace(BATCH, bucket=tuple(structs.replace(b, engines=1) for b in BATCH.bucket))
    return structs.replace(
        config, **{section: structs.replace(getattr(config, section), **values) for section, values in sections.items()}
    )


def one_engine(config: Config, bucket: int = 0, **changes: Any) -> Config:
    return structs.replace(config, bucket=(structs.replace(config.bucket[bucket], engines=1, **changes),))


def turn(tokens: int, observed: int = 100, tool_s: float = 1.0, tool: str = "t") -> TraceTurn:
    return TraceTurn(tokens, tool, tool_s, "ok", observed)


def last(tokens: int) -> TraceTurn:
    return TraceTurn(tokens, "", 0.0, "ok", 0)


def write(path: Path, *trajectories: tuple[TraceTurn, ...], prompt: int = 500) -> Path:
    """A trace of one group, a sample for each sequence of turns."""
    write_trace(path, [TraceTrajectory("g", i, "", prompt, turns) for i, turns in enumerate(trajectories)])
    return path
