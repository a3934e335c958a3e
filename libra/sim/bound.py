"""How fast the same work could be done at best: two lower bounds of a makespan, whatever the decisions.

    work      device-seconds that the tokens need in the best case, over the devices of all engines
    longest   the longest trajectory alone, tools included, on the engine that is fastest for it

Best case of a sampled token: its own KV read once, and its share of the weights. Weights are read once a step, shared by at
most `max_batch` rows, and by rows that together hold at most the engine's room: the share is at least W / rows, and at least
W x context / room (each alone gives a bound; the larger total counts). Of several shapes the kindest figure counts. Prefill is
charged once a token, on the shape that needs the fewest device-seconds for it. Neither ramp-down nor waiting is in it, so no
schedule reaches it; a pre-emption or a lost prefix only adds to it.
"""

from collections.abc import Sequence

from libra.config.schema import BucketConfig, CostConfig
from libra.core.cost import EngineCost
from libra.workload.trace import TraceTrajectory


class Bound:
    """Adds up trajectories. `engines` and `buckets` belong together; KV room is filled in."""

    def __init__(self, cost: CostConfig, engines: Sequence[EngineCost], buckets: Sequence[BucketConfig]) -> None:
        tuning, hardware, model = cost.hardware.engine, cost.hardware, cost.model
        bandwidth = hardware.memory_bytes_per_s * tuning.bandwidth_efficiency
        self._shapes = [engine for i, engine in enumerate(engines) if engine not in engines[:i]]
        self._devices = sum(b.tp * b.engines for b in buckets)
        self._kv_s = min(engine.kv_bytes_per_token for engine in engines) / bandwidth
        weights_s = model.active * model.weight_bytes / bandwidth
        self._row_share_s = weights_s / max(b.max_batch for b in buckets)
        self._room_share_s = weights_s / max(b.kv_tokens for b in buckets)
        self._host_s = tuning.row_s * min(b.tp for b in buckets)
        self._compute_s = 2.0 * model.active / (hardware.flops * tuning.flops_efficiency)
        self._prefill_s = 0.0
        self._tokens = 0
        self._contexts = 0.0
        """Sum, over all sampled tokens, of the context before each."""
        self.longest_s = 0.0

    def add(self, trajectory: TraceTrajectory) -> None:
        shapes = self._shapes
        alone = [0.0] * len(shapes)
        context, cached = trajectory.prompt_tokens, 0
        for turn in trajectory.turns:
            n = turn.sampled_tokens
            prefills = [shape.prefill_s(context - cached, cached) for shape in shapes]
            self._prefill_s += min(s * shape.tp for s, shape in zip(prefills, shapes, strict=True))
            for i, shape in enumerate(shapes):
                alone[i] += prefills[i] + shape.decode_s(n, 1, context)
            self._tokens += n
            self._contexts += n * context + n * (n - 1) / 2
            cached = context + n
            context = cached + turn.observed_tokens
        self.longest_s = max(self.longest_s, min(alone) + trajectory.tool_s)

    @property
    def work_s(self) -> float:
        """Seconds of all devices together."""
        read = self._contexts * self._kv_s
        memory = read + max(self._tokens * self._row_share_s, self._contexts * self._room_share_s)
        decode = max(memory, self._tokens * self._compute_s) + self._tokens * self._host_s
        return (decode + self._prefill_s) / self._devices
