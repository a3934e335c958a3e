"""Hardware and model parts: what a device can do and what a model weighs, as TOML files under `configs/`.

The cost model (`libra.core.cost`) takes these Structs; the command line, the simulator and the planner load them. A part
that contradicts itself is refused with every fault of the file, each naming its field. Where a figure is not a datasheet
one, the field's docstring says whether it was measured, fitted (against what) or assumed.
"""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from libra.config.types import Name, NatInt, NonNegFloat, PosFloat, PosInt
from libra.errors import ConfigError

PARAMETER_TOLERANCE = 0.03
"""Relative gap allowed between a declared parameter count and the one its shape implies (norms and biases are left out)."""

Microseconds = Annotated[float, Meta(gt=0)]
AllReduceRow = tuple[Microseconds, Microseconds, Microseconds, Microseconds]
"""Median all-reduce for messages of < 64 KB, 64 KB - 1 MB, 1 - 8 MB, 8 - 64 MB."""


class _Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class EngineTuning(_Part, frozen=True, kw_only=True):
    """How well a rollout engine uses its devices."""

    bandwidth_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.85
    """Share of the memory bandwidth that a decode step reaches. Case 13 of the design's figures."""
    flops_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.6
    """Share of the peak FLOP/s that prefill and large decode batches reach. Assumed; usual for large bf16 matrix products."""
    memory_utilisation: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of device memory that the engine may take. Half is a common setting where training shares the device; it was
    kept because the crossover needs scarce room (see `libra.core.cost.calibration`). A dedicated engine takes about 0.9."""
    workspace_bytes: NonNegFloat = 3.5e9
    """Activations, graphs and communication buffers, per device. Fitted with the two others: only memory_utilisation x memory
    - workspace (36.5 GB on 80 GB) enters. TP1 of Qwen3-14B then has room for one sequence of 40,960 tokens, barely."""
    fixed_s: NonNegFloat = 0.0
    """Seconds of every step that depend on nothing. 0 as in case 13: `row_s` carries what was fitted."""
    row_s: NonNegFloat = 2.0e-4
    """Host seconds for each running row of every step (scheduling, sampling, detokenising), not divided by TP.
    Fitted on the published TP crossover; a modern engine's own is several times smaller: set it to what you measure."""


class TrainingTuning(_Part, frozen=True, kw_only=True):
    """How well a trainer uses its devices."""

    mfu: Annotated[float, Meta(gt=0, le=1)] = 0.4
    """Model FLOP utilisation, pipeline bubble and tensor-parallel communication excluded. Assumed; no anchor depends on it."""
    sequence_tokens: NonNegFloat = 15_000.0
    """Cost of one sequence whatever its length, in token-equivalents (packing, per-sample forward passes, data movement).
    Fitted: x3.9 from 1K to 32K tokens on Qwen3-14B *with* the attention term; without that term it would be 9,700."""


class TransitionTuning(_Part, frozen=True, kw_only=True):
    """Seconds of one replica's change of role. Published (second-hand) for Qwen3-14B on A800; not scaled by model size."""

    engine_activation_s: NonNegFloat = 10.8
    snapshot_s: NonNegFloat = 3.6
    """In the background: the replica's devices are idle, the trainer is not."""
    restore_s: NonNegFloat = 4.4


class HardwareConfig(_Part, frozen=True, kw_only=True):
    """One kind of device and the nodes it sits in. Datasheet-level, per device."""

    name: Name
    flops: PosFloat
    """Dense bf16 FLOP/s."""
    memory_bytes_per_s: PosFloat
    memory_bytes: PosFloat
    devices_per_node: PosInt = 8
    in_node_bytes_per_s: PosFloat
    """Device to device inside a node, both directions together, as the datasheet counts."""
    port_bytes_per_s: PosFloat
    """One network port, one direction."""
    ports_per_node: PosInt = 1
    host_bytes_per_s: PosFloat = 25e9
    """Device to pinned host memory, one direction: PCIe 4.0 x16 in practice."""
    host_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.83
    """Share of `host_bytes_per_s` that a staged copy reaches. Fitted: 40K tokens of KV in under 330 ms inside a node."""
    port_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.85
    """Share of `port_bytes_per_s` that a bulk copy reaches. Assumed; 40K tokens across nodes stay under 733 ms with it."""
    move_setup_s: NonNegFloat = 0.005
    """Start of one KV move: allocation, registration, first block. Assumed."""
    allreduce_us: dict[int, AllReduceRow] = {}
    """By TP degree, microseconds for the four classes of message size."""
    engine: EngineTuning = EngineTuning()
    training: TrainingTuning = TrainingTuning()
    transition: TransitionTuning = TransitionTuning()


