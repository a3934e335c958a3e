"""Batches and optimiser steps: groups come in, gradients go out, versions count up.

Batch b is made of the groups of slot b and is consumed after batch b - 1: trained where anything carries a signal, else
skipped (counted, version unchanged, nothing published). The trainer begins as soon as the next batch is complete and no step
is open; the seconds that it stands idle for that are the tail wait.
"""

from collections.abc import Callable
from typing import Literal

from libra.config.schema import Config
from libra.core.admission import Admission
from libra.core.batch import advantages, pack, stage_means
from libra.core.commands import BatchConsumed, CloseStep, OpenStep, Round, Row
from libra.core.events import LogprobGap, RoundDone, RoundRefused, ShareHeld, ShareLost, ShareOffered, StepDone
from libra.core.fleet import Fleet, Unit
from libra.core.outbox import Outbox
from libra.core.sharing import Sharing
from libra.core.training import ROUNDS_AHEAD, BatchFigures, TrainingStep
from libra.core.trajectory import Group


class Learner:
    """`discard(ids)` forgets trajectories; `fatal(reason)` ends the run; `consumed(busy_s)` is called after each batch."""

    def __init__(
        self,
        config: Config,
        out: Outbox,
        admission: Admission,
        fleet: Fleet,
        discard: Callable[[list[int]], None],
        fatal: Callable[[str], None],
        consumed: Callable[[float], None],
    ) -> None:
        self.fleet = fleet
        self.trainers = fleet.trainers
        self.out = out
        self.sharing = Sharing(fleet, out, config.deadline.share_s, self._hand_out)
        self.admission = admission
        self.advantage: Literal["group_std", "group_mean"] = config.trainer.advantage
        self.reward_names = config.reward.names
        self.micro_batch_tokens = config.trainer.micro_batch_tokens
        self.version = 0
        """Optimiser steps taken."""
        self.step: TrainingStep | None = None
        self.idle_since = 0.0
        self._groups: dict[int, list[Group]] = {}
        self._complete: dict[int, int] = {}
        self._discard = discard
        self._fatal = fatal
        self._told_consumed = consumed

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
        """Consume complete batches in order until one has to be trained; feed the replicas of the open step."""
        self._share()
        while self.step is None and not self.admission.exhausted and self.complete(self.admission.done):
            figures = self._assemble(self.admission.done)
            if figures.loss_tokens == 0:
                self._consumed(figures, 0.0, trained=False, loss=0.0, grad_norm=0.0, gap=LogprobGap())
            else:
                self._open(figures)

    def _assemble(self, slot: int) -> BatchFigures:
        groups = sorted(self._groups.pop(slot), key=lambda g: g.id)
        del self._complete[slot]
        figures = BatchFigures(slot, 0.0, len(groups), 0, 0, 0, 0, self.out.now - self.idle_since)
        rewards = 0.0
        parts: list[tuple[float, ...]] = []
        for group in groups:
            ended = [m for m in group.members if m.stage == "ended"]
            rewards += sum(m.reward for m in ended)
            parts += [m.reward_stages for m in ended]
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
        figures.reward_stages = stage_means(self.reward_names, parts)
        return figures

    def _open(self, figures: BatchFigures) -> None:
        lending = [r for r in self.fleet.replicas.values() if r.state == "serving"]
        workers = len(self.trainers) + sum(len(r.ranks) for r in lending)
        queue = pack(figures.rows, self.micro_batch_tokens, workers)
        self.step = TrainingStep(figures, self.version + 1, self.trainers, queue, self.out.now)
        self.out.put(OpenStep(self.out.next_seq(), self.version, figures.batch, figures.loss_tokens, self.trainers))
        self._hand_out()
        self._share()

    def _hand_out(self, rounds: int = 1) -> None:
        """Rounds to the core until so many are out, and the end of the step once nothing is left."""
        step = self.step
        if step is None:
            return
        while (slots := step.take_round(rounds)) is not None:
            seq = self.out.put(Round(self.out.next_seq(), self.version, step.next_round - 1, step.ranks, slots))
            step.unanswered[seq] = list(step.ranks)
            step.round_tokens[seq] = max((b.tokens for b in slots if b is not None), default=0)
        if step.ready_to_close:
            self.sharing.closed(step)
            step.unclosed = list(step.ranks)
            seq = self.out.next_seq()
            step.close_seq = self.out.put(CloseStep(seq, self.version, step.version, step.ranks, step.held()))

    def _share(self) -> None:
        """Replicas choose before the core gets a round ahead, also those that are just fetching the step's version."""
        if (step := self.step) is not None and not step.closing:
            self.sharing.advance(step, step.figures.loss_tokens)
            self._hand_out(1 if self.sharing.awaited(step) else ROUNDS_AHEAD)

    def round_done(self, e: RoundDone) -> None:
        step = self.step
        if step is None:
            return
        if step.answered(e.cmd, e.rank):
            tokens = step.round_tokens.pop(e.cmd)
            if tokens:
                self.sharing.core_pace.observe(e.seconds / tokens)
            self._hand_out()
        else:
            self.sharing.round_done(step, e)

    def share_event(self, e: ShareOffered | ShareHeld | ShareLost | RoundRefused) -> None:
        if (step := self.step) is None:
            return
        match e:
            case ShareOffered():
                self.sharing.offered(step, e)
            case ShareHeld():
                self.sharing.held(step, e)
            case ShareLost() | RoundRefused():
                self.sharing.lost(step, e)
        self._hand_out()

    # --- replicas that leave

    def released(self, replica: Unit) -> bool:
        """Whether the open step needs nothing more from a replica that takes no orders any more."""
        share = self.step.shares.get(replica.id) if self.step is not None else None
        return share is None or share.settled

    def withdraw(self, replica: Unit, reason: str) -> None:
        """The replica's unshared work goes back to the queue."""
        if self.step is not None:
            self.sharing.withdraw(self.step, replica, reason)

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
        step.loss, step.grad_norm, step.gap = e.loss, e.grad_norm, e.gap
        step.unclosed.remove(e.rank)
        if not step.unclosed:
            self.step = None
            self.version = step.version
            self._consumed(
                step.figures,
                self.out.now - step.began,
                trained=True,
                loss=step.loss,
                grad_norm=step.grad_norm,
                gap=step.gap,
            )

    def _consumed(
        self, f: BatchFigures, busy_s: float, trained: bool, loss: float, grad_norm: float, gap: LogprobGap
    ) -> None:
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
                f.reward_stages,
            )
        )
        self._discard(f.members)
        self._told_consumed(busy_s)
