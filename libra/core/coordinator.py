"""The core: one object that is told what happened and answers with what to do. It composes the rooms and does little itself.

    event ──> the room it concerns changes its state ──> advance(): every room asks for what has become possible ──> commands

`advance` is level-triggered: it looks at the state, not at the event, so nothing is forgotten when two things become possible
at once, and a new kind of event needs no new wiring. It runs in a fixed order (weights, admission, placing, training), and its
cost does not grow with history. Pure and deterministic: no clock, no randomness, no I/O; the live controller and the simulator
drive this same object, and a journal of its events gives the same commands again.

    starting ──> eval_start ──> training ──> eval_end ──> ended
        └──────────────┴── stop, or something fatal ──────> ended
"""

from typing import Literal, assert_never

from libra.config.schema import Config, WorkloadConfig
from libra.core.admission import Admission
from libra.core.allocation import Allocation
from libra.core.commands import Command, Evaluated, FinishRun
from libra.core.elastic import Elastic
from libra.core.events import (
    AnyEvent,
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
from libra.core.learned import Learned
from libra.core.learner import Learner
from libra.core.lifecycle import Lifecycle
from libra.core.outbox import Outbox
from libra.core.placement import Placement
from libra.core.publication import Publication
from libra.core.rollout import Rollout
from libra.core.scheduler.policy import Decision, Foresight
from libra.core.trajectory import Group
from libra.errors import CoreError

Phase = Literal["starting", "eval_start", "training", "eval_end", "ended"]


class Core:
    """Decisions of one run. `handle` never blocks; times are seconds since the run began.

    `oracle` tells a trajectory's true residual output tokens by its id: a simulator's, for the policy of that name.
    `learned` is what scheduling starts from; None: from nothing.
    """

    def __init__(self, config: Config, oracle: Foresight | None = None, learned: Learned | None = None) -> None:
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
        self._evaluation: list[Group] = []
        self._stopping = ""
        """Who asked the run to end after the open step."""

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
            case WeightsHeld():
                self.publication.held(e)
            case WeightsInstalled():
                self.publication.installed(e)
            case WeightsFailed():
                self.publication.failed(e)
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
            case WarmStarted():
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

    # --- what has become possible

    def _advance(self) -> None:
        if self.phase == "ended":
            return
        self.publication.advance(self._wanted_version)
        self.handover.advance()
        self.lifecycle.advance()
        self.publication.advance(self._wanted_version)
        match self.phase:
            case "starting":
                if self.lifecycle.warmed and self.publication.newest >= 0:
                    self._begin_evaluation("eval_start", self.config.eval.at_start)
            case "eval_start":
                self._end_evaluation("eval_start")
            case "training":
                self._train()
            case "eval_end":
                self._end_evaluation("eval_end")
            case _:
                assert_never(self.phase)
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
        self.learner.advance()
        if self._stopping and self.learner.step is None:
            self._finish(True, f"stopped by {self._stopping} after {self.admission.done} batches")
            return
        if self.admission.exhausted:
            self._begin_evaluation("eval_end", self.config.eval.at_end)
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

    # --- evaluation: groups of one, never trained

    def _begin_evaluation(self, kind: Literal["eval_start", "eval_end"], wanted: bool) -> None:
        self.phase = kind
        if wanted:
            self._evaluation = [self.rollout.open_group(kind, 0, i, 1) for i in range(self.config.eval.tasks)]
        if not self._evaluation:
            self._end_evaluation(kind)

    def _end_evaluation(self, kind: Literal["eval_start", "eval_end"]) -> None:
        if self.rollout.open_groups:
            return
        if self._evaluation:
            members = [g.members[0] for g in self._evaluation]
            rewards = [m.reward for m in members if m.stage == "ended"]
            mean = sum(rewards) / len(rewards) if rewards else 0.0
            failed = len(members) - len(rewards)
            version = self.publication.newest
            self.out.put(Evaluated(self.out.next_seq(), kind, version, len(members), failed, mean))
            self.rollout.discard([m.id for m in members if m.stage == "ended"])
            self._evaluation = []
        if kind == "eval_end":
            self._finish(True, f"all {self.admission.batches} batches are consumed")
        else:
            self.phase = "training"
            self.learner.idle_since = self.out.now
            self._train()

    @property
    def evaluation_progress(self) -> tuple[int, int]:
        """(held-out tasks that have ended, all of them) of the evaluation under way."""
        return len(self._evaluation) - self.rollout.open_groups, len(self._evaluation)

    # --- what the rooms ask of each other

    def _floor(self, group: Group) -> int:
        return self.admission.floor(group.slot) if group.kind == "train" else self.publication.newest

    def _group_done(self, group: Group) -> None:
        if group.kind == "train":
            self.learner.group_done(group)

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

    def _move_over(self, move: Move) -> None:
        self.elastic.over(move)

    # --- the end

    def _stop(self, e: StopRequested) -> None:
        lost = self.fleet.lost()
        if e.now and lost:  # torchrun ends all ranks because one of them died
            self._finish(False, f"lost rank {lost[0]}; stopped by {e.author} after {self.admission.done} batches")
        elif e.now or self.phase != "training" or self.learner.step is None:
            self._finish(True, f"stopped by {e.author} after {self.admission.done} batches")
        else:
            self._stopping = e.author

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
