"""Held-out tasks: before training, after it, and beside it. Groups of one, never trained, never counted in lag or admission.

    begin ──> tasks are opened ──> all have ended, failed, or been given up at the deadline ──> Evaluated ──> over

Before and after training all tasks are opened at once and the run waits for them. Beside training they take what it leaves:
`at_once` of them are open at a time, their turns come after all of training's (`placement` is asked for them only while no
training turn waits), and the whole has a deadline. Weights go on changing meanwhile; what is evaluated is what had been
published when it began, or newer, and how much newer is told. The same tasks are sampled with the same noise each time.
"""

from collections.abc import Callable, Sequence

from libra.config.schema import EvalConfig
from libra.core.batch import stage_means
from libra.core.commands import Evaluated, HeldOut
from libra.core.outbox import Outbox
from libra.core.rollout import Rollout
from libra.core.trajectory import Group
from libra.core.waiting import SPARE_SLOT


class Evaluation:
    """`over(evaluated)` is called at the end of each."""

    def __init__(
        self,
        config: EvalConfig,
        reward_names: Sequence[str],
        out: Outbox,
        rollout: Rollout,
        over: Callable[[Evaluated], None],
    ) -> None:
        self.config = config
        self.reward_names = reward_names
        self.out = out
        self.rollout = rollout
        self.kind: HeldOut | None = None
        """What is under way."""
        self.version = 0
        """The oldest that may sample for it."""
        self._batch = 0
        self._groups: list[Group] = []
        self._done = 0
        self._given_up = 0
        self._begun = 0
        """How many evaluations have begun."""
        self._over = over

    @property
    def progress(self) -> tuple[int, int]:
        """(held-out tasks that have ended, all of them) of the evaluation under way."""
        return (self._done, self.config.tasks) if self.kind is not None else (0, 0)

    def begin(self, kind: HeldOut, version: int, batch: int) -> None:
        """The weights are those after `batch` batches. None may be under way; there must be tasks."""
        self.kind, self.version, self._batch = kind, version, batch
        self._groups, self._done, self._given_up = [], 0, 0
        self._begun += 1
        if kind == "eval":
            number = self._begun
            self.out.after(self.config.deadline_s, lambda: self._expired(number))

    def advance(self) -> None:
        """Open what may be opened; tell what has become of it, once nothing is left."""
        if self.kind is None:
            return
        at_once = self.config.at_once if self.kind == "eval" else self.config.tasks
        slot = SPARE_SLOT if self.kind == "eval" else 0
        while len(self._groups) < self.config.tasks and len(self._groups) - self._done < at_once:
            self._groups.append(self.rollout.open_group(self.kind, slot, len(self._groups), 1))
        if self._done == self.config.tasks:
            self._end(self.kind)

    def group_done(self, group: Group) -> None:
        self._done += 1

    def _expired(self, number: int) -> None:
        if self.kind is None or number != self._begun:
            return
        left = [g for g in self._groups if not g.complete]
        self._given_up = self.config.tasks - self._done
        self.out.report(
            "warning",
            f"held-out tasks after batch {self._batch}: {self._given_up} of {self.config.tasks} had not ended after"
            f" {self.config.deadline_s:g} s and are given up; see eval.deadline_s, eval.tasks and eval.at_once",
        )
        for group in left:
            self.rollout.drop(group)
        self._done = self.config.tasks

    def _end(self, kind: HeldOut) -> None:
        members = [g.members[0] for g in self._groups if not g.spoilt]
        rewards = [m.reward for m in members]
        newest = max((m.newest_version for m in members), default=-1)
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        failed = self.config.tasks - len(rewards)
        evaluated = Evaluated(
            self.out.next_seq(), kind, self.version, self.config.tasks, failed, mean, self._batch,
            max(self.version, newest), self._given_up, stage_means(self.reward_names, [m.reward_stages for m in members]),
        )  # fmt: skip
        self.out.put(evaluated)
        self.rollout.discard([m.id for m in members])
        self.kind, self._groups = None, []
        self._over(evaluated)
