"""How fast the same work could be done at best: two lower bounds of a makespan, whatever the decisions.

    longest   the longest trajectory alone, tools included, on the engine that is fastest for it
    work      all tokens shared freely among the engines that there are, every engine busy to the end at its best

The best that an engine of shape s can do for a trajectory, c_s in its own seconds: the arithmetic of prefilling every given
token once; its own KV read once a sampled token; host time a row; and its share of what a step costs anyway (weights, first
all-reduce), which is shared by at most `max_batch` rows, and by rows that together hold at most the engine's room: 1 / rows
of it, or context / room (for each shape the one of the two that totals more). Where arithmetic totals more than reading, it
counts instead.

With x_js the part of trajectory j done on shape s, the least T with sum_j c_js x_js <= T engines_s is a linear programme.
For any prices p with sum_s p_s engines_s = 1 its dual gives T >= sum_j min_s p_s c_js: prices are raised where work piles up,
and the best bound found counts (all are valid). No ramp-down, waiting or tool is in it, so no schedule reaches it.
"""

import heapq
from collections.abc import Sequence

from libra.config.schema import BucketConfig, CostConfig
from libra.core.cost import EngineCost
from libra.core.cost.allreduce import allreduce_s
from libra.core.cost.engine import ACTIVATION_BYTES, ALLREDUCES_PER_LAYER
from libra.workload.trace import TraceTrajectory

PRICE_ROUNDS = 60
"""Corrections of the prices; the bound changes by less than 1 % after about 30."""
PRICE_STEP = 0.5
"""How strongly the first correction answers to an uneven load; later ones fade as 1 / sqrt(round)."""
CANDIDATES = 32
"""Trajectories whose time alone is computed exactly at the end."""


class _Shape:
    """One engine shape: constants of the best case."""

    def __init__(self, cost: CostConfig, engine: EngineCost, buckets: Sequence[BucketConfig]) -> None:
        tuning, hardware, model = cost.hardware.engine, cost.hardware, cost.model
        self.engine = engine
        self.engines = sum(b.engines for b in buckets)
        bandwidth = engine.tp * hardware.memory_bytes_per_s * tuning.bandwidth_efficiency
        links_s = (
            ALLREDUCES_PER_LAYER * model.layers * allreduce_s(hardware, engine.tp, model.hidden * ACTIVATION_BYTES)
        )
        step_s = model.active * model.weight_bytes / bandwidth + links_s + tuning.fixed_s
        self.kv_s = engine.kv_bytes_per_token / bandwidth
        self.by_rows_s = step_s / max(b.max_batch for b in buckets)
        self.by_room_s = step_s / max(b.kv_tokens for b in buckets)
        self.host_s = tuning.row_s
        flops = engine.tp * hardware.flops * tuning.flops_efficiency
        self.compute_s = 2.0 * model.active / flops
        self.square_s = 2.0 * model.layers * model.attention_width / flops
        """Of prefill, for each unit by which it makes the square of the context grow."""
        self.alone_s = engine.step_s(1, 0)
        """A step of one row, beside its KV."""


class Bound:
    """Adds up trajectories. `engines` and `buckets` belong together; KV room is filled in."""

    def __init__(self, cost: CostConfig, engines: Sequence[EngineCost], buckets: Sequence[BucketConfig]) -> None:
        by_tp: dict[int, list[BucketConfig]] = {}
        for bucket in buckets:
            by_tp.setdefault(bucket.tp, []).append(bucket)
        cost_of = {engine.tp: engine for engine in engines}
        self._shapes = [_Shape(cost, cost_of[tp], group) for tp, group in by_tp.items()]
        self._tokens: list[int] = []
        self._contexts: list[int] = []
        """Of each trajectory: the sum, over its sampled tokens, of the context before each."""
        self._given: list[int] = []
        """Of each trajectory: tokens to prefill, and by how much they make the square of the context grow."""
        self._squares: list[int] = []
        self._longest: list[tuple[float, int, TraceTrajectory]] = []
        """A heap of the trajectories that take longest alone, by an estimate from below."""

    def add(self, trajectory: TraceTrajectory) -> None:
        """Cheap, since every trajectory of a run comes by."""
        context, cached, tokens, contexts, given, squares, tool_s = trajectory.prompt_tokens, 0, 0, 0, 0, 0, 0.0
        for turn in trajectory.turns:
            n = turn.sampled_tokens
            given += context - cached
            squares += context * context - cached * cached
            tokens += n
            contexts += n * context + n * (n - 1) // 2
            cached = context + n
            context = cached + turn.observed_tokens
            tool_s += turn.tool_s
        self._tokens.append(tokens)
        self._contexts.append(contexts)
        self._given.append(given)
        self._squares.append(squares)
        alone_s = tool_s + min(
            tokens * s.alone_s + contexts * s.kv_s + given * s.compute_s + squares * s.square_s for s in self._shapes
        )
        keep = heapq.heappush if len(self._longest) < CANDIDATES else heapq.heappushpop
        keep(self._longest, (alone_s, len(self._tokens), trajectory))

    def longest_s(self) -> float:
        """Seconds of the trajectory that takes longest alone."""
        return max((self._alone_s(t) for _, _, t in self._longest), default=0.0)

    def _alone_s(self, trajectory: TraceTrajectory) -> float:
        best = float("inf")
        for shape in self._shapes:
            seconds, context, cached = trajectory.tool_s, trajectory.prompt_tokens, 0
            for turn in trajectory.turns:
                seconds += shape.engine.prefill_s(context - cached, cached)
                seconds += shape.engine.decode_s(turn.sampled_tokens, 1, context)
                cached = context + turn.sampled_tokens
                context = cached + turn.observed_tokens
            best = min(best, seconds)
        return best

    def work_s(self) -> float:
        """Seconds until all work is done in the best case."""
        columns = [self._column(shape) for shape in self._shapes]
        rows = list(zip(*columns, strict=True))
        prices = [float(s.engine.tp) for s in self._shapes]
        best = 0.0
        for turn in range(1, PRICE_ROUNDS + 1):
            whole = sum(p * s.engines for p, s in zip(prices, self._shapes, strict=True))
            prices = [p / whole for p in prices]
            total, loads = 0.0, [0.0] * len(prices)
            for row in rows:
                paid, i = min((p * c, i) for i, (p, c) in enumerate(zip(prices, row, strict=True)))
                total += paid
                loads[i] += row[i]
            best = max(best, total)
            busy = [load / s.engines for load, s in zip(loads, self._shapes, strict=True)]
            mean = sum(busy) / len(busy)
            if mean == 0 or len(prices) == 1:
                break
            strength = PRICE_STEP / turn**0.5
            prices = [p * (1 + strength) ** (b / mean - 1) for p, b in zip(prices, busy, strict=True)]
        return best

    def _column(self, shape: _Shape) -> list[float]:
        """Best-case seconds of every trajectory on this shape."""
        room_counts = shape.by_room_s * sum(self._contexts) > shape.by_rows_s * sum(self._tokens)
        by_row, by_context = (0.0, shape.by_room_s) if room_counts else (shape.by_rows_s, 0.0)
        read = [n * by_row + c * (by_context + shape.kv_s) for n, c in zip(self._tokens, self._contexts, strict=True)]
        if shape.compute_s * sum(self._tokens) > sum(read):
            read = [n * shape.compute_s for n in self._tokens]
        work = zip(self._tokens, read, self._given, self._squares, strict=True)
        return [n * shape.host_s + r + g * shape.compute_s + q * shape.square_s for n, r, g, q in work]
