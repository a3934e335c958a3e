"""The hidden truth about machines: how their seconds differ from what the cost model says.

    seconds = predicted x slowdown x slow_factor (the slow engine) x exp(engine_spread x z(engine))
                        x exp(step_noise x z(engine, floor(t / noise_s)))
    tool    = told x exp(tool_noise x z(kind, prompt, sample, batch, turn))

z is a standard normal drawn from a hash of the seed and these keys: the same for the same seed, whoever asks, how often and in
which order. So an engine's pace is a function of time, whatever is decided, and two policies meet the same world. The median of
each factor is 1. Who knows it: machines that pretend (the simulator's, emulated engines). The core never does; its correction
has to find out from what it observes. Pure.
"""

from functools import lru_cache
from hashlib import blake2b
from math import exp
from statistics import NormalDist

from libra.config.schema import TruthConfig

_NORMAL = NormalDist()
_REMEMBERED = 4096
"""Paces kept at hand: a pace is asked for once a stretch of steps, and many fall into one `noise_s`."""


class Truth:
    def __init__(self, config: TruthConfig) -> None:
        self.config = config
        self._pace = lru_cache(_REMEMBERED)(self._drawn_pace)

    @property
    def is_plain(self) -> bool:
        """Nothing differs from what the cost model and the workload say."""
        c = self.config
        steady = c.slowdown == 1.0 and not (c.engine_spread or c.step_noise or c.tool_noise)
        return steady and (c.slow_engine < 0 or c.slow_factor == 1.0)

    def engine(self, engine: int) -> float:
        """The median of an engine's real over predicted seconds: what a correction for it alone would converge to."""
        c = self.config
        slow = c.slow_factor if engine == c.slow_engine else 1.0
        return c.slowdown * slow * exp(c.engine_spread * self._z("engine", engine))

    def pace(self, engine: int, now: float) -> float:
        """Real over predicted seconds of what `engine` begins at `now` (seconds since the run began)."""
        return self._pace(engine, int(now / self.config.noise_s))

    def _drawn_pace(self, engine: int, span: int) -> float:
        return self.engine(engine) * exp(self.config.step_noise * self._z("step", engine, span))

    def tool(self, kind: str, prompt: int, sample: int, batch: int, turn: int) -> float:
        """Real over told seconds of one tool call."""
        if not self.config.tool_noise:
            return 1.0
        return exp(self.config.tool_noise * self._z("tool", kind, prompt, sample, batch, turn))

    def _z(self, *key: int | str) -> float:
        text = "/".join(map(str, (self.config.seed, *key)))
        drawn = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 11
        return _NORMAL.inv_cdf((drawn + 0.5) / (1 << 53))
