"""What would come of an order: the next batches simulated from the live state, once with it and once without.

    LiveState ──> config, who does what, who is under way, how the last ones went ──> Simulation, twice ──> Price
    python -m libra.sim.whatif:   length-prefixed msgpack, Question in, Price out, until stdin ends

Both runs drive the live job's core, meet the same trajectories, and are alike up to the order: those under way go on from where
they stand with what is left of one that went on from there; new ones do what one of the last to end did. The order is given as
a person would, so the move itself is simulated too. Engines are as slow, against their cost model, as they were observed.
Deterministic. Where the job has no cost model, or too little has ended, both stages' observed seconds are scaled by their ranks
instead, and `notes` says so. Used by the dashboard, in a process of its own.
"""

import random
import struct
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

import msgspec
from msgspec import structs

from libra.config.schema import Config, EvalConfig, TruthConfig
from libra.config.worlds import WorkloadConfig
from libra.control.price import Price, Question
from libra.control.state import Ended, LiveState
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.fleet import Fleet
from libra.core.orders import Allocate, Arrange, MoveRanks, Order
from libra.errors import LibraError
from libra.sim.plan import plan
from libra.sim.shell import Simulation
from libra.workload.trace import TraceTrajectory, TraceTurn
from libra.workload.truth import Truth

LEAST_ENDED = 16
"""Trajectories that must have ended for the next ones to be drawn from them."""
SETTLE = 3
"""Batches after the first before the order is given, beyond the lag."""
BATCHES = 8
"""Batches after the order, at most; fewer where they are large."""
LEAST_BATCHES = 3
TURNS_A_SECOND = 2500
"""That a simulation gets through on one core, about: how many batches fit into a budget."""
MOST_QUESTION_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


class Resumed:
    """The trajectories of a live state: first those under way, then more like the last ones."""

    def __init__(self, state: LiveState, samples: int, room_tokens: int, seed: int) -> None:
        self._ended = [TraceTrajectory("ended", i, "", x.prompt_tokens, _turns(x)) for i, x in enumerate(state.ended)]
        self._samples = samples
        self._seed = seed
        draw = random.Random(f"{seed}/whatif")
        self._under_way = [self._rest(u.turns, u.context_tokens, room_tokens, draw) for u in state.under_way]
        everything = [*self._ended, *self._under_way]
        self.max_sampled_tokens = max(t.sampled_tokens for t in everything)
        self.max_context_tokens = max(t.context_tokens for t in everything)

    def _rest(self, turns: int, context_tokens: int, room_tokens: int, draw: random.Random) -> TraceTrajectory:
        """What one that has come so far still does: what one of the last did from there on, as far as it fits."""
        longer = [t for t in self._ended if len(t.turns) > turns] or [max(self._ended, key=lambda t: len(t.turns))]
        like = draw.choice(longer)
        rest: list[TraceTurn] = []
        context = max(1, context_tokens)
        for turn in like.turns[min(turns, len(like.turns) - 1) :]:
            grown = context + turn.sampled_tokens + turn.observed_tokens
            if rest and grown > room_tokens:
                break
            rest.append(turn)
            context = grown
        rest[-1] = structs.replace(rest[-1], tool="", observed_tokens=0)
        return TraceTrajectory("under way", 0, "", max(1, context_tokens), tuple(rest))

    def trajectory(self, kind: c.Kind, prompt: int, sample: int, step: int) -> TraceTrajectory:
        index = prompt * self._samples + sample
        if index < len(self._under_way):
            return self._under_way[index]
        return random.Random(f"{self._seed}/{prompt}/{sample}").choice(self._ended)

    def require_room(self, room_tokens: int) -> None:
        """They have run on this very job."""


def _turns(ended: Ended) -> tuple[TraceTurn, ...]:
    """As a trace has them: only the last turn may be without a tool."""
    last = len(ended.turns) - 1
    return tuple(
        TraceTurn(x.sampled_tokens, x.tool or ("" if i == last else "tool"), x.tool_s, x.status, x.observed_tokens)
        for i, x in enumerate(ended.turns)
    )


