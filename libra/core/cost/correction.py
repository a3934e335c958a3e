"""Predicted against observed: a slow multiplicative factor for each engine kind.

    surprise = clamp(log(observed / predicted) - log_factor, +- MAX_SURPRISE)
    log_factor += gain x surprise, within +- MAX_LOG          gain = max(rate, 1 / (evidence + prior))

The prior is a factor of 1 worth `prior` observations, so one odd turn moves little; later the factor follows with a memory
of about 1 / rate observations. Predictions must be the *uncorrected* ones: a corrected prediction would chase itself.
A kind is any stable name: "train", "decode/tp2", a bucket's name. Owned by the core; shown by the dashboard.
"""

from math import exp, isfinite, log

from msgspec import Struct, structs

MAX_SURPRISE = log(8.0)
"""One observation counts as at most 8 times slower or faster than expected: a stopped process is no slow one."""
MAX_LOG = log(64.0)
"""The factor stays within this: beyond it the model is wrong."""
RATE = 0.02
"""Share of the newest residual once evidence is plenty: a memory of about 50 observations."""
PRIOR = 8.0
"""Observations that the initial factor of 1 is worth."""


class Kind(Struct, frozen=True):
    """What is known of one kind. `rejected` counts observations that were not finite and positive; they teach nothing."""

    log_factor: float = 0.0
    log_error: float = 0.0
    """Mean absolute log residual left *after* correction, by the same slow average: 0.05 is about 5 %."""
    log_error_before: float = 0.0
    """The same *without* correction."""
    evidence: int = 0
    rejected: int = 0

    @property
    def factor(self) -> float:
        """Observed seconds over predicted seconds."""
        return exp(self.log_factor)


class Correction:
    """Factors by kind. `factor(kind)` is 1.0 for a kind that was never observed."""

    __slots__ = ("_factors", "_kinds", "_prior", "_rate")

    def __init__(self, rate: float = RATE, prior: float = PRIOR, kinds: dict[str, Kind] | None = None) -> None:
        if not 0.0 < rate <= 1.0 or prior < 0.0:
            raise ValueError(f"Correction: got rate={rate}, prior={prior}; expected 0 < rate <= 1 and prior >= 0")
        self._rate = rate
        self._prior = prior
        self._kinds: dict[str, Kind] = dict(kinds or {})
        self._factors = {name: kind.factor for name, kind in self._kinds.items()}

    def factor(self, kind: str) -> float:
        """What to multiply an uncorrected prediction of this kind with."""
        return self._factors.get(kind, 1.0)

    def observe(self, kind: str, predicted_s: float, observed_s: float) -> bool:
        """Learn from one pair; False (and counted) where either is not a finite positive number."""
        old = self._kinds.get(kind, Kind())
        if not (isfinite(predicted_s) and isfinite(observed_s) and predicted_s > 0.0 and observed_s > 0.0):
            self._kinds[kind] = structs.replace(old, rejected=old.rejected + 1)
            return False
        residual = log(observed_s) - log(predicted_s)
        surprise = min(MAX_SURPRISE, max(-MAX_SURPRISE, residual - old.log_factor))
        residual = old.log_factor + surprise
        evidence = old.evidence + 1
        gain = max(self._rate, 1.0 / (evidence + self._prior))
        memory = max(self._rate, 1.0 / evidence)
        new = Kind(
            log_factor=min(MAX_LOG, max(-MAX_LOG, old.log_factor + gain * surprise)),
            log_error=old.log_error + memory * (abs(surprise) - old.log_error),
            log_error_before=old.log_error_before + memory * (abs(residual) - old.log_error_before),
            evidence=evidence,
            rejected=old.rejected,
        )
        self._kinds[kind] = new
        self._factors[kind] = new.factor
        return True

    def kinds(self) -> dict[str, Kind]:
        """All that is known, for a display or a checkpoint; give it back as `kinds` to go on from there."""
        return dict(self._kinds)
