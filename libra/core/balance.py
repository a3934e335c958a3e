"""The first rule for moving ranks by itself: keep the two stages' seconds a batch equal.

Of each consumed batch, smoothed:   T_train    seconds in which the trainer was busy
                                    T_rollout  seconds of the batch, less the share in which engines had nothing to do
A move of r ranks from rollout (N_r ranks) to training (N_t) is expected to make them

    T_rollout x N_r / (N_r - r)        T_train x N_t / (N_t + r)

and the other way round. The move is proposed when the larger of the two falls by more than `margin`, `patience` batches in a
row, and not within `cooldown` batches of the last one. A batch counts only if its own seconds ask for what the smoothed ones
ask for: an odd batch stays in the mean for a while, and moves nothing. So under a steady load nothing moves: after a good move
the way back promises nothing. The formula knows neither tails nor KV room, nor ranks that share a processor; therefore each
move is judged by what came of it: if batches take longer than before by more than half of `margin`, it is taken back, and the
next one waits twice as long. And where the formula has promised nothing for `explore` batches, a move is tried and judged all
the same, to and fro by turns: so a wrong formula costs some batches, not the run.

A planner can take this rule's place behind `propose` and `consumed`.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

from libra.config.schema import ElasticConfig

SMOOTH = 0.4
"""Weight of the newest batch."""
JUDGED_BATCHES = 6
"""Batches before a move, and after it, whose mean seconds are compared; the first one after it lies across it and does not
count. Batches come in bursts of `max_lag` + 1, 1 to 3 in the modes as they are: these are whole bursts."""
BURST = 3
"""Batches that must be known before a move for it to be judged: early ones, too."""
MAX_COOLDOWN = 64

Direction = Literal["lend", "recall"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Device ranks by what they do, and the smallest number that can move now, each way; 0: none can."""

    core: int
    rollout: int
    gradient: int
    lend: int
    recall: int


@dataclass(frozen=True, slots=True)
class Proposal:
    direction: Direction
    ranks: int
    reason: str
    gain: float | None = None
    """By what share the formula expects a batch to get shorter; None where it expects nothing: a try, or a move taken back."""


@dataclass(slots=True)
class _Trial:
    """A move that is being judged."""

    direction: Direction
    ranks: int
    before_s: float
    batches: int = 0
    seconds: float = 0.0


