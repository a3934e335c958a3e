"""Between the trajectories and the policies: what a turn needs, where its prefix lies, what its trajectory may still need.

    rollout ── decide(turn) ──> index: what may take it ──> policy: which of these, or wait ──> Decision
       │  start, turn_over, turn_lost ──> room, seats, prefix, correction
       └─ opened, tool_returned, ended, gone ──> causality tree
    an engine's own counters ── reported ──> how much of a prefix is still there when its turn comes back

Whatever the policy, room is checked here: a turn is offered only engines that are up, new enough, and have a free place and
KV room for it. Held-out tasks ask the tree but do not teach it; their prompts are no training prompts. The tree is asked at
most once a tool return. Called by `rollout`, and by the coordinator for what engines report.
"""

from dataclasses import dataclass
from math import ceil

from libra.config.schema import Config, SchedulerConfig
from libra.core.causality import CausalityTree, Residual, TreeConfig, restore, save
from libra.core.causality.forecast import Source
from libra.core.cost.correction import Correction
from libra.core.cost.reuse import Reuse
from libra.core.events import EngineReported, ToolReturned
from libra.core.fleet import Engine, Fleet
from libra.core.learned import Learned
from libra.core.scheduler import PAPERS, make
from libra.core.scheduler.index import EngineIndex
from libra.core.scheduler.load import NOTHING, EngineLoad, RoomTaken
from libra.core.scheduler.policy import Decision, Forecast, Foresight, Target, TurnView
from libra.core.scheduler.seats import Seats
from libra.core.scheduler.shape import Shape, shapes_of
from libra.core.signal import SizeClasses, signal_of
from libra.core.trajectory import Trajectory
from libra.errors import CoreError

TURN_RATE = 0.01
"""Weight of the newest turn in a bucket's mean turn length."""


def tree_config(scheduler: SchedulerConfig) -> TreeConfig:
    """The tree that a policy learns."""
    decay = 1.0 if scheduler.policy in PAPERS else scheduler.tree.decay
    return TreeConfig(decay=decay, pseudo_count=scheduler.tree.pseudo_count, max_nodes=scheduler.tree.max_nodes)


@dataclass(slots=True)
class Route:
    """What is remembered of a live trajectory between its turns, and of its running turn."""

    forecast: Forecast | None = None
    """Asked since the last tool return; None: not yet."""
    told_tokens: int = 0
    """Sampled tokens at the last tool return."""
    cached_tokens: int = 0
    generation: int = -1
    """The prefix on its last engine, good while the engine is of this generation."""
    taken: RoomTaken = NOTHING
    began: float = 0.0
    prefill_s: float = 0.0
    step_s: float = 0.0
    """Of the running turn: when it was sent, and its uncorrected prediction."""


