"""What a finished trajectory is worth: named stages, composed in the configuration.

    reward = sum over the stages of weight x value(record)

| stage | value of a record | unit | bounds |
|---|---|---|---|
| `verifiable` | the environment's own judgement | the environment's reward | its own: 0 or 1 here |
| `format` | formed turns / turns; 0 without a turn | share | 0 to 1 |
| `length_penalty` | -min(1, max(0, n - soft) / ramp), n sampled tokens | share of the weight | -1 to 0 |

The last is the soft overlong punishment of DAPO (arXiv 2503.14476, eq. 13) with soft = L_max - L_cache and ramp = L_cache, on
the sampled tokens of the whole trajectory: what a tool returned is not the policy's doing.

Invariant: pure functions of a record; and only a trajectory that the environment has *ended* has one. One that failed
(`EnvError`) never gets here: it has no reward at all. Values are reported before their weights, the reward after. Called by
the controller's episodes.
"""

import math
from typing import assert_never

from msgspec import Struct

from libra.config.worlds import FormatStage, LengthStage, RewardConfig, StageConfig, VerifiableStage
from libra.errors import EnvError


class Record(Struct, frozen=True):
    """What the stages may look at."""

    judged: float
    """The reward of the environment's `Ended`."""
    turns: int
    formed: int
    """Turns of a legal form."""
    sampled_tokens: int


class Worth(Struct, frozen=True):
    reward: float
    stages: tuple[float, ...]
    """Each stage's value before its weight, in the configuration's order."""


def worth(config: RewardConfig, record: Record) -> Worth:
    """The reward of a finished trajectory. EnvError where the environment's judgement is no finite number."""
    if not math.isfinite(record.judged):
        raise EnvError(f"the environment's reward is {record.judged}, expected a finite number")
    values = tuple(_value(stage, record) for stage in config.stage)
    return Worth(math.fsum(s.weight * v for s, v in zip(config.stage, values, strict=True)), values)


def _value(stage: StageConfig, record: Record) -> float:
    match stage:
        case VerifiableStage():
            return record.judged
        case FormatStage():
            return record.formed / record.turns if record.turns else 0.0
        case LengthStage(soft_limit_tokens=soft, ramp_tokens=ramp):
            return -min(1.0, max(0, record.sampled_tokens - soft) / ramp) or 0.0  # never -0.0
        case _:
            assert_never(stage)
