"""Batches and optimiser steps: groups come in, gradients go out, versions count up.

Batch b is made of the groups of slot b and is consumed after batch b - 1: trained where anything carries a signal, else
skipped (counted, version unchanged, nothing published). The trainer begins as soon as the next batch is complete and no step
is open; the seconds that it stands idle for that are the tail wait.
"""

from collections.abc import Callable
from typing import Literal

from libra.config.schema import Config
from libra.core.admission import Admission
from libra.core.batch import advantages, pack
from libra.core.commands import BatchConsumed, CloseStep, OpenStep, Round, Row
from libra.core.events import RoundDone, StepDone
from libra.core.outbox import Outbox
from libra.core.training import BatchFigures, TrainingStep
from libra.core.trajectory import Group


class Learner:
    """`discard(ids)` forgets trajectories; `fatal(reason)` ends the run."""

    def __init__(
        self,
        config: Config,
        out: Outbox,
        admission: Admission,
        trainers: tuple[int, ...],
        discard: Callable[[list[int]], None],
        fatal: Callable[[str], None],
    ) -> None:
        self.trainers = trainers
        self.out = out
        self.admission = admission
        self.advantage: Literal["group_std", "group_mean"] = config.trainer.advantage
        self.micro_batch_tokens = config.trainer.micro_batch_tokens
        self.version = 0
        """Optimiser steps taken."""
        self.step: TrainingStep | None = None
        self.idle_since = 0.0
        self._groups: dict[int, list[Group]] = {}
        self._complete: dict[int, int] = {}
        self._discard = discard
        self._fatal = fatal

    def add(self, group: Group) -> None:
        self._groups.setdefault(group.slot, []).append(group)

    def group_done(self, group: Group) -> None:
        self._complete[group.slot] = self._complete.get(group.slot, 0) + 1

    def complete(self, slot: int) -> bool:
        return self._complete.get(slot, 0) == self.admission.groups

    def groups_ready(self) -> int:
        """Complete groups that have not been consumed."""
        return sum(self._complete.values())

    def unfinished(self, slot: int) -> list[Group]:
        return [g for g in self._groups.get(slot, []) if not g.complete]

    # --- steps

    def advance(self) -> None:
        """Consume complete batches in order until one has to be trained."""
        while self.step is None and not self.admission.exhausted and self.complete(self.admission.done):
            figures = self._assemble(self.admission.done)
            if figures.loss_tokens == 0:
                self._consumed(figures, trained=False, loss=0.0, grad_norm=0.0, gap=None)
            else:
                self._open(figures)

    def _assemble(self, slot: int) -> BatchFigures:
        groups = sorted(self._groups.pop(slot), key=lambda g: g.id)
        del self._complete[slot]
        figures = BatchFigures(slot, 0.0, len(groups), 0, 0, 0, 0, self.out.now - self.idle_since)
        rewards = 0.0
        for group in groups:
            ended = [m for m in group.members if m.stage == "ended"]
            rewards += sum(m.reward for m in ended)
            figures.trajectories += len(ended)
            if group.spoilt:
                continue  # forgotten already
            figures.members.extend(m.id for m in group.members)
            weights = advantages([m.reward for m in group.members], self.advantage)
            if weights is None:
                continue
            figures.groups_trained += 1
            for member, advantage in zip(group.members, weights, strict=True):
                if member.loss_tokens:
                    figures.rows.append((member.total_tokens, Row(member.id, advantage)))
                    figures.loss_tokens += member.loss_tokens
                    figures.lag = max(figures.lag, self.version - member.oldest_version)
        figures.reward = rewards / figures.trajectories if figures.trajectories else 0.0
        return figures

    def _open(self, figures: BatchFigures) -> None:
        queue = pack(figures.rows, self.micro_batch_tokens, len(self.trainers))
        self.step = TrainingStep(figures, self.version + 1, self.trainers, queue)
        self.out.put(OpenStep(self.out.next_seq(), self.version, figures.batch, figures.loss_tokens, self.trainers))
        self._hand_out(self.step)

    def _hand_out(self, step: TrainingStep) -> None:
        while (slots := step.take_round()) is not None:
            seq = self.out.put(Round(self.out.next_seq(), self.version, step.next_round - 1, step.ranks, slots))
            step.unanswered[seq] = list(step.ranks)
        if step.ready_to_close:
            step.unclosed = list(step.ranks)
            step.close_seq = self.out.put(CloseStep(self.out.next_seq(), self.version, step.version, step.ranks))

    def round_done(self, e: RoundDone) -> None:
        if self.step is not None and self.step.answered(e.cmd, e.rank):
            self._hand_out(self.step)

    def step_done(self, e: StepDone) -> None:
        step = self.step
        if step is None or e.cmd != step.close_seq or e.rank not in step.unclosed:
            return
        if not e.finite:
            self._fatal(
                f"step {self.version} on batch {step.figures.batch} gave a loss or gradient that is not finite"
                f" (loss {e.loss}, gradient norm {e.grad_norm}); no weights were changed or published"
            )
            return
        step.loss, step.grad_norm = e.loss, e.grad_norm
        if e.gap is not None:
            step.gap = max(e.gap, step.gap or 0.0)
        step.unclosed.remove(e.rank)
        if not step.unclosed:
            self.step = None
            self.version = step.version
            self._consumed(step.figures, trained=True, loss=step.loss, grad_norm=step.grad_norm, gap=step.gap)

    def _consumed(self, f: BatchFigures, trained: bool, loss: float, grad_norm: float, gap: float | None) -> None:
        self.admission.consume(self.version)
        self.idle_since = self.out.now
        self.out.put(
            BatchConsumed(
                self.out.next_seq(),
                f.batch,
                self.version,
                trained,
                f.reward,
                f.groups,
                f.groups_trained,
                f.trajectories,
                f.loss_tokens,
                f.lag,
                f.wait_s,
                loss,
                grad_norm,
                gap,
            )
        )
        self._discard(f.members)