class ModelShape(_Part, frozen=True, kw_only=True):
    """A decoder of the Llama family, dense or with routed experts in every layer."""

    name: Name
    parameters: PosInt
    active_parameters: PosInt | None = None
    """Parameters that one token passes through; None: all of them."""
    layers: PosInt
    hidden: PosInt
    heads: PosInt
    kv_heads: PosInt
    head_dim: PosInt
    """heads x head_dim need not equal hidden (Qwen3-4B: 4,096 against 2,560)."""
    ffn: PosInt
    """Width of the feed-forward, of one expert where there are experts."""
    vocabulary: PosInt
    tied_embeddings: bool = False
    experts: NatInt = 0
    experts_per_token: NatInt = 0
    weight_bytes: PosInt = 2
    """Bytes a parameter as served."""
    kv_bytes: PosInt = 2
    """Bytes a KV element."""

    @property
    def active(self) -> int:
        """Parameters that one token passes through."""
        return self.parameters if self.active_parameters is None else self.active_parameters

    @property
    def attention_width(self) -> int:
        """heads x head_dim: the width that attention scores and sums over."""
        return self.heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """2 x layers x KV heads x head dim x bytes: keys and values of one token, whole model (Qwen3-14B: 163,840)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts; 0 for a dense model."""
        return self.layers * self.experts * 3 * self.hidden * self.ffn

    def implied_parameters(self, experts: int | None = None) -> int:
        """Parameters that the shape implies, with `experts` of them counted in each layer (default: all)."""
        n = self.experts if experts is None else experts
        width, kv_width = self.attention_width, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * width + 2 * self.hidden * kv_width
        mlp = 3 * self.hidden * self.ffn * (n if self.experts else 1)
        router = self.hidden * self.experts
        embeddings = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        return embeddings + self.layers * (attention + mlp + router)


def hardware_problems(hardware: HardwareConfig) -> list[str]:
    """What contradicts itself in a hardware part, one line a fault."""
    problems: list[str] = []
    for tp, row in hardware.allreduce_us.items():
        if tp < 2:
            problems.append(f"allreduce_us.{tp}: got TP {tp}, expected 2 or more: one device reduces nothing")
        if tp > hardware.devices_per_node:
            problems.append(
                f"allreduce_us.{tp}: got TP {tp} with devices_per_node = {hardware.devices_per_node}; "
                "an engine stays inside a node: remove the row or mend devices_per_node"
            )
        if list(row) != sorted(row):
            problems.append(f"allreduce_us.{tp}: got {list(row)}, expected seconds that never fall as messages grow")
    tuning = hardware.engine
    if tuning.workspace_bytes >= tuning.memory_utilisation * hardware.memory_bytes:
        problems.append(
            f"engine.workspace_bytes: got {tuning.workspace_bytes:.3g}, expected less than memory_utilisation x memory_bytes "
            f"= {tuning.memory_utilisation * hardware.memory_bytes:.3g}: nothing would be left for weights"
        )
    return problems


def model_problems(model: ModelShape) -> list[str]:
    """What contradicts itself in a model part, one line a fault."""
    problems: list[str] = []
    if model.heads % model.kv_heads:
        problems.append(f"kv_heads: got {model.kv_heads}, expected a divisor of heads = {model.heads}")
    if model.active > model.parameters:
        problems.append(
            f"active_parameters: got {model.active:,}, more than parameters = {model.parameters:,}; a token cannot pass "
            "through more than there is"
        )
    if bool(model.experts) != bool(model.experts_per_token) or model.experts_per_token > model.experts:
        problems.append(
            f"experts_per_token: got {model.experts_per_token} of experts = {model.experts}; "
            "expected both 0 (dense), or 1 <= experts_per_token <= experts"
        )
    if not model.experts and model.active != model.parameters:
        problems.append("active_parameters: differs from parameters although experts = 0; remove it for a dense model")
    if not problems:
        for label, declared, implied in (
            ("parameters", model.parameters, model.implied_parameters()),
            ("active_parameters", model.active, model.implied_parameters(model.experts_per_token)),
        ):
            if abs(declared / implied - 1) > PARAMETER_TOLERANCE:
                problems.append(
                    f"{label}: got {declared:,}, but layers, hidden, heads, ffn, experts and vocabulary imply {implied:,} "
                    f"(more than {PARAMETER_TOLERANCE:.0%} apart); mend the count or the shape"
                )
                break
    return problems


_P = TypeVar("_P", HardwareConfig, ModelShape)


def _read(path: Path, kind: type[_P]) -> _P:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as e:
        raise ConfigError(str(path), [f"cannot be read: {e.strerror}"]) from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ConfigError(str(path), [f"{e}"]) from e


def load_hardware(path: Path) -> HardwareConfig:
    """Read and check a hardware part. Raises ConfigError naming the file and each field at fault."""
    part = _read(path, HardwareConfig)
    if problems := hardware_problems(part):
        raise ConfigError(str(path), problems)
    return part


def load_model(path: Path) -> ModelShape:
    """Read and check a model part. Raises ConfigError naming the file and each field at fault."""
    part = _read(path, ModelShape)
    if problems := model_problems(part):
        raise ConfigError(str(path), problems)
    return part


def find_part(kind: str, name: str) -> Path:
    """The file of part `name` (a path, or a name under configs/`kind`/). Raises ConfigError listing what there is.

    Looks in the working directory's `configs/` first, then beside the package.
    """
    direct = Path(name)
    if direct.suffix == ".toml":
        return direct
    package = Path(__file__).resolve().parents[1]
    roots = [Path("configs") / kind, package.parent / "configs" / kind, package / "configs" / kind]
    for root in roots:
        if (path := root / f"{name}.toml").is_file():
            return path
    known = sorted({p.stem for root in roots if root.is_dir() for p in root.glob("*.toml")})
    raise ConfigError(
        f"{kind} part", [f"got {name!r}, expected a path ending in .toml or one of {', '.join(known) or '(none)'}"]
    )
