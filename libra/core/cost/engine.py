"""Seconds of one rollout engine: a compiled (hardware, model, TP), cheap enough for every scheduling decision.

    step(B, K)   = max[(weights(B) + K x kv) / (TP x BW x eta_b), 2 x P_active x B / (TP x F x eta_f)]      the devices
                   + 2 x layers x t_allreduce(TP, B x hidden x bytes)                                     the links
                   + fixed + row x B                                                                      the host
    prefill(n|c) = max[(2 P_active n + 2 layers ((c+n)^2 - c^2) width) / (TP x F x eta_f),
                       (weights(n) + (c + n) x kv) / (TP x BW x eta_b)]
                   + 2 x layers x t_allreduce(TP, n x hidden x bytes) + fixed
    capacity     = (TP x (memory x utilisation - workspace) - W) / kv

B rows run with K tokens of context in all; n new tokens follow c cached ones; kv is the KV bytes of one token in the whole
group. Sources: the standard formulas of the roofline of decoding (weights and KV are read once a step), with attention
counted causally. For routed experts weights(B) counts the experts that B rows touch on average, E (1 - (1 - k/E)^B).
Called by scheduler, simulator and planner; nothing here changes after construction.
"""

from math import floor

from libra.config.parts import HardwareConfig, ModelShape
from libra.core.cost.allreduce import allreduce_s
from libra.errors import PreflightError

ALLREDUCES_PER_LAYER = 2
"""One after attention, one after the feed-forward, in a forward pass (Megatron-style tensor parallelism)."""
ACTIVATION_BYTES = 2
"""Bytes of one activation element on the links: bf16."""
TABLED_ROWS = 1024
"""Batches up to this size have the parts that do not depend on context precomputed; larger ones are computed on demand."""


def tp_problems(hardware: HardwareConfig, model: ModelShape, tp: int) -> list[str]:
    """Why an engine of degree `tp` cannot exist, one line a reason: heads, node size."""
    what = f"TP {tp} of {model.name} on {hardware.name}"
    problems: list[str] = []
    if tp < 1:
        return [f"{what}: expected 1 or more"]
    if tp > hardware.devices_per_node:
        problems.append(
            f"{what}: expected at most devices_per_node = {hardware.devices_per_node}; engines stay inside a node"
        )
    if not _heads_divide(model, tp):
        fitting = [k for k in range(1, hardware.devices_per_node + 1) if _heads_divide(model, k)]
        problems.append(
            f"{what}: expected a divisor of heads = {model.heads} that divides kv_heads = {model.kv_heads} or is a multiple of "
            f"it; inside a node: {fitting}"
        )
    return problems


def _heads_divide(model: ModelShape, tp: int) -> bool:
    return model.heads % tp == 0 and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0)


