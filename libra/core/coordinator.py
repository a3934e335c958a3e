"""The core: one object that is told what happened and answers with what to do. It composes the rooms and does little itself.

    event ──> the room it concerns changes its state ──> advance(): every room asks for what has become possible ──> commands

`advance` is level-triggered: it looks at the state, not at the event, so nothing is forgotten when two things become possible
at once, and a new kind of event needs no new wiring. It runs in a fixed order (weights, admission, placing, training), and its
cost does not grow with history. Pure and deterministic: no clock, no randomness, no I/O; the live controller and the simulator
drive this same object, and a journal of its events gives the same commands again.

    starting ──> eval_start ──> training ──> eval_end ──> ended
        ├────── resumed ──────────┘             │           │
        └──────────────┴── stop, or something fatal ────────┘
"""

from typing import Literal, assert_never

from libra.config.schema import Config
from libra.config.worlds import WorkloadConfig
from libra.core.admission import Admission
from libra.core.allocation import Allocation
from libra.core.checkpoints import Checkpoints
from libra.core.commands import Command, Evaluated, FinishRun, HeldOut
from libra.core.elastic import Elastic
from libra.core.evaluation import Evaluation
from libra.core.events import (
    AnyEvent,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    EngineReported,
    EpisodeEnded,
    GroupFormed,
    OrderGiven,
    RankJoined,
    RankLost,
    RoleExited,
    RoleReady,
    RoleStalled,
    RoundDone,
    RoundRefused,
    RunStarted,
    ShareHeld,
    ShareLost,
    ShareOffered,
    StepDone,
    StopRequested,
    TimerFired,
    ToolReturned,
    TrajectoryFailed,
    TurnGenerated,
    TurnReady,
    WarmStarted,
    WeightsFailed,
    WeightsHeld,
    WeightsInstalled,
)
from libra.core.fleet import Engine, Fleet, Unit
from libra.core.handover import Handover, Move
from libra.core.learned import Learned, at_rest
from libra.core.learner import Learner
from libra.core.lifecycle import Lifecycle
from libra.core.outbox import Outbox
from libra.core.placement import Placement
from libra.core.publication import Publication
from libra.core.rollout import Rollout
from libra.core.saved import SavedBalance, SavedCore
from libra.core.scheduler.policy import Decision, Foresight
from libra.core.trajectory import Group
from libra.errors import CoreError

Phase = Literal["starting", "eval_start", "training", "eval_end", "ended"]


