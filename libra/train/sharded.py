"""The policy cut over the ranks of the core, or of a gradient replica, with FSDP2: its groups, its pieces, and its whole state.

    Policy (root group: embedding, norm, head, and all layers that fill no group)
    └── run of layers, >= group_bytes each (one FSDP group)

Invariants: gradients are *summed* over ranks, never averaged; parameters and their reduced gradients are float32 (or
`dtype`), also where the passes compute in bfloat16; tied weights live in the root group; every piece is a contiguous run of
rows. A model smaller than one group is one group altogether: then a round costs two collectives, which for small models is
most of its overhead.

Called by the other modules of this room, in the thread that issues collectives.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from libra.config.schema import Config
from libra.errors import WeightsError
from libra.train.model import Policy, build, published_name
from libra.weights.layout import Range, Shard

FSDP_GROUP_BYTES = 4 << 20
"""Parameters in one FSDP group of layers at least; below it, a collective's latency outweighs its bytes."""
_DIGEST = "libra_digest"


class ShardedPolicy:
    """The policy of member `index` of `size`, over the default process group (which holds exactly these members).

    `vocabulary` counts token ids. The initial weights are the pretrained ones, or depend on `config.run.seed` alone.
    `dtype` is the type of parameters, gradients and their reduction: float32, or float64 in tests of exactness. The passes
    compute in it too, unless `config.trainer.compute` says bfloat16.
    """

    def __init__(
        self,
        config: Config,
        vocabulary: int,
        index: int,
        size: int,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        group_bytes: int = FSDP_GROUP_BYTES,
    ) -> None:
        self.index = index
        self.size = size
        self.device = device
        self.dtype = dtype
        network = build(config.model, vocabulary, config.run.seed)
        policy = Policy(network, config.rollout.temperature, config.trainer.recompute)
        self.policy = policy.to(device=device, dtype=dtype)
        self._cut(group_bytes, torch.bfloat16 if config.trainer.compute == "bfloat16" else dtype)
        self.parameters: dict[str, DTensor] = {}
        for name, parameter in self.policy.named_parameters():
            assert isinstance(parameter, DTensor), name
            self.parameters[published_name(name)] = parameter

    def _cut(self, group_bytes: int, compute: torch.dtype) -> None:
        mesh = init_device_mesh(self.device.type, (self.size,))
        precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=self.dtype)
        run: list[nn.Module] = []
        layers: nn.ModuleList = self.policy.network.get_submodule("model.layers")  # type: ignore[assignment]
        for layer in layers:
            run.append(layer)
            if sum(p.nbytes for part in run for p in part.parameters()) >= group_bytes:
                fully_shard(run, mesh=mesh, mp_policy=precision)
                run = []
        fully_shard(self.policy, mesh=mesh, mp_policy=precision)
        for module in self.policy.modules():
            if isinstance(module, FSDPModule):
                # The factor alone makes gloo raise (PREMUL_SUM), the flag alone leaves the average.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def shards(self) -> list[Shard]:
        """This rank's pieces of all parameters, in the model's order; they share storage with the live parameters."""
        return [self._shard(name, parameter) for name, parameter in self.parameters.items()]

    def gradients(self) -> list[Shard]:
        """This rank's pieces of all gradients, likewise. There must have been a backward."""
        return [self._shard(name, p.grad) for name, p in self.parameters.items()]  # type: ignore[arg-type]

    def ranges(self) -> list[Range]:
        """What this rank holds of the logical parameters: one range for each piece that is not empty, in the model's order."""
        return [Range(s.name, s.start, s.start + s.data.numel()) for s in self.shards() if s.data.numel()]

    def load_ranges(self, parts: Sequence[torch.Tensor]) -> None:
        """Takes weights in the order of `ranges`, 1-D each. Not a collective. WeightsError where they do not fit."""
        pieces = [s for s in self.shards() if s.data.numel()]
        if [len(part) for part in parts] != [s.data.numel() for s in pieces]:
            raise WeightsError(
                f"{len(parts)} parts of {sum(map(len, parts))} elements do not fit the {len(pieces)} pieces of this rank"
            )
        with torch.no_grad():
            for piece, part in zip(pieces, parts, strict=True):
                piece.data.copy_(part)

    def _shard(self, name: str, tensor: DTensor) -> Shard:
        (placement,) = tensor.placements
        if not placement.is_shard(0):
            raise WeightsError(f"{name} is placed as {placement}; expected a cut along dimension 0")
        shape = tuple(tensor.shape)
        first, end = rows_of(shape[0], self.index, self.size)
        local = local_piece(tensor)
        row = tensor.numel() // shape[0]
        if local.numel() != (end - first) * row:
            raise WeightsError(
                f"rank {self.index} holds {local.numel()} elements of {name}; expected {(end - first) * row}"
            )
        return Shard(name, shape, first * row, local.view(-1))

    def full_state(self) -> dict[str, torch.Tensor]:
        """All whole parameters on the CPU of core rank 0, {} on the others. A collective: every core rank calls it."""
        state = {}
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                whole = parameter.full_tensor()
                if self.index == 0:
                    state[name] = whole.cpu().clone()
        return state

    def load_full_state(self, state: dict[str, torch.Tensor]) -> None:
        """Takes this rank's pieces out of a whole state. Not a collective.

        WeightsError where the state does not fit; then nothing is changed.
        """
        wrong = [n for n, p in self.parameters.items() if n not in state or state[n].shape != p.shape]
        if wrong or len(state) != len(self.parameters):
            raise WeightsError(
                f"a state of {len(state)} tensors does not fit a model of {len(self.parameters)}"
                + (f"; first misfit: {wrong[0]}" if wrong else "")
            )
        with torch.no_grad():
            for shard in self.shards():
                shard.data.copy_(state[shard.name].reshape(-1)[shard.start : shard.start + shard.data.numel()])