class EngineCost:
    """The cost of one engine shape. Times in seconds, rooms in tokens; see the module for the formulas.

    Raises PreflightError where the engine cannot exist: TP against heads or node, or no room for KV beside the weights.
    """

    __slots__ = (
        "_compute_row_s",
        "_dense_bytes",
        "_expert_bytes",
        "_fixed_s",
        "_host_row_s",
        "_inverse_bandwidth",
        "_inverse_flops",
        "_kv_s",
        "_rows",
        "_untouched",
        "capacity_tokens",
        "hardware",
        "kv_bytes_per_token",
        "model",
        "tp",
        "weights_bytes",
    )

    def __init__(self, hardware: HardwareConfig, model: ModelShape, tp: int) -> None:
        if problems := tp_problems(hardware, model, tp):
            raise PreflightError(problems)
        tuning = hardware.engine
        self.hardware = hardware
        self.model = model
        self.tp = tp
        self.weights_bytes = float(model.parameters * model.weight_bytes)
        """Held once a group."""
        self.kv_bytes_per_token = float(model.kv_bytes_per_token * max(1, tp // model.kv_heads))
        """Of the whole group: beyond one device a KV head, heads are held more than once."""
        self.capacity_tokens = _capacity_tokens(hardware, model, tp, self.weights_bytes, self.kv_bytes_per_token)
        """KV room, in tokens."""
        self._inverse_bandwidth = 1.0 / (tp * hardware.memory_bytes_per_s * tuning.bandwidth_efficiency)
        self._inverse_flops = 1.0 / (tp * hardware.flops * tuning.flops_efficiency)
        self._kv_s = self.kv_bytes_per_token * self._inverse_bandwidth
        self._compute_row_s = 2.0 * model.active * self._inverse_flops
        self._expert_bytes = float(model.expert_parameters * model.weight_bytes)
        self._dense_bytes = self.weights_bytes - self._expert_bytes
        self._untouched = 1.0 - model.experts_per_token / model.experts if model.experts else 0.0
        self._fixed_s = tuning.fixed_s
        self._host_row_s = tuning.row_s
        self._rows = [self._row_parts(rows) for rows in range(TABLED_ROWS + 1)]

    # --- decoding

    def step_s(self, batch: int, kv_tokens: float) -> float:
        """Seconds of one decode step of `batch` rows with `kv_tokens` of context in all; 0 for an empty batch."""
        weights_s, compute_s, beside_s = self._rows[batch] if batch <= TABLED_ROWS else self._row_parts(batch)
        memory_s = weights_s + kv_tokens * self._kv_s
        return (memory_s if memory_s > compute_s else compute_s) + beside_s

    def decode_s(self, tokens: int, batch: int, kv_tokens: float) -> float:
        """Seconds of `tokens` consecutive steps of an unchanging batch whose context, `kv_tokens` now, grows by `batch` a step.

        Equals the sum of step_s(batch, kv_tokens + i x batch) for i = 0 .. tokens - 1, in closed form.
        """
        if tokens <= 0 or batch <= 0:
            return 0.0
        weights_s, compute_s, beside_s = self._rows[batch] if batch <= TABLED_ROWS else self._row_parts(batch)
        memory_s = weights_s + kv_tokens * self._kv_s
        growth_s = batch * self._kv_s
        # the first `bound` steps are limited by arithmetic, the rest by memory
        bound = 0
        if compute_s > memory_s:
            bound = min(tokens, floor((compute_s - memory_s) / growth_s) + 1)
        rest = tokens - bound
        memory_total_s = rest * memory_s + growth_s * (rest * bound + rest * (rest - 1) / 2)
        return bound * compute_s + memory_total_s + tokens * beside_s

    # --- prefill and turns

    def prefill_s(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to compute `new_tokens` that follow `cached_tokens` already in the prefix cache; 0 for none."""
        if new_tokens <= 0:
            return 0.0
        model = self.model
        total = cached_tokens + new_tokens
        attention = 2.0 * model.layers * model.attention_width * (total * total - cached_tokens * cached_tokens)
        compute_s = (2.0 * model.active * new_tokens + attention) * self._inverse_flops
        memory_s = self._weights_read(new_tokens) * self._inverse_bandwidth + total * self._kv_s
        return max(compute_s, memory_s) + self._links_s(new_tokens) + self._fixed_s

    def recompute_s(self, context_tokens: int) -> float:
        """Seconds that a pre-emption costs later: the lost context is prefilled again."""
        return self.prefill_s(context_tokens)

    def turn_s(
        self, new_tokens: int, cached_tokens: int, output_tokens: int, others: int, others_kv_tokens: float
    ) -> float:
        """Seconds of one turn beside `others` running rows that hold `others_kv_tokens`: prefill, then every output token.

        The neighbours are assumed to stay and to grow; who waits for room waits on top of this.
        """
        context = cached_tokens + new_tokens
        return self.prefill_s(new_tokens, cached_tokens) + self.decode_s(
            output_tokens, others + 1, others_kv_tokens + context
        )

    # --- parts

    def _weights_read(self, rows: int) -> float:
        """Bytes of weights that `rows` tokens make a step read."""
        if not self._expert_bytes:
            return self.weights_bytes
        return self._dense_bytes + self._expert_bytes * (1.0 - self._untouched**rows)

    def _links_s(self, rows: int) -> float:
        """Seconds of all all-reduces of one forward pass over `rows` tokens."""
        message = rows * self.model.hidden * ACTIVATION_BYTES
        return ALLREDUCES_PER_LAYER * self.model.layers * allreduce_s(self.hardware, self.tp, message)

    def _row_parts(self, rows: int) -> tuple[float, float, float]:
        """(weights, arithmetic, links and host) seconds of a step with `rows` rows."""
        if rows == 0:
            return 0.0, 0.0, 0.0
        weights_s = self._weights_read(rows) * self._inverse_bandwidth
        beside_s = self._links_s(rows) + self._fixed_s + self._host_row_s * rows
        return weights_s, rows * self._compute_row_s, beside_s


def _capacity_tokens(
    hardware: HardwareConfig, model: ModelShape, tp: int, weights_bytes: float, kv_bytes: float
) -> int:
    tuning = hardware.engine
    per_device = hardware.memory_bytes * tuning.memory_utilisation - tuning.workspace_bytes
    tokens = floor((tp * per_device - weights_bytes) / kv_bytes)
    if tokens >= 1:
        return tokens
    fits = [
        k
        for k in range(tp + 1, hardware.devices_per_node + 1)
        if not tp_problems(hardware, model, k) and k * per_device > weights_bytes + model.kv_bytes_per_token
    ]
    mend = f"TP {fits[0]} would fit" if fits else "no TP inside a node fits: raise engine.memory_utilisation"
    raise PreflightError(
        [
            f"TP {tp} of {model.name} on {hardware.name}: weights take {weights_bytes / 1e9:.1f} GB, expected less than the "
            f"{tp * per_device / 1e9:.1f} GB that the engine may use beside its workspace; {mend}"
        ]
    )