class Core:
    """Decisions of one run. `handle` never blocks; times are seconds since the run began.

    `oracle` tells a trajectory's true residual output tokens by its id: a simulator's, for the policy of that name.
    `learned` is what scheduling starts from; None: from nothing. `saved` is what a resumed run goes on from, all in all.
    """

    def __init__(
        self,
        config: Config,
        oracle: Foresight | None = None,
        learned: Learned | None = None,
        saved: SavedCore | None = None,
    ) -> None:
        if saved is not None:
            learned = at_rest(saved.learned)
        self.config = config
        self.phase: Phase = "starting"
        self.out = Outbox()
        self.fleet = Fleet(config)
        self.admission = Admission(
            config.max_lag, config.rollout.groups_per_batch, config.run.steps, config.run.mode == "one-step-off"
        )
        self.lifecycle = Lifecycle(self.fleet, self.out, config.deadline, self._unit_down, self._fatal)
        self.publication = Publication(self.fleet, self.out, config.deadline, self.lifecycle.fail)
        self.placement = Placement(config, self.fleet, oracle, learned)
        self.rollout = Rollout(self.fleet, self.out, config, self.placement, self._floor, self._group_done)
        self.learner = Learner(
            config,
            self.out,
            self.admission,
            self.fleet,
            self.rollout.discard,
            self._fatal,
            self._batch_consumed,
        )
        self.handover = Handover(
            self.fleet, self.out, self.lifecycle, self.rollout, self.placement, self.learner, config.deadline.drain_s,
            self._move_over,
        )  # fmt: skip
        self.allocation = Allocation(config, self.fleet, _most_tokens(config))
        self.elastic = Elastic(config, self.fleet, self.out, self.handover, self.allocation)
        self.evaluation = Evaluation(config.eval, config.reward.names, self.out, self.rollout, self._evaluated)
        self.checkpoints = Checkpoints(config.checkpoint, self.out, config.deadline.checkpoint_s, self.fleet.trainers)
        self._to_evaluate: tuple[int, int] | None = None
        """(batches, version) after which an evaluation beside training is due, as soon as that is published."""
        self._stopping = ""
        """Who asked the run to end after the open step."""
        if saved is not None:
            self._resume(saved)

    # --- the one entrance

    def handle(self, event: AnyEvent) -> list[Command]:
        """Take one event, give the commands that follow from it, in order. Raises CoreError on an impossible event."""
        if event.t < self.out.now:
            raise CoreError(
                f"time runs backwards: {type(event).__name__} at {event.t}, after an event at {self.out.now}"
            )
        self.out.now = event.t
        self.elastic.look(*self.placement.index.at_work())
        self.placement.decided.clear()
        if self.phase != "ended":
            self._dispatch(event)
            self._advance()
        return self.out.take()

    def _dispatch(self, e: AnyEvent) -> None:
        match e:
            case TurnGenerated():
                self.rollout.turn_generated(e)
            case ToolReturned():
                self.rollout.tool_returned(e)
            case TurnReady():
                self.rollout.turn_ready(e)
            case EpisodeEnded():
                self.rollout.episode_ended(e)
            case TrajectoryFailed():
                self.rollout.trajectory_failed(e)
            case RoundDone():
                self.learner.round_done(e)
            case ShareOffered() | ShareHeld() | ShareLost() | RoundRefused():
                self.learner.share_event(e)
            case StepDone():
                self.learner.step_done(e)
            case CheckpointSaved():
                self.checkpoints.saved(e)
            case CheckpointFailed():
                self.checkpoints.failed(e)
            case WeightsHeld():
                self.publication.held(e)
            case WeightsInstalled():
                self.publication.installed(e)
            case WeightsFailed():
                self.publication.failed(e)
            case EngineReported():
                self.placement.reported(e)
            case TimerFired():
                self.out.fire(e.cmd)
            case RunStarted():
                self.lifecycle.started()
            case RankJoined():
                self.lifecycle.rank_joined(e)
            case RankLost():
                self.lifecycle.rank_lost(e)
            case RoleReady():
                self.lifecycle.role_ready(e)
            case RoleStalled():
                self.lifecycle.role_stalled(e)
            case RoleExited():
                self.lifecycle.role_exited(e)
            case GroupFormed():
                self.lifecycle.group_formed(e)
            case WarmStarted() | CheckpointLoaded():
                self.lifecycle.warm_started(e)
            case StopRequested():
                self._stop(e)
            case OrderGiven():
                self.elastic.order(e, ready=self.ready)
            case _:
                assert_never(e)

    @property
    def ready(self) -> bool:
        """Past the warm start: orders are taken."""
        return self.publication.newest >= 0

    @property
    def decided(self) -> list[tuple[int, Decision]]:
        """(trajectory, decision) that the last event led to, in order; good until the next one."""
        return self.placement.decided

    def learned(self) -> Learned:
        """What scheduling has learnt so far: to be saved. Nothing changes by asking."""
        return self.placement.learned()

    # --- checkpoints

    def saved(self, step: int) -> SavedCore:
        """What checkpoint `step` holds of this core: to be asked when its `SaveCheckpoint` is carried out."""
        newest_at = self.admission.newest_at[: step + 1]
        rollout, gradient = self.allocation.counts()
        balance = self.elastic.balance
        next_traj, next_group = self.rollout.next_ids
        return SavedCore(
            seconds=self.out.now,
            step=step,
            version=newest_at[step],
            newest_at=newest_at,
            next_traj=next_traj,
            next_group=next_group,
            learned=at_rest(self.learned()),
            balance=SavedBalance(rollout, gradient, balance.train_s, balance.rollout_s),
            checkpoints=tuple(self.checkpoints.steps),
            best=self.checkpoints.best,
        )

    def _resume(self, saved: SavedCore) -> None:
        self.admission.restore(saved.newest_at)
        self.learner.version = saved.version
        self.lifecycle.checkpoint = (saved.step, saved.version)
        self.checkpoints.restore(saved)
        self.rollout.restore(saved.next_traj, saved.next_group)
        balance = saved.balance
        if self.allocation.counts() == (balance.rollout, balance.gradient):
            self.elastic.balance.restore(balance.train_s, balance.rollout_s)
        if self._evaluates(saved.step):
            self._to_evaluate = saved.step, saved.version

    # --- what has become possible

    def _advance(self) -> None:
        self._go_on()
        while self.rollout.fail_hopeless():
            self._go_on()

    def _go_on(self) -> None:
        if self.phase == "ended":
            return
        self.publication.advance(self._wanted_version)
        self.handover.advance()
        self.lifecycle.advance()
        self.publication.advance(self._wanted_version)
        match self.phase:
            case "starting":
                if self.lifecycle.warmed and self.publication.newest >= 0:
                    self._started()
            case "eval_start" | "eval_end":
                self.evaluation.advance()
            case "training":
                self._train()
            case _:
                assert_never(self.phase)
        if self.phase == "eval_end":
            self._end()
        self.rollout.advance()

    @property
    def _wanted_version(self) -> int:
        """The version below which an engine fetches. `one-step-off` changes weights only between batches: while an admitted
        group is unfinished, engines that may sample for it keep what they have (the others are of no use without).
        """
        if self.admission.strict_order and self.phase == "training" and self.rollout.open_groups > 0:
            return self.admission.floor(self.admission.newest_slot)
        return self.publication.newest

    def _train(self) -> None:
        self._drop_overdue()
        if self._stopping and self.learner.step is None:
            self._end()
            return
        self.learner.advance()
        self._evaluate_beside()
        if self.admission.exhausted:
            if self.evaluation.kind is None and self.publication.newest == self.learner.version:
                self.phase = "eval_end"
                if self.config.eval.at_end and self.config.eval.tasks:
                    self._evaluate("eval_end", self.admission.done)
            return
        while not self._stopping:
            slot = self.admission.next_slot(self.rollout.open_groups == 0)
            if slot is None:
                return
            prompt = self.admission.prompts - 1
            self.learner.add(self.rollout.open_group("train", slot, prompt, self.config.rollout.samples_per_group))

    def _drop_overdue(self) -> None:
        """With `overdue = drop_group`: when only the tail of the next batch keeps everything else waiting, drop the tail."""
        done = self.admission.done
        if self.config.rollout.overdue == "wait" or self.learner.step is not None or self.admission.exhausted:
            return
        last = min(done + self.admission.lag, self.admission.batches - 1)
        if last > done and all(self.learner.complete(slot) for slot in range(done + 1, last + 1)):
            for group in self.learner.unfinished(done):
                tokens = max(m.sampled_tokens for m in group.members)
                self.out.report(
                    "warning", f"overdue group {group.id} is dropped, its longest sample at {tokens} tokens"
                )
                self.rollout.drop(group)

    # --- evaluation

    def _started(self) -> None:
        if self.lifecycle.checkpoint is None and self.config.eval.at_start and self.config.eval.tasks:
            self.phase = "eval_start"
            self._evaluate("eval_start", 0)
        else:
            self._begin_training()

    def _begin_training(self) -> None:
        self.phase = "training"
        self.learner.idle_since = self.out.now
        self._train()

    def _evaluate(self, kind: HeldOut, batch: int) -> None:
        self.evaluation.begin(kind, self.publication.newest, batch)
        self.checkpoints.judging(batch)
        self.evaluation.advance()

    def _evaluates(self, done: int) -> bool:
        """Whether an evaluation beside training is due after `done` batches. The end has one of its own."""
        e = self.config.eval
        return bool(e.every and e.tasks) and done % e.every == 0 and 0 < done < self.admission.batches

    def _evaluate_beside(self) -> None:
        self.evaluation.advance()
        if self._to_evaluate is None or self.publication.newest < self._to_evaluate[1]:
            return
        batch, self._to_evaluate = self._to_evaluate[0], None
        if self.evaluation.kind is None:
            self._evaluate("eval", batch)
        else:
            self.out.report(
                "warning",
                f"no evaluation after batch {batch}: the one before is not over; see eval.every, eval.tasks, eval.at_once",
            )

    def _evaluated(self, e: Evaluated) -> None:
        self.checkpoints.evaluated(e)
        if e.kind == "eval_start":
            self._begin_training()

    # --- what the rooms ask of each other

    def _floor(self, group: Group) -> int:
        return self.admission.floor(group.slot) if group.kind == "train" else self.evaluation.version

    def _group_done(self, group: Group) -> None:
        if group.kind == "train":
            self.learner.group_done(group)
        else:
            self.evaluation.group_done(group)

    def _unit_down(self, unit: Unit, reason: str) -> None:
        """Its work goes to others, whether it was ended by will or not."""
        if isinstance(unit, Engine):
            self.rollout.engine_down(unit)
        else:
            self.learner.withdraw(unit, reason)
        if not self.fleet.ranks[unit.ranks[0]].move:
            self.out.report("warning", f"{unit.name} is down: {reason}")
        if not self.fleet.alive and not self.elastic.rescue(reason):
            self._fatal(f"no engine is left: {reason}")

    def _batch_consumed(self, busy_s: float) -> None:
        self.elastic.consumed(busy_s)
        done = self.admission.done
        evaluates = self._evaluates(done)
        if evaluates:
            self._to_evaluate = done, self.learner.version
        self.checkpoints.boundary(done, self.learner.version, evaluates or self.admission.exhausted)

    def _move_over(self, move: Move) -> None:
        self.elastic.over(move)

    # --- the end

    def _stop(self, e: StopRequested) -> None:
        lost = self.fleet.lost()
        if e.now and lost:  # torchrun ends all ranks because one of them died
            self._finish(False, f"lost rank {lost[0]}; stopped by {e.author} after {self.admission.done} batches")
        elif e.now or self.phase not in ("training", "eval_end"):
            self._finish(True, f"stopped by {e.author} after {self.admission.done} batches")
        else:
            self._stopping = e.author

    def _end(self) -> None:
        """The end of a run that ends well, once all is told and saved."""
        if not self.checkpoints.settled(self.admission.done, self.learner.version):
            return
        if self._stopping:
            self._finish(True, f"stopped by {self._stopping} after {self.admission.done} batches")
        elif self.evaluation.kind is None:
            self._finish(True, f"all {self.admission.batches} batches are consumed")

    def _fatal(self, reason: str) -> None:
        self._finish(False, reason)

    def _finish(self, ok: bool, reason: str) -> None:
        if self.phase != "ended":
            self.phase = "ended"
            self.out.put(FinishRun(self.out.next_seq(), ok, reason))


def _most_tokens(config: Config) -> int:
    """Tokens of the longest trajectory that the environment allows; 0 where it sets no limit."""
    if isinstance(config.env, WorkloadConfig):
        return config.env.max_context_tokens or 0
    return config.env.trajectory_tokens
