"""`libra cost decode|prefill|train|move|memory`: any figure of the cost model, for people and for scripts.

Prints one aligned table, or one JSON object with `--json`. `main` takes the words after `cost` and returns an exit code:
0, or 2 where the parts or the plan are wrong (the reason goes to stderr).
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from libra.config.parts import HardwareConfig, ModelShape, find_part, load_hardware, load_model
from libra.core.cost.engine import EngineCost
from libra.core.cost.move import gradient_to_rollout, publication_s, relocate, rollout_to_gradient
from libra.core.cost.training import TokenLoad, TrainLayout, rollout_memory, train_memory, train_step
from libra.errors import LibraError, PreflightError

Figures = dict[str, float | int | str | bool]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What every question names."""

    hardware: str
    """A name under configs/hardware, or a path ending in .toml."""
    model: str
    """A name under configs/model, or a path ending in .toml."""
    json: bool = False
    """One JSON object instead of a table."""

    def load(self) -> tuple[HardwareConfig, ModelShape]:
        return load_hardware(find_part("hardware", self.hardware)), load_model(find_part("model", self.model))


@dataclass(frozen=True, kw_only=True)
class Decode(Parts):
    """Seconds of one decode step, and of a row that samples `tokens` in such a batch."""

    tp: int = 1
    batch: int = 1
    kv_tokens: int = 16_384
    """Context of all rows together."""
    tokens: int = 1


@dataclass(frozen=True, kw_only=True)
class Prefill(Parts):
    """Seconds to compute new tokens behind a cached prefix."""

    tp: int = 1
    new: int = 4096
    cached: int = 0


@dataclass(frozen=True, kw_only=True)
class Train(Parts):
    """Seconds of one optimiser step, by what they are spent on."""

    devices: int = 8
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1
    recompute: bool = False
    sequences: int = 512
    length: int = 4096
    """Tokens of each sequence."""


@dataclass(frozen=True, kw_only=True)
class Move(Parts):
    """Seconds to move the KV of a context or compute it again; publication of weights and changes of role as well."""

    tp: int = 1
    to_tp: int | None = None
    """Degree of the target engine; the same by default."""
    tokens: int = 40_960
    across_nodes: bool = False
    trainer_devices: int = 8
    engines: int = 1


@dataclass(frozen=True, kw_only=True)
class Memory(Parts):
    """Bytes on one device of an engine and of the trainer, and the engine's KV room."""

    tp: int = 1
    devices: int = 8
    """Of the trainer."""
    train_tp: int = 1
    train_pp: int = 1
    recompute: bool = False
    micro_tokens: int = 8192
    """Tokens in one micro-batch."""


def _decode(q: Decode) -> Figures:
    engine = EngineCost(*q.load(), q.tp)
    _need(
        q.batch >= 1 and q.kv_tokens >= 0 and q.tokens >= 1,
        "decode: expected batch >= 1, kv-tokens >= 0 and tokens >= 1",
    )
    if q.kv_tokens + q.batch * q.tokens > engine.capacity_tokens:
        raise PreflightError(
            [
                f"decode: {q.kv_tokens} tokens of context growing by {q.batch * q.tokens}, expected at most the engine's "
                f"room of {engine.capacity_tokens}; fewer rows or a higher TP would fit"
            ]
        )
    return {
        "step_s": engine.step_s(q.batch, q.kv_tokens),
        "total_s": engine.decode_s(q.tokens, q.batch, q.kv_tokens),
        "capacity_tokens": engine.capacity_tokens,
        "kv_bytes_per_token": engine.kv_bytes_per_token,
    }


def _prefill(q: Prefill) -> Figures:
    engine = EngineCost(*q.load(), q.tp)
    _need(q.new >= 1 and q.cached >= 0, "prefill: expected new >= 1 and cached >= 0")
    seconds, uncached = engine.prefill_s(q.new, q.cached), engine.prefill_s(q.new + q.cached)
    return {"prefill_s": seconds, "without_cache_s": uncached, "capacity_tokens": engine.capacity_tokens}