def price(state: LiveState, orders: tuple[Order, ...], budget_s: float = 2.0) -> Price:
    """What the orders, given one right after the other, would lead to."""
    began = time.perf_counter()
    config = msgspec.json.decode(state.config, type=Config)
    try:
        priced = _simulated(config, state, orders, budget_s)
    except _NoSimulation as x:
        priced = _scaled(config, state, orders, str(x))
    return structs.replace(priced, seconds=round(time.perf_counter() - began, 3))


class _NoSimulation(Exception):
    """Why there can be none."""


# --- simulated


class _Run:
    """One simulation that gives orders after given batches and notes when batches end."""

    def __init__(self, simulation: Simulation, layout: tuple[Order, ...], orders: tuple[Order, ...], at: int) -> None:
        self.simulation = simulation
        self.consumed: list[float] = []
        self.ordered = 0.0
        self.settled = 0.0
        """When the last move after the orders was over."""
        self.answers: dict[str, c.AnswerOrder] = {}
        self._layout, self._orders, self._at = layout, orders, at

    def watch(self, event: e.AnyEvent, commands: Sequence[c.Command]) -> None:
        for command in commands:
            match command:
                case c.BatchConsumed():
                    self.consumed.append(event.t)
                    if len(self.consumed) == 1:
                        self._give("layout", self._layout, event.t)
                    if len(self.consumed) == self._at:
                        self.ordered = self.settled = event.t
                        self._give("draft", self._orders, event.t)
                case c.MoveChanged(stage="ready" | "failed") if self.ordered:
                    self.settled = event.t
                case c.AnswerOrder(id=id):
                    self.answers[id] = command
                case _:
                    pass

    def _give(self, name: str, orders: tuple[Order, ...], now: float) -> None:
        for i, order in enumerate(orders):
            self.simulation.tell(e.OrderGiven(now, f"{name}-{i}", "what-if", None, order))

    def refused(self, name: str) -> str:
        return next((a.reason for id, a in self.answers.items() if id.startswith(name) and not a.accepted), "")

    @property
    def balance(self) -> tuple[float | None, float | None]:
        balance = self.simulation.core.elastic.balance
        return balance.train_s, balance.rollout_s


def _simulated(config: Config, state: LiveState, orders: tuple[Order, ...], budget_s: float) -> Price:
    if config.cost is None:
        raise _NoSimulation("this job has no cost model ([cost])")
    if len(state.ended) < LEAST_ENDED:
        raise _NoSimulation(f"only {len(state.ended)} trajectories have ended, {LEAST_ENDED} are needed")
    at = 1 + SETTLE + config.max_lag
    rollout = config.rollout
    turns = sum(len(x.turns) for x in state.ended) / len(state.ended)
    batch_turns = turns * rollout.groups_per_batch * rollout.samples_per_group
    fit = int(budget_s * TURNS_A_SECOND / 2 / batch_turns) - at
    batches = max(LEAST_BATCHES, min(BATCHES, fit))
    bare = structs.replace(
        config,
        run=structs.replace(config.run, steps=at + batches),
        env=WorkloadConfig(turn_tokens=_turn_tokens(config)),
        eval=EvalConfig(tasks=0),
        elastic=structs.replace(config.elastic, rule="off"),
        scheduler=structs.replace(config.scheduler, tree_from=""),
        truth=TruthConfig(),
    )
    factors = list(state.factors.values())
    slowdown = sum(factors) / len(factors) if factors else 1.0
    try:
        prepared = plan(bare)
    except LibraError as x:
        raise _NoSimulation(f"it cannot be simulated: {x}") from x
    room = max(b.kv_tokens for b in prepared.config.bucket)
    source = Resumed(state, rollout.samples_per_group, room, config.run.seed)
    prepared = structs.replace(prepared, source=source, truth=Truth(TruthConfig(slowdown=max(0.01, slowdown))))
    layout = _layout(prepared.config, state)
    runs: list[_Run] = []
    for given in ((), orders):
        run = _Run(Simulation(prepared), layout, given, at)
        run.simulation.watch(run.watch)
        run.simulation.run()
        runs.append(run)
    control, drafted = runs
    if refused := control.refused("layout"):
        raise _NoSimulation(f"the present allocation could not be set up: {refused}")
    if refused := drafted.refused("draft"):
        return Price(False, refused)
    notes: list[str] = []
    after = [i for i, t in enumerate(drafted.consumed) if i >= at and t >= drafted.settled]
    if len(after) < 2:
        notes.append(f"the move takes longer than the {batches} batches that were simulated")
        after = list(range(at, at + batches))
    first = after[0] - 1
    ratio = (control.consumed[-1] - control.consumed[first]) / (drafted.consumed[-1] - drafted.consumed[first])
    if batches < BATCHES:
        notes.append(f"only {batches} batches were simulated")
    train_s, rollout_s = drafted.balance
    return Price(
        True, "", round(ratio, 4), _round(train_s), _round(rollout_s), round(drafted.settled - drafted.ordered, 2), tuple(notes)
    )  # fmt: skip