class Balance:
    def __init__(self, config: ElasticConfig) -> None:
        self.config = config
        self.train_s: float | None = None
        self.rollout_s: float | None = None
        self._recent: deque[float] = deque(maxlen=JUDGED_BATCHES)
        """Seconds of the last batches since the last move."""
        self._newest = (0.0, 0.0)
        """Seconds of training and rollout of the last batch."""
        self._quiet = 0
        """Batches since the last move."""
        self._tried: Direction = "recall"
        """The way that was explored last."""
        self._wants: Direction | None = None
        self._asked = 0
        self._cooldown = config.cooldown
        self._rest = config.cooldown
        """Batches until a move may be proposed; counts down. The first batches of a run say little."""
        self._trial: _Trial | None = None
        self._verdict: Proposal | None = None
        self._going_back = False
        """A move is being taken back: that is not judged again."""

    def restore(self, train_s: float | None, rollout_s: float | None) -> None:
        """Go on with what was observed under the same allocation."""
        self.train_s, self.rollout_s = train_s, rollout_s

    def consumed(self, seconds: float, busy_s: float, idle_share: float) -> None:
        """A batch is consumed: `seconds` after the one before; the trainer was busy for `busy_s` of them."""
        self._recent.append(seconds)
        self._quiet += 1
        self._newest = busy_s, seconds * (1.0 - idle_share)
        self.train_s = _smooth(self.train_s, self._newest[0])
        self.rollout_s = _smooth(self.rollout_s, self._newest[1])
        self._rest = max(0, self._rest - 1)
        if self._trial is not None:
            self._judge(self._trial, seconds)

    def moved(self, direction: Direction, ranks: int, by_rule: bool) -> None:
        """A move of this rule, or of a person, has ended well. What was observed before it no longer tells much."""
        self._rest = self._cooldown
        self._asked = self._quiet = 0
        before, judged = self._recent, by_rule and not self._going_back
        enough = len(before) >= BURST
        self._trial = _Trial(direction, ranks, sum(before) / len(before)) if judged and enough else None
        self._verdict, self._going_back = None, False
        self.train_s = self.rollout_s = None
        self._recent.clear()

    def _judge(self, trial: _Trial, seconds: float) -> None:
        trial.batches += 1
        if trial.batches > 1:
            trial.seconds += seconds
        if trial.batches <= JUDGED_BATCHES:
            return
        self._trial = None
        after_s = trial.seconds / JUDGED_BATCHES
        if after_s > trial.before_s * (1.0 + self.config.margin / 2):
            back: Direction = "recall" if trial.direction == "lend" else "lend"
            reason = f"a batch took {trial.before_s:.3g} s before the last move and {after_s:.3g} s after it"
            self._verdict = Proposal(back, trial.ranks, reason)
            self._cooldown = min(MAX_COOLDOWN, 2 * self._cooldown)
        else:
            self._cooldown = self.config.cooldown

    def propose(self, ranks: Ranks) -> Proposal | None:
        """What ought to move now; asked once after each batch."""
        self._going_back = False
        if self._verdict is not None:
            verdict, self._verdict = self._verdict, None
            self._going_back = bool(ranks.lend if verdict.direction == "lend" else ranks.recall)
            return verdict if self._going_back else None
        if self.train_s is None or self.rollout_s is None or self._trial is not None:
            return None
        proposal = self._better(ranks, self.train_s, self.rollout_s)
        alone = self._better(ranks, *self._newest)
        wants = proposal.direction if proposal and alone and alone.direction == proposal.direction else None
        self._asked = self._asked + 1 if wants == self._wants else 1
        self._wants = wants
        if self._rest:
            return None
        if proposal is None:
            return self._explore(ranks)
        return proposal if wants and self._asked >= self.config.patience else None

    def _explore(self, ranks: Ranks) -> Proposal | None:
        """A move for the sake of what it shows, the other way than the last one where both can be."""
        wait = self.config.explore * (self._cooldown // self.config.cooldown)
        if not wait or self._quiet < wait or len(self._recent) < JUDGED_BATCHES:
            return None
        lends = bool(ranks.lend and ranks.rollout > ranks.lend and (self._tried == "recall" or not ranks.recall))
        if not lends and not ranks.recall:
            return None
        self._tried = "lend" if lends else "recall"
        return Proposal(
            self._tried,
            ranks.lend if lends else ranks.recall,
            f"nothing has moved for {self._quiet} batches of {sum(self._recent) / JUDGED_BATCHES:.3g} s; a try",
        )

    def _better(self, ranks: Ranks, train_s: float, rollout_s: float) -> Proposal | None:
        now_s = max(train_s, rollout_s)
        training = ranks.core + ranks.gradient
        for r, sign in ((ranks.lend, 1), (ranks.recall, -1)):
            if not r or ranks.rollout - sign * r <= 0:
                continue
            train_then_s = train_s * training / (training + sign * r)
            rollout_then_s = rollout_s * ranks.rollout / (ranks.rollout - sign * r)
            then_s = max(train_then_s, rollout_then_s)
            if then_s < now_s * (1.0 - self.config.margin):
                reason = (
                    f"training takes {train_s:.3g} s a batch and rollout {rollout_s:.3g} s; with {r} ranks"
                    f" {'more' if sign > 0 else 'fewer'} in training {train_then_s:.3g} s and {rollout_then_s:.3g} s"
                )
                return Proposal("lend" if sign > 0 else "recall", r, reason, 1.0 - then_s / now_s)
        return None


def _smooth(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTH * (value - mean)