def _train(q: Train) -> Figures:
    hardware, model = q.load()
    _need(q.sequences >= 1 and q.length >= 1, "train: expected sequences >= 1 and length >= 1")
    layout = TrainLayout(devices=q.devices, tp=q.tp, pp=q.pp, micro_batches=q.micro_batches, recompute=q.recompute)
    load = TokenLoad(q.sequences, q.sequences * q.length, q.sequences * q.length**2)
    cost = train_step(hardware, model, layout, load)
    return {
        "step_s": cost.total_s,
        "dense_s": cost.dense_s,
        "attention_s": cost.attention_s,
        "sequence_s": cost.sequence_s,
        "links_s": cost.links_s,
        "bubble_s": cost.bubble_s,
        "tokens": load.tokens,
    }


def _move(q: Move) -> Figures:
    hardware, model = q.load()
    _need(min(q.tokens, q.trainer_devices, q.engines) >= 1, "move: expected tokens, trainer-devices and engines >= 1")
    source = EngineCost(hardware, model, q.tp)
    target = EngineCost(hardware, model, q.to_tp or q.tp)
    kv = relocate(source, target, q.tokens, not q.across_nodes)
    joining, leaving = rollout_to_gradient(hardware), gradient_to_rollout(hardware)
    return {
        "way": kv.way,
        "move_s": kv.move_s,
        "recompute_s": kv.recompute_s,
        "publication_s": publication_s(hardware, model, q.trainer_devices, q.engines, target.tp, not q.across_nodes),
        "to_gradient_background_s": joining.background_s,
        "to_gradient_blocking_s": joining.blocking_s,
        "to_rollout_blocking_s": leaving.blocking_s,
    }


def _memory(q: Memory) -> Figures:
    hardware, model = q.load()
    _need(q.micro_tokens >= 1, "memory: expected micro-tokens >= 1")
    layout = TrainLayout(devices=q.devices, tp=q.train_tp, pp=q.train_pp, recompute=q.recompute)
    train = train_memory(hardware, model, layout, q.micro_tokens)
    rollout = rollout_memory(EngineCost(hardware, model, q.tp))
    return {
        "rollout_weights_bytes": rollout.weights_bytes,
        "rollout_workspace_bytes": rollout.workspace_bytes,
        "rollout_kv_bytes": rollout.kv_bytes,
        "rollout_capacity_tokens": rollout.capacity_tokens,
        "train_state_bytes": train.state_bytes,
        "train_activation_bytes": train.activation_bytes,
        "train_logit_bytes": train.logit_bytes,
        "train_total_bytes": train.total_bytes,
        "train_fits": train.fits,
        "device_bytes": hardware.memory_bytes,
    }


def _need(true: bool, message: str) -> None:
    if not true:
        raise PreflightError([message])


def _answer(q: Decode | Prefill | Train | Move | Memory) -> Figures:
    match q:
        case Decode():
            return _decode(q)
        case Prefill():
            return _prefill(q)
        case Train():
            return _train(q)
        case Move():
            return _move(q)
        case Memory():
            return _memory(q)


Question = (
    Annotated[Decode, tyro.conf.subcommand("decode")]
    | Annotated[Prefill, tyro.conf.subcommand("prefill")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Move, tyro.conf.subcommand("move")]
    | Annotated[Memory, tyro.conf.subcommand("memory")]
)


def main(argv: Sequence[str]) -> int:
    """Answer one question about costs; `argv` are the words after `libra cost`."""
    question = tyro.cli(Question, prog="libra cost", args=list(argv))
    try:
        figures = _answer(question)
    except LibraError as e:
        print(e, file=sys.stderr)
        return 2
    if question.json:
        print(json.dumps({"hardware": question.hardware, "model": question.model, **figures}))
        return 0
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:,.6g}" if isinstance(value, float) else f"{name:<{width}}  {value}")
    return 0