def _turn_tokens(config: Config) -> int:
    env = config.env
    return env.turn_tokens if isinstance(env, WorkloadConfig) else WorkloadConfig().turn_tokens


def _layout(config: Config, state: LiveState) -> tuple[Order, ...]:
    """The orders that lead from where a run of `config` begins to who does what now."""
    begins = {(unit.bucket, unit.ranks) for unit in Fleet(config).units()}
    moves: list[MoveRanks] = []
    for unit in state.units:
        if (unit.bucket, unit.ranks) not in begins:
            to_rollout = unit.bucket >= 0
            name = config.bucket[unit.bucket].name if to_rollout else ""
            moves.append(MoveRanks(unit.ranks, "rollout" if to_rollout else "gradient", name))
    if state.spare:
        moves.append(MoveRanks(state.spare, "spare"))
    return (Arrange(tuple(moves)),) if moves else ()


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# --- by the ranks alone


def _scaled(config: Config, state: LiveState, orders: tuple[Order, ...], why: str) -> Price:
    """Seconds of a stage go as one over its ranks: the rule's own formula (`libra.core.balance`)."""
    note = f"a guess by the number of ranks alone, for {why}; ranks that share a machine's cores gain less"
    core = len(Core(config).fleet.trainers)
    now = {"rollout": 0, "gradient": 0}
    for unit in state.units:
        now["gradient" if unit.bucket < 0 else "rollout"] += len(unit.ranks)
    then = dict(now)
    of = {rank: "gradient" if unit.bucket < 0 else "rollout" for unit in state.units for rank in unit.ranks}
    for move in _moves(orders):
        match move:
            case Allocate(rollout=rollout, gradient=gradient):
                whole = then["rollout"] + then["gradient"]
                then["gradient"] = gradient if gradient is not None else whole - (rollout or 0)
                then["rollout"] = whole - then["gradient"]
            case MoveRanks(ranks=ranks, to=to):
                for rank in ranks:
                    if rank in of:
                        then[of.pop(rank)] -= 1
                    if to != "spare":
                        of[rank] = to
                        then[to] += 1
    if state.train_s is None or state.rollout_s is None or then["rollout"] <= 0:
        return Price(True, notes=(note, "no batch has been consumed yet"))
    train_s = state.train_s * (core + now["gradient"]) / (core + then["gradient"])
    rollout_s = state.rollout_s * now["rollout"] / then["rollout"]
    ratio = max(state.train_s, state.rollout_s) / max(train_s, rollout_s)
    return Price(True, "", round(ratio, 4), round(train_s, 4), round(rollout_s, 4), None, (note,))


def _moves(orders: tuple[Order, ...]) -> list[Allocate | MoveRanks]:
    found: list[Allocate | MoveRanks] = []
    for order in orders:
        if isinstance(order, Arrange):
            found += order.moves
        elif isinstance(order, Allocate | MoveRanks):
            found.append(order)
    return found


# --- a worker


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more questions."""
    decode = msgspec.msgpack.Decoder(Question).decode
    while head := questions.read(_LENGTH.size):
        (length,) = _LENGTH.unpack(head)
        if length > MOST_QUESTION_BYTES:
            raise LibraError(f"got a question of {length} bytes, expected at most {MOST_QUESTION_BYTES}")
        question = decode(questions.read(length))
        body = msgspec.msgpack.encode(price(question.state, question.orders, question.budget_s))
        answers.write(_LENGTH.pack(len(body)) + body)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