def local_piece(tensor: torch.Tensor) -> torch.Tensor:
    """The rows that this rank holds, as a plain tensor that shares their storage; may be empty."""
    assert isinstance(tensor, DTensor)
    with torch.no_grad():
        return tensor.to_local().detach()


def rows_of(rows: int, index: int, size: int) -> tuple[int, int]:
    """First row and end row of rank `index` of `size`, as `torch.chunk` and FSDP2 cut a dimension of `rows` rows."""
    per_rank = -(-rows // size)
    return min(index * per_rank, rows), min((index + 1) * per_rank, rows)


def digest(state: dict[str, torch.Tensor]) -> str:
    """Hex digest of names, shapes, types and bytes."""
    h = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        tensor = state[name].contiguous()
        h.update(f"{name}{tuple(tensor.shape)}{tensor.dtype};".encode())
        h.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()


def save_state(path: Path, state: dict[str, torch.Tensor], notes: dict[str, str]) -> None:
    """Writes a state as a safetensors file beside `path`, then renames it: no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    try:
        safetensors.torch.save_file(state, aside, metadata={**notes, _DIGEST: digest(state)})
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_state(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """A state and its notes from a file. FileNotFoundError where there is none, WeightsError where it is damaged.

    The file is copied into memory, not mapped: a mapped file that somebody truncates later is a SIGBUS.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        content = path.read_bytes()
        state = safetensors.torch.load(content)
        header_bytes = int.from_bytes(content[:8], "little")
        notes: dict[str, str] = json.loads(content[8 : 8 + header_bytes]).get("__metadata__", {})
    except (safetensors.SafetensorError, OSError, ValueError) as e:
        raise WeightsError(f"{path} cannot be read as safetensors ({e}); delete it") from e
    if notes.get(_DIGEST) != (got := digest(state)):
        raise WeightsError(f"{path} is damaged: digest {got}, expected {notes.get(_DIGEST)}; delete it")
    return state, notes
