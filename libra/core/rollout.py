"""Episodes: opened, sampled turn by turn on engines, acted on, ended. Knows nothing of training.

The coordinator opens groups; this room moves their trajectories. `advance` places waiting turns wherever there is room: it is
called after every event, so an engine that becomes free or newer is used at once.
"""

from collections.abc import Callable

from libra.config.schema import RolloutConfig
from libra.core.commands import Act, Discard, Generate, Kind, OpenTrajectory
from libra.core.events import EpisodeEnded, ToolReturned, TrajectoryFailed, TurnGenerated, TurnReady
from libra.core.fleet import Engine, Fleet
from libra.core.outbox import Outbox
from libra.core.scheduler import EngineLoad, Policy, TurnView
from libra.core.trajectory import Group, Trajectory
from libra.core.waiting import WaitingTurns


class Rollout:
    """`floor(group)` is the oldest version that may sample for a group; `group_done(group)` is called once for each."""

    def __init__(
        self,
        fleet: Fleet,
        out: Outbox,
        config: RolloutConfig,
        policy: Policy,
        floor: Callable[[Group], int],
        group_done: Callable[[Group], None],
    ) -> None:
        self.fleet = fleet
        self.out = out
        self.retries = config.retries
        self.policy = policy
        self.waiting = WaitingTurns()
        self.open_groups = 0
        """Groups that are not complete yet."""
        self.failed = 0
        self._trajectories: dict[int, Trajectory] = {}
        self._running: dict[int, dict[int, Trajectory]] = {e.id: {} for e in fleet.engines}
        self._next_traj = 0
        self._next_group = 0
        self._floor = floor
        self._group_done = group_done

    # --- groups

    def open_group(self, kind: Kind, slot: int, prompt: int, samples: int) -> Group:
        group = Group(self._next_group, kind, slot, prompt)
        self._next_group += 1
        self.open_groups += 1
        for sample in range(samples):
            group.members.append(self._open(group, sample, 0))
        return group

    def _open(self, group: Group, sample: int, attempt: int) -> Trajectory:
        id = self._next_traj
        self._next_traj += 1
        seq = self.out.put(OpenTrajectory(self.out.next_seq(), id, group.kind, group.prompt, sample, attempt))
        traj = Trajectory(id, group, sample, attempt, seq)
        self._trajectories[id] = traj
        return traj

    def drop(self, group: Group) -> None:
        """The group will not train: give up what is still on its way, forget all of it, and count it complete."""
        if group.complete:
            return
        group.spoilt = True
        for member in group.members:
            if member.live:
                self._leave_engine(member)
                member.stage = "dropped"
        self.discard([m.id for m in group.members])
        self._finish_group(group)

    def discard(self, ids: list[int]) -> None:
        """Forget these trajectories, here and in the shell."""
        if ids:
            self.out.put(Discard(self.out.next_seq(), tuple(ids)))
            for id in ids:
                del self._trajectories[id]

    def _finish_group(self, group: Group) -> None:
        self.open_groups -= 1
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
            self._next_turn(traj, e.context_tokens, e.max_new_tokens)

    def _next_turn(self, traj: Trajectory, context_tokens: int, max_new_tokens: int) -> None:
        traj.context_tokens = context_tokens
        traj.max_new_tokens = max_new_tokens
        if max_new_tokens <= 0:  # the environment's limits are reached: it closes the episode
            self._act(traj)
            return
        need = context_tokens + max_new_tokens
        room = max(e.load.kv_tokens for e in self.fleet.engines)
        if need > room:
            self._failed(traj, f"its turn needs {need} tokens of KV room, the largest engine has {room}")
            return
        traj.stage = "waiting"
        self.waiting.push(traj)

    def turn_generated(self, e: TurnGenerated) -> None:
        traj = self._awaited(e.traj, e.cmd)
        if traj is None:
            return
        self._leave_engine(traj)
        traj.sampled(e.tokens, e.oldest)
        if e.finish == "cut" and traj.max_new_tokens > 0:
            traj.stage = "waiting"
            self.waiting.push(traj, front=True)
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
        traj.loss_tokens = e.loss_tokens
        traj.total_tokens = e.total_tokens
        if traj.group.complete:
            self._finish_group(traj.group)

    def trajectory_failed(self, e: TrajectoryFailed) -> None:
        traj = self._awaited(e.traj, e.cmd)
        if traj is not None:
            self._failed(traj, e.reason)

    def _failed(self, traj: Trajectory, reason: str) -> None:
        """Infrastructure broke under it: a fresh attempt, or the end of its group."""
        self.failed += 1
        traj.stage = "failed"
        group = traj.group
        if traj.attempt < self.retries:
            group.members[traj.sample] = self._open(group, traj.sample, traj.attempt + 1)
            self.discard([traj.id])
            return
        self.out.report(
            "warning",
            f"group {group.id} (prompt {group.prompt}) is dropped: sample {traj.sample} failed"
            f" {traj.attempt + 1} times, last: {reason}",
        )
        self.drop(group)

    # --- engines

    def advance(self) -> None:
        """Place waiting turns, earliest batch first, until nobody has room."""
        up = [e for e in self.fleet.engines if e.load.up]
        for queue in self.waiting.heads():
            floor = self._floor(queue[0].group)
            loads = [e.load for e in up if e.load.version >= floor]
            while queue and loads:
                traj = queue[0]
                if traj.stage != "waiting":
                    queue.popleft()
                    continue
                need = traj.context_tokens + traj.max_new_tokens
                fitting = [load for load in loads if load.fits(need)]
                if not fitting:
                    break
                queue.popleft()
                turn = TurnView(traj.id, traj.context_tokens, traj.max_new_tokens, traj.engine)
                self._generate(traj, fitting[self.policy.choose(turn, fitting)])

    def _generate(self, traj: Trajectory, load: EngineLoad) -> None:
        traj.reserved = (traj.context_tokens, traj.max_new_tokens)
        load.reserve(*traj.reserved)
        traj.stage = "generating"
        traj.engine = load.id
        self._running[load.id][traj.id] = traj
        traj.awaited = self.out.put(Generate(self.out.next_seq(), traj.id, load.id, traj.max_new_tokens))

    def _leave_engine(self, traj: Trajectory) -> None:
        if traj.stage == "generating":
            self.fleet.engines[traj.engine].load.release(*traj.reserved)
            del self._running[traj.engine][traj.id]

    def engine_down(self, engine: Engine) -> None:
        """Its running turns start again elsewhere; keyed noise samples the same tokens again under the same weights."""
        running = list(self._running[engine.id].values())
        for traj in reversed(running):
            self._leave_engine(traj)
            traj.stage = "waiting"
            self.waiting.push(traj, front=True)
        for traj in self._trajectories.values():
            if traj.engine == engine.id:
                traj.engine = -1

    def stages(self) -> dict[str, int]:
        """How many trajectories are in each stage."""
        counts: dict[str, int] = {}
        for traj in self._trajectories.values():
            counts[traj.stage] = counts.get(traj.stage, 0) + 1
        return counts
