"""Episodes: opened, sampled turn by turn on engines, acted on, ended. Knows nothing of training.

The coordinator opens groups; this room moves their trajectories. `advance` places waiting turns wherever there is room: it is
called after every event, so an engine that becomes free or newer is used at once. Where a turn goes is `placement`'s affair.
"""

from collections.abc import Callable
from typing import Literal

from libra.config.schema import Config
from libra.core.commands import Act, CutTurn, Discard, Generate, Kind, OpenTrajectory
from libra.core.events import EpisodeEnded, ToolReturned, TrajectoryFailed, TurnGenerated, TurnReady
from libra.core.fleet import Engine, Fleet
from libra.core.outbox import Outbox
from libra.core.placement import Placement
from libra.core.rebalance import Rebalance
from libra.core.scheduler.policy import Target
from libra.core.trajectory import Group, Trajectory
from libra.core.waiting import FIRST, SPARE_SLOT, Lane, WaitingTurns

RETARGETS = 2
"""How often a turn may go from one wait to another before it takes the best engine that is free: each such move changes the
estimates of the others, so without a bound two waits could send a turn to and fro for ever, inside one event."""
ALARM_MARGIN_S = 0.001
"""Added to the end of a wait, so that rounding cannot make the alarm ring just before it."""


class Rollout:
    """`floor(group)` is the oldest version that may sample for a group; `group_done(group)` is called once for each."""

    def __init__(
        self,
        fleet: Fleet,
        out: Outbox,
        config: Config,
        placement: Placement,
        floor: Callable[[Group], int],
        group_done: Callable[[Group], None],
    ) -> None:
        self.fleet = fleet
        self.out = out
        self.retries = config.rollout.retries
        self.max_wait_s = config.scheduler.max_wait_s
        self.placement = placement
        self.waiting = WaitingTurns()
        self.rebalance = Rebalance(out, config.scheduler, placement, floor)
        self._alarm = False
        """A timer runs for the turn that has waited longest for a target."""
        self._hopeless: list[tuple[Trajectory, str]] = []
        """Waiting turns that no engine that is left can ever hold, out of all lanes, and why."""
        self.open_groups = 0
        """Groups for training that are not complete yet."""
        self.failed = 0
        self._trajectories: dict[int, Trajectory] = {}
        self._running: dict[int, dict[int, Trajectory]] = {}
        self._next_traj = 0
        self._next_group = 0
        self._floor = floor
        self._group_done = group_done

    @property
    def next_ids(self) -> tuple[int, int]:
        """Of the next trajectory and the next group."""
        return self._next_traj, self._next_group

    def restore(self, next_traj: int, next_group: int) -> None:
        self._next_traj, self._next_group = next_traj, next_group

    def trajectory(self, id: int) -> Trajectory | None:
        """To look at; None once it is discarded."""
        return self._trajectories.get(id)

    # --- groups

    def open_group(self, kind: Kind, slot: int, prompt: int, samples: int) -> Group:
        group = Group(self._next_group, kind, slot, prompt)
        self._next_group += 1
        self.open_groups += kind == "train"
        for sample in range(samples):
            group.members.append(self._open(group, sample, 0))
        return group

    def _open(self, group: Group, sample: int, attempt: int) -> Trajectory:
        id = self._next_traj
        self._next_traj += 1
        seq = self.out.put(OpenTrajectory(self.out.next_seq(), id, group.kind, group.prompt, sample, attempt, group.id))
        traj = Trajectory(id, group, sample, attempt, seq)
        self._trajectories[id] = traj
        self.placement.opened(traj)
        return traj

    def drop(self, group: Group) -> None:
        """The group will not train: give up what is still on its way, forget all of it, and count it complete."""
        if group.complete:
            return
        group.spoilt = True
        for member in group.members:
            if member.live:
                self._give_up(member, "dropped")
        self.discard([m.id for m in group.members])
        self._finish_group(group)

    def discard(self, ids: list[int]) -> None:
        """Forget these trajectories, here and in the shell."""
        if ids:
            self.out.put(Discard(self.out.next_seq(), tuple(ids)))
            for id in ids:
                del self._trajectories[id]

    def _finish_group(self, group: Group) -> None:
        self.open_groups -= group.kind == "train"
        self._group_done(group)

    # --- one trajectory

    def _awaited(self, id: int, cmd: int) -> Trajectory | None:
        """The trajectory, if `cmd` is what it waits for; else the answer is stale."""
        traj = self._trajectories.get(id)
        return traj if traj is not None and traj.awaited == cmd and traj.live else None

    def turn_ready(self, e: TurnReady) -> None:
        traj = self._awaited(e.traj, e.cmd)
        if traj is not None:
            self._next_turn(traj, e.context_tokens, e.max_new_tokens)

    def tool_returned(self, e: ToolReturned) -> None:
        traj = self._awaited(e.traj, e.cmd)
        if traj is not None:
            traj.tool_s += e.seconds
            self.placement.tool_returned(traj, e)
            self._next_turn(traj, e.context_tokens, e.max_new_tokens)

    def _next_turn(self, traj: Trajectory, context_tokens: int, max_new_tokens: int) -> None:
        traj.context_tokens = context_tokens
        traj.max_new_tokens = traj.cap_tokens = max_new_tokens
        if max_new_tokens <= 0:  # the environment's limits are reached: it closes the episode
            self._act(traj)
            return
        traj.stage = "waiting"
        traj.retargets = 0
        traj.arrival = self.out.now - self.placement.lead_s(traj)
        self.waiting.push(traj)

    def turn_generated(self, e: TurnGenerated) -> None:
        traj = self._awaited(e.traj, e.cmd)
        if traj is None or traj.stage != "generating":  # its engine died meanwhile: it is sampled anew elsewhere
            return
        del self._running[traj.engine][traj.id]
        self.rebalance.over(traj)
        traj.sampled(e.tokens, e.oldest, e.newest)
        self.placement.turn_over(traj, e.tokens, self.out.now)
        if e.finish == "cut":
            traj.resumed()
            self._resume(traj)
        else:
            traj.turns += 1
            self._act(traj)

    def _act(self, traj: Trajectory) -> None:
        traj.stage = "acting"
        traj.awaited = self.out.put(Act(self.out.next_seq(), traj.id))

    def episode_ended(self, e: EpisodeEnded) -> None:
        traj = self._awaited(e.traj, e.cmd)
        if traj is None:
            return
        traj.stage = "ended"
        traj.reward = e.reward
        traj.reward_stages = e.reward_stages
        traj.loss_tokens = e.loss_tokens
        traj.total_tokens = e.total_tokens
        self.placement.ended(traj)
        if traj.group.complete:
            self._finish_group(traj.group)

    def trajectory_failed(self, e: TrajectoryFailed) -> None:
        traj = self._awaited(e.traj, e.cmd)
        if traj is not None:
            self._failed(traj, e.reason)

    def may_retry(self, traj: Trajectory) -> bool:
        """Whether a failure would be followed by a fresh attempt."""
        return traj.attempt < self.retries

    def _failed(self, traj: Trajectory, reason: str) -> None:
        """Infrastructure broke under it: a fresh attempt, or the end of its group."""
        self.failed += 1
        self._give_up(traj, "failed")
        group = traj.group
        if self.may_retry(traj):
            again = self._open(group, traj.sample, traj.attempt + 1)
            again.raised = traj.raised
            group.members[traj.sample] = again
            self.discard([traj.id])
            return
        self.out.report(
            "warning",
            f"group {group.id} (prompt {group.prompt}) is dropped: sample {traj.sample} failed"
            f" {traj.attempt + 1} times, last: {reason}",
        )
        self.drop(group)

    def _give_up(self, traj: Trajectory, stage: Literal["failed", "dropped"]) -> None:
        if traj.stage == "generating":
            del self._running[traj.engine][traj.id]
            self.rebalance.over(traj)
            self.placement.turn_lost(traj)
        self._wait_for(traj, None)
        traj.stage = stage
        self.placement.gone(traj)

    def fail_hopeless(self) -> bool:
        """Fail the turns that `advance` found too large for every engine that is left; whether there were any."""
        if not self._hopeless:
            return False
        found, self._hopeless = self._hopeless, []
        for traj, problem in found:
            if traj.stage == "waiting":  # else it was dropped with the group of one before it
                self._failed(traj, problem)
        return True

    # --- people

    def raise_up(self, traj: Trajectory, raised: bool) -> None:
        """Its turns are looked at before all others, from now on; not `raised`: no longer."""
        traj.raised = raised
        if traj.stage == "waiting":
            self._queue(traj, None)

    def cancel(self, traj: Trajectory, reason: str) -> None:
        """End it as failed."""
        self._failed(traj, reason)

    # --- engines

    def advance(self) -> None:
        """Place waiting turns, earliest batch first, until nobody has room."""
        for traj in self.waiting.impatient(self.out.now - self.max_wait_s):
            traj.patient = False
            self._queue(traj, None)
        freed, blocked = self.placement.index.freed, False
        for slot in self.waiting.slots():
            if slot == SPARE_SLOT and self.waiting.any_before(slot):
                blocked = True
                break
            lanes = self.waiting.lanes(slot, freed)
            while lanes:
                lane = min(lanes, key=Lane.first)
                if not self._place_head(lane):
                    if lane.target is None:  # later turns in other lanes must not take what it waits for
                        blocked = True
                        break
                    lanes.remove(lane)
                elif lane.head() is None:
                    lanes.remove(lane)
        if not blocked:
            freed.clear()
        self.rebalance.advance()

    def _place_head(self, lane: Lane) -> bool:
        """Take the lane's head out: to an engine, or to another lane. False: it has to stay where it is."""
        _, ticket, traj = lane.first()
        asked = (ticket, self.placement.index.changes, self.fleet.losses)
        if lane.refused == asked:
            return False
        floor = self._floor(traj.group)
        decision = self.placement.decide(traj, floor)
        if decision is None:
            if lane.target is None:
                if problem := self.placement.too_large(traj):
                    self._hopeless.append((traj, problem))  # it would wait for ever, and all others behind it
                    traj.ticket = 0  # out of its lane
                    return True
                lane.refused = asked
                return False
            if self.placement.serves(lane.target, traj, floor):
                return False
            self._queue(traj, None)
        elif decision.wait_for is None:
            self._generate(traj, decision.engine)
        elif decision.wait_for == lane.target:
            return False
        elif lane.target is not None and traj.retargets >= RETARGETS:
            traj.patient = False
            return self._place_head(lane)
        else:
            traj.retargets += lane.target is not None
            self._queue(traj, decision.wait_for)
        return True

    def _queue(self, traj: Trajectory, target: Target | None) -> None:
        self._wait_for(traj, target)
        self.waiting.push(traj, target, self.out.now)
        if not self._alarm:
            self._set_alarm()

    def _set_alarm(self) -> None:
        """Make sure that there is an event when the longest wait for a target runs out: `advance` then ends it."""
        since = self.waiting.parked_since()
        self._alarm = since is not None
        if since is not None:
            self.out.after(max(0.0, since + self.max_wait_s - self.out.now) + ALARM_MARGIN_S, self._set_alarm)

    def _wait_for(self, traj: Trajectory, target: Target | None) -> None:
        need = self.placement.need_tokens(traj)
        if traj.waits_for is not None:
            self.placement.queued(traj.waits_for, -need)
        if target is not None:
            self.placement.queued(target, need)
        traj.waits_for = target

    def _generate(self, traj: Trajectory, engine: int) -> None:
        self._wait_for(traj, None)
        traj.patient = True
        self.placement.start(traj, engine, self.out.now)
        traj.stage = "generating"
        self._running.setdefault(engine, {})[traj.id] = traj
        traj.awaited = self.out.put(Generate(self.out.next_seq(), traj.id, engine, traj.max_new_tokens))
        self.rebalance.started(traj)

    def _resume(self, traj: Trajectory) -> None:
        """A turn that had been placed already goes before all others of its slot."""
        traj.stage = "waiting"
        traj.arrival = FIRST
        self.waiting.push(traj)

    def engine_down(self, engine: Engine) -> None:
        """Its running turns start again elsewhere; keyed noise samples the same tokens again under the same weights."""
        for traj in self._running.pop(engine.id, {}).values():
            self.rebalance.over(traj)
            self.placement.turn_lost(traj)
            self._resume(traj)

    def cut(self, engine: Engine) -> None:
        """End its running turns at a token boundary: each comes back with what it has, and goes on elsewhere."""
        for traj in self._running.get(engine.id, {}).values():
            self.out.put(CutTurn(self.out.next_seq(), traj.id, engine.id, traj.awaited))

    def stages(self) -> dict[str, int]:
        """How many trajectories are in each stage."""
        counts: dict[str, int] = {}
        for traj in self._trajectories.values():
            counts[traj.stage] = counts.get(traj.stage, 0) + 1
        return counts
