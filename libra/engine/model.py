"""A compact decoder of the Llama family (qwen2, llama) over a row cache; knows nothing of turns.

Invariant: `install` either takes a whole set of weights or changes nothing. Weights come under transformers' parameter
names and are packed for speed: q, k and v into one matrix, gate and up into another. All tokens of a call are one flat
list, each with its position; how they see each other is the business of an `Attention` (`libra.engine.attention`).
Called by the engine's decode step and by prefill.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from libra.config.schema import ModelConfig
from libra.errors import RoleError, WeightsError


class Attention(Protocol):
    """How one call's tokens attend; built once a call and used by every layer."""

    def store(self, kv: Tensor, new: Tensor) -> None:
        """Write `new` [tokens, 2, kv heads, head dim] into one layer's cache."""
        ...

    def attend(self, kv: Tensor, queries: Tensor) -> Tensor:
        """`queries` [tokens, kv heads, group, head dim] against one layer's cache -> [tokens, hidden]."""
        ...


class _Layer:
    """One block's packed weights."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        head_dim = config.hidden // config.heads
        packed = (config.heads + 2 * config.kv_heads) * head_dim
        self.input_norm = empty(config.hidden)
        self.qkv = empty(packed, config.hidden)
        self.qkv_bias = empty(packed) if config.architecture == "qwen2" else None
        self.out = empty(config.hidden, config.heads * head_dim)
        self.ffn_norm = empty(config.hidden)
        self.gate_up = empty(2 * config.ffn, config.hidden)
        self.down = empty(config.hidden, config.ffn)


class Decoder:
    """Weights and forward pass. `max_context_tokens` bounds the positions (the rotary table is built once)."""

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        max_context_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if config.hidden % config.heads or config.heads % config.kv_heads or (config.hidden // config.heads) % 2:
            raise RoleError(
                f"model: hidden {config.hidden}, heads {config.heads}, kv_heads {config.kv_heads} do not fit; heads must"
                " divide hidden into an even head size and kv_heads must divide heads"
            )
        self.config = config
        self.head_dim = config.hidden // config.heads
        self.device, self.dtype = device, dtype
        self._layers = [_Layer(config, device, dtype) for _ in range(config.layers)]
        self._embed = torch.empty(vocab_size, config.hidden, device=device, dtype=dtype)
        self._head = self._embed if config.tied_embeddings else torch.empty_like(self._embed)
        self._norm = torch.empty(config.hidden, device=device, dtype=dtype)
        self._targets = self._name_parts()
        # Half-split rotation (transformers): x cos + rotate_half(x) sin. rotate_half is a roll by half a head with the
        # first half negated; the sign lives in the table.
        inverse = 1.0 / config.rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(max_context_tokens).float(), inverse)
        self._cos = torch.cat((angles.cos(), angles.cos()), -1).to(device)
        self._sin = torch.cat((-angles.sin(), angles.sin()), -1).to(device)

    def _name_parts(self) -> dict[str, Tensor]:
        """Where each named parameter lives: views into the packed tensors."""
        config, d = self.config, self.head_dim
        q, kv = config.heads * d, config.kv_heads * d
        parts = {"model.embed_tokens.weight": self._embed, "model.norm.weight": self._norm}
        if not config.tied_embeddings:
            parts["lm_head.weight"] = self._head
        for i, layer in enumerate(self._layers):
            at = f"model.layers.{i}."
            parts[at + "input_layernorm.weight"] = layer.input_norm
            parts[at + "post_attention_layernorm.weight"] = layer.ffn_norm
            for name, lo, hi in (("q", 0, q), ("k", q, q + kv), ("v", q + kv, q + 2 * kv)):
                parts[f"{at}self_attn.{name}_proj.weight"] = layer.qkv[lo:hi]
                if layer.qkv_bias is not None:
                    parts[f"{at}self_attn.{name}_proj.bias"] = layer.qkv_bias[lo:hi]
            parts[at + "self_attn.o_proj.weight"] = layer.out
            parts[at + "mlp.gate_proj.weight"] = layer.gate_up[: config.ffn]
            parts[at + "mlp.up_proj.weight"] = layer.gate_up[config.ffn :]
            parts[at + "mlp.down_proj.weight"] = layer.down
        return parts

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter that `install` wants."""
        return {name: tuple(part.shape) for name, part in self._targets.items()}

    def install(self, weights: Mapping[str, Tensor]) -> None:
        """Copy a whole set of weights in, converting dtype and device. WeightsError, and nothing changed, if unfit."""
        wanted = self._targets
        faults = [f"{n} is missing" for n in wanted if n not in weights]
        faults += [f"{n} is not part of this model" for n in weights if n not in wanted]
        for n, part in wanted.items():
            if n in weights and weights[n].shape != part.shape:
                faults.append(f"{n} has shape {tuple(weights[n].shape)}, expected {tuple(part.shape)}")
            elif n in weights and not weights[n].is_floating_point():
                faults.append(f"{n} has dtype {weights[n].dtype}, expected a float")
        if faults:
            more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
            raise WeightsError(
                f"weights do not fit this {self.config.architecture} of {self.config.layers} layers, tied_embeddings ="
                f" {self.config.tied_embeddings}: {'; '.join(faults[:5])}{more}. Publisher and engine must read the same"
                " [model] table and tokenizer"
            )
        for n, part in wanted.items():
            part.copy_(weights[n])

    def logits(self, ids: Tensor, positions: Tensor, cache: Sequence[Tensor], attention: Attention) -> Tensor:
        """Next-token logits [tokens, vocabulary] of `ids` [tokens] at `positions` [tokens]; their keys are stored."""
        x = F.embedding(ids, self._embed)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        for layer, kv in zip(self._layers, cache, strict=True):
            x = self._block(layer, x, cos, sin, kv, attention)
        return F.linear(self._normed(x, self._norm), self._head)

    def fill(self, ids: Tensor, positions: Tensor, cache: Sequence[Tensor], attention: Attention) -> None:
        """Store the keys and values of `ids`; the last layer stops there, for nobody reads further."""
        x = F.embedding(ids, self._embed)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        for layer, kv in zip(self._layers[:-1], cache, strict=False):
            x = self._block(layer, x, cos, sin, kv, attention)
        self._project(self._layers[-1], x, cos, sin, cache[-1], attention, first_head=self.config.heads)

    def _block(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, attention: Attention) -> Tensor:
        queries = self._project(layer, x, cos, sin, kv, attention, first_head=0)
        x = torch.addmm(x, attention.attend(kv, queries), layer.out.t())
        gate, up = F.linear(self._normed(x, layer.ffn_norm), layer.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())

    def _project(
        self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, attention: Attention, first_head: int
    ) -> Tensor:
        """Queries [tokens, kv heads, group, head dim] (none if `first_head` skips them); keys and values are stored."""
        config, skip = self.config, first_head * self.head_dim
        bias = None if layer.qkv_bias is None else layer.qkv_bias[skip:]
        packed = F.linear(self._normed(x, layer.input_norm), layer.qkv[skip:], bias)
        packed = packed.view(x.shape[0], -1, self.head_dim)
        queries = config.heads - first_head
        rotated = packed[:, : queries + config.kv_heads]
        exact = rotated.float()
        torch.addcmul(exact * cos, exact.roll(self.head_dim // 2, -1), sin, out=rotated)
        attention.store(kv, packed[:, queries:].unflatten(1, (2, config.kv_heads)))
        return packed[:, :queries].unflatten(1, (config.kv_heads, queries // config.kv_heads))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden,), weight, self.config.rms_norm_eps)
