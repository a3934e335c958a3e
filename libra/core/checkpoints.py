"""When a checkpoint is taken, which ones are kept, and which is the best.

    a batch is consumed ──(due)──> SaveCheckpoint ──> CheckpointSaved ──> TidyCheckpoints: all but the newest N, the best,
                                         │                                and one that is being evaluated, go
                                         └──> CheckpointFailed, or silence: reported; the run goes on
    an evaluation is over ──> its checkpoint may be the best ──> TidyCheckpoints

One is under way at a time; one that would be due meanwhile is left out. The command lies between two steps, so what core
ranks copy is what the core saved. The run waits for a checkpoint in two places only: before its first batch, and at its end.
"""

from libra.config.schema import CheckpointConfig
from libra.core.commands import Evaluated, SaveCheckpoint, TidyCheckpoints
from libra.core.events import CheckpointFailed, CheckpointSaved
from libra.core.outbox import Outbox
from libra.core.saved import Best, SavedCore

ANSWER_MARGIN_S = 5.0
"""Who writes gives up at `deadline.checkpoint_s`; without any answer so much later nobody waits any more."""


class Checkpoints:
    def __init__(self, config: CheckpointConfig, out: Outbox, deadline_s: float, ranks: tuple[int, ...]) -> None:
        self.config = config
        self.out = out
        self.steps: list[int] = []
        """Those that are whole, ascending."""
        self.best: Best | None = None
        self._told: Best | None = None
        """The best that the shell knows of."""
        self._deadline_s = deadline_s
        self._ranks = ranks
        self._seq = 0
        """The `SaveCheckpoint` under way; 0 when none."""
        self._ordered = 0
        """The step of the last one that was ordered."""
        self._worth: Best | None = None
        """What the newest evaluation found, until its checkpoint is whole."""
        self._judged: int | None = None
        """The step whose evaluation is under way: its checkpoint is kept until it is known what it is worth."""

    def restore(self, saved: SavedCore) -> None:
        self.steps, self._ordered = list(saved.checkpoints), saved.step
        self.best = self._told = saved.best

    # --- saving

    def boundary(self, step: int, version: int, wanted: bool) -> None:
        """`step` batches are consumed. `wanted`: one is due for other reasons than the count's."""
        if self.config.every and (wanted or step % self.config.every == 0) and step > self._ordered:
            if self._seq:
                self.out.report(
                    "warning", f"no checkpoint at step {step}: that of {self._ordered} is still being written"
                )
            else:
                self._order(step, version)

    def settled(self, step: int, version: int) -> bool:
        """Whether the run may end after `step` batches: it is saved as it is, or that has failed. Orders what is missing."""
        if not self._seq and self.config.every and step > self._ordered:
            self._order(step, version)
        return not self._seq

    def _order(self, step: int, version: int) -> None:
        self._ordered = step
        seq = self._seq = self.out.put(SaveCheckpoint(self.out.next_seq(), step, version, self._ranks))
        limit_s = self._deadline_s + ANSWER_MARGIN_S

        def silent() -> None:
            if self._seq == seq:
                self._failed(f"not written within {limit_s:g} s")

        self.out.after(limit_s, silent)

    def saved(self, e: CheckpointSaved) -> None:
        if e.cmd != self._seq:
            return
        self._seq = 0
        self.steps.append(self._ordered)
        self.out.report(
            "info",
            f"checkpoint {self._ordered}: {e.bytes / 1e6:,.1f} MB in {e.seconds:.2f} s, the trainer stood for {e.copy_s:.3f} s",
        )
        self._keep()

    def failed(self, e: CheckpointFailed) -> None:
        if e.cmd == self._seq:
            self._failed(e.reason)

    def _failed(self, reason: str) -> None:
        self._seq = 0
        self.out.report("warning", f"checkpoint {self._ordered} was not saved, the run goes on: {reason}")

    # --- keeping

    def judging(self, step: int) -> None:
        """An evaluation of the weights after `step` batches has begun."""
        self._judged = step

    def evaluated(self, e: Evaluated) -> None:
        """The weights after `e.batch` batches are worth `e.reward`, if all tasks have ended: a part says little."""
        self._judged = None
        self._worth = None if e.failed else Best(e.batch, e.reward)
        self._keep()

    def _judge(self) -> None:
        """The newest evaluation makes a best one of its checkpoint, as soon as that is whole."""
        worth = self._worth
        if worth is None or worth.step not in self.steps:
            return
        self._worth = None
        if self.best is None or worth.reward > self.best.reward:
            self.best = worth
            self.out.report("info", f"checkpoint {worth.step} is the best so far: held-out reward {worth.reward:.3f}")

    def _keep(self) -> None:
        self._judge()
        best = self.best.step if self.best is not None else 0
        kept = [s for s in self.steps if s in self.steps[-self.config.keep :] or s in (best, self._judged)]
        dropped = tuple(s for s in self.steps if s not in kept)
        if dropped or self.best != self._told:
            reward = self.best.reward if self.best is not None else 0.0
            self.out.put(TidyCheckpoints(self.out.next_seq(), dropped, best, reward))
            self._told = self.best
        self.steps = kept