class Placement:
    """`learned` is what an earlier core knew; its tree must be of this configuration."""

    def __init__(
        self, config: Config, fleet: Fleet, foresight: Foresight | None = None, learned: Learned | None = None
    ) -> None:
        scheduler = config.scheduler
        self.fleet = fleet
        self.shapes: list[Shape] = shapes_of(config)
        self.tree = CausalityTree(tree_config(scheduler)) if learned is None else restore(learned.tree)
        if self.tree.config != tree_config(scheduler):
            raise CoreError(f"got a tree of {self.tree.config}, expected {tree_config(scheduler)}: carry it over first")
        self.seats = Seats()
        self.policy = make(scheduler, self.shapes, self.tree, self.seats, foresight)
        self.correction = Correction(kinds=learned.kinds if learned else None)
        """Observed against predicted seconds of turns, by bucket name."""
        self.decisions: dict[int, Decision] = {}
        """The last decision about each live trajectory."""
        self.decided: list[tuple[int, Decision]] = []
        """(trajectory, decision) since the core was last told something: where a turn goes, or what it begins to wait for."""
        self.index = EngineIndex((), len(self.shapes))
        for engine in fleet.engines.values():
            self.index.add(engine.load)
        self._sizes = SizeClasses(small_tokens=scheduler.small_tokens, medium_tokens=scheduler.medium_tokens)
        self._family = scheduler.family or str(config.env.__struct_config__.tag)
        self._reserve_share = scheduler.reserve_share
        self._routes: dict[int, Route] = {}
        if learned is not None:
            self.policy.recall(learned.memory)
            for shape in self.shapes:
                shape.factor = self.correction.factor(shape.name)
                shape.reuse = learned.reuse.get(shape.name, Reuse()).copy()
                shape.turn_tokens = learned.turn_tokens.get(shape.name, shape.turn_tokens)

    def learned(self) -> Learned:
        """A snapshot of what is known; nothing here changes by it."""
        return Learned(
            tree=save(self.tree),
            kinds=self.correction.kinds(),
            turn_tokens={shape.name: shape.turn_tokens for shape in self.shapes},
            reuse={shape.name: shape.reuse.copy() for shape in self.shapes},
            memory=self.policy.memory(),
        )

    # --- engines

    def engine_added(self, engine: Engine) -> None:
        self.index.add(engine.load)
        self.recount(engine.bucket)

    def engine_removed(self, engine: Engine) -> None:
        """It is gone for good; nothing runs there any more."""
        self.index.remove(engine.load)
        self.shapes[engine.bucket].reuse.gone(engine.id)
        self.seats.removed(engine.id)

    def recount(self, bucket: int) -> None:
        """How many engines the shape has."""
        self.shapes[bucket].engines = sum(e.bucket == bucket for e in self.fleet.engines.values())

    def reported(self, e: EngineReported) -> None:
        """What an engine's own counters say; one that is gone meanwhile says nothing of value."""
        if (engine := self.fleet.engines.get(e.engine)) is not None:
            self.shapes[engine.bucket].reuse.report(engine.id, e.reused_tokens)

    # --- trajectories

    def opened(self, traj: Trajectory) -> None:
        self._routes[traj.id] = Route()
        if traj.group.kind == "train":
            self.tree.start(traj.id, traj.group.prompt, self._family)
        else:
            self.tree.start(traj.id, f"held-out {traj.group.prompt}")

    def tool_returned(self, traj: Trajectory, e: ToolReturned) -> None:
        route = self._routes[traj.id]
        route.forecast = None
        route.told_tokens = traj.sampled_tokens
        signal = signal_of(e.tool, e.observation_tokens, e.status, self._sizes)
        self.tree.advance(traj.id, signal, traj.sampled_tokens, traj.turns, traj.tool_s)

    def ended(self, traj: Trajectory) -> None:
        """By itself: what it needed is learned, as of the newest version that sampled for it."""
        if traj.group.kind == "train":
            version = max(0, traj.newest_version)
            self.tree.finish(traj.id, traj.sampled_tokens, traj.turns, traj.tool_s, version)
            self._forget(traj)
        else:
            self.gone(traj)

    def gone(self, traj: Trajectory) -> None:
        """Failed or dropped: nothing is learned."""
        self.tree.abandon(traj.id)
        self._forget(traj)

    def _forget(self, traj: Trajectory) -> None:
        del self._routes[traj.id]
        self.decisions.pop(traj.id, None)
        self.seats.finish(traj.id)

    def predicted_tokens(self, traj: int) -> int:
        """What the policy took the trajectory to need in all as its last turn began; 0 from policies that do not predict."""
        route = self._routes.get(traj)
        return route.taken.residual_tokens if route is not None else 0

    def residual(self, traj: Trajectory) -> Residual:
        """What the tree says that a live trajectory still needs, in tokens."""
        return self.tree.predict(traj.id, since=traj.sampled_tokens - self._routes[traj.id].told_tokens)

    def sources(self, traj: Trajectory) -> tuple[list[Source], list[str]]:
        """Who speaks for a live trajectory when its residual is predicted, and its signals as `tool/size/status`."""
        since = traj.sampled_tokens - self._routes[traj.id].told_tokens
        sources, signals = self.tree.sources(traj.id, since)
        return sources, [f"{s.tool}/{s.size}/{s.status}" for s in signals]

    def size_of(self, observation_tokens: int) -> str:
        """The payload class of a tool return."""
        return self._sizes.of(observation_tokens)

    # --- decisions

    def lead_s(self, traj: Trajectory) -> float:
        """Seconds that the policy lets the turn count as having come earlier."""
        return self.policy.lead_s(self._forecast(traj))

    def need_tokens(self, traj: Trajectory) -> int:
        """KV room that the turn reserves."""
        return traj.context_tokens + ceil(self._reserve_share * traj.max_new_tokens)

    def too_large(self, traj: Trajectory) -> str:
        """Why no engine that is left can ever hold the turn; "" where one can."""
        whole = traj.context_tokens + traj.max_new_tokens
        if self.index.holds(whole) or self.fleet.can_hold(whole):
            return ""
        return f"its turn needs {whole} tokens of KV room, the largest engine left has {self.fleet.largest_room()}"

    def decide(self, traj: Trajectory, floor: int) -> Decision | None:
        """Where the turn goes, or what it waits for; None where no engine may take it now."""
        need = self.need_tokens(traj)
        last = None if (engine := self.fleet.engines.get(traj.engine)) is None else engine.load
        whole = traj.context_tokens + traj.max_new_tokens
        offer = self.index.offer(need, whole, floor, last)
        if offer is None:
            return None
        cached = self._cached(traj, last, self.shapes[last.bucket].reuse.share) if last is not None else 0
        turn = TurnView(
            traj.id,
            traj.context_tokens,
            traj.max_new_tokens,
            need,
            last,
            cached,
            self._forecast(traj),
            traj.patient,
        )
        decision = self.policy.choose(turn, offer)
        if decision.wait_for is not None and not self.index.serves(decision.wait_for, whole, floor):
            turn.may_wait = False
            decision = self.policy.choose(turn, offer)
        before = self.decisions.get(traj.id)
        self.decisions[traj.id] = decision
        if decision.wait_for is None or before is None or decision.wait_for != before.wait_for:
            self.decided.append((traj.id, decision))
        return decision

    def _cached(self, traj: Trajectory, load: EngineLoad, share: float = 1.0) -> int:
        """Tokens of the context that `load`, the engine of the last turn, should hold, where it kept `share` of the prefix."""
        route = self._routes[traj.id]
        if load.generation != route.generation:
            return 0
        return min(int(route.cached_tokens * share), traj.context_tokens - 1)

    def serves(self, target: Target, traj: Trajectory, floor: int) -> bool:
        """Whether it makes sense for the turn to wait for `target`."""
        return self.index.serves(target, traj.context_tokens + traj.max_new_tokens, floor)

    def queued(self, target: Target, tokens: int) -> None:
        """So much more (less, where negative) KV room is waited for at `target`."""
        bucket = self.fleet.bucket_of(target) if target >= 0 else ~target
        self.shapes[bucket].queued_tokens += tokens

    def _forecast(self, traj: Trajectory) -> Forecast:
        route = self._routes[traj.id]
        if route.forecast is None:
            route.forecast = self.policy.forecast(traj.id, traj.sampled_tokens - route.told_tokens)
        return route.forecast

    def rather_elsewhere(self, traj: Trajectory, floor: int, now: float) -> bool:
        """Whether the running turn of `traj` should be cut, to go on elsewhere. What it holds is brought up to date."""
        route = self._routes[traj.id]
        here = self.fleet.engines[traj.engine].load
        done = self._done(route, here, now)
        context, most = traj.context_tokens + done, traj.max_new_tokens
        forecast = self.policy.forecast(traj.id, traj.sampled_tokens + done - route.told_tokens)
        taken = route.taken
        residual = round(self.policy.residual_tokens(forecast))
        route.taken = RoomTaken(context, max(1, most - done), taken.need_tokens, residual)
        here.renew(taken, route.taken)
        need = context + ceil(self._reserve_share * most)  # at most: `done` is an estimate
        offer = self.index.offer(need, context + most, floor, None)
        if offer is None:
            return False
        turn = TurnView(traj.id, context, most, need, here, context, forecast, False)
        decision = self.policy.rather_elsewhere(turn, offer)
        if decision is not None:
            self.decisions[traj.id] = decision
        return decision is not None

    def _done(self, route: Route, load: EngineLoad, now: float) -> int:
        """Tokens that a running turn has sampled, by the pace of its engine."""
        shape = self.shapes[load.bucket]
        step_s = 0.5 * (route.step_s + shape.costs.step_s(load.running, load.context_tokens))
        return max(0, int(((now - route.began) / shape.factor - route.prefill_s) / step_s))

    # --- running turns

    def start(self, traj: Trajectory, engine: int, now: float) -> None:
        """The turn begins on `engine`, which then holds its prefix."""
        load = self.fleet.engines[engine].load
        route = self._routes[traj.id]
        shape, cached = self.shapes[load.bucket], 0
        if engine == traj.engine:
            shape.reuse.hope(engine, self._cached(traj, load))
            cached = self._cached(traj, load, shape.reuse.share)
        residual = round(self.policy.residual_tokens(self._forecast(traj)))
        route.taken = RoomTaken(traj.context_tokens, traj.max_new_tokens, self.need_tokens(traj), residual)
        load.take(route.taken)
        costs = shape.costs
        route.began = now
        route.prefill_s = costs.prefill_s(traj.context_tokens - cached, cached)
        route.step_s = costs.step_s(load.running, load.context_tokens)
        route.cached_tokens, route.generation = 0, load.generation
        self.seats.reserve(traj.id, engine)
        traj.engine = engine

    def turn_over(self, traj: Trajectory, tokens: int, now: float) -> None:
        """The engine gave `tokens`; `traj` has counted them."""
        load = self.fleet.engines[traj.engine].load
        route = self._routes[traj.id]
        if tokens:
            self._observe(self.shapes[load.bucket], route, tokens, load.running, load.context_tokens, now)
        load.give_back(route.taken)
        self.seats.commit(traj.id)
        route.cached_tokens = traj.context_tokens
        route.forecast = None

    def turn_lost(self, traj: Trajectory) -> None:
        """The engine died, or the turn is given up: the trajectory belongs where it was before."""
        route = self._routes[traj.id]
        self.fleet.engines[traj.engine].load.give_back(route.taken)
        self.seats.rollback(traj.id)
        traj.engine = self.seats.home(traj.id)
        route.cached_tokens, route.generation = 0, -1

    def _observe(self, shape: Shape, route: Route, tokens: int, rows: int, held_tokens: int, now: float) -> None:
        """Against the prediction with the mean of the step at its start and the step at its end: batches change meanwhile."""
        step_s = 0.5 * (route.step_s + shape.costs.step_s(rows, held_tokens))
        if self.correction.observe(shape.name, route.prefill_s + tokens * step_s, now - route.began):
            shape.factor = self.correction.factor(shape.name)
        shape.turn_tokens += TURN_RATE * (tokens - shape.turn_tokens)
