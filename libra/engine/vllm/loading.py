"""Weights from our publication into a live vLLM model, in place.

    ranges(shapes, index, size) ──> Puller: the parts of the logical tensors that this rank needs ──> parts
    parts ──> whole tensors, NaN where nothing was pulled ──> vLLM's own loader cuts this rank's shard out of them

The loader never reads what was not pulled; if it did, every log-probability would be NaN and the engine would say so, where a
wrong range would otherwise be silently wrong text.

The back end is vLLM's documented extension point for it: `update_weights` is given nothing by its caller, for the tensors
lie in this process (`hand_over`).
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from libra.engine.vllm.device import mend
from libra.weights.layout import Range

BACKEND = "libra"
VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it cuts it into one part a rank."""
ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Modules whose weights, and biases, are cut by rows into equal parts."""
VOCABULARY = ("embed_tokens", "lm_head")


def ranges(shapes: Mapping[str, tuple[int, ...]], index: int, size: int) -> list[Range]:
    """What rank `index` of `size` needs of the logical tensors.

    Weights that are cut by columns (o_proj, down_proj) come whole: their part is one run of bytes a row, and as many ranges
    would cost more than the bytes. A rank of a small vocabulary may need no row of it at all.
    """
    wanted: list[Range] = []
    for name, shape in shapes.items():
        start, stop = _rows(name, shape[0], index, size)
        width = torch.Size(shape[1:]).numel()
        if start < stop:
            wanted.append(Range(name, start * width, stop * width))
    return wanted


def _rows(name: str, rows: int, index: int, size: int) -> tuple[int, int]:
    module = name.split(".")[-2]
    if module in ROWS:
        return index * rows // size, (index + 1) * rows // size
    if module in VOCABULARY:
        part = -(-rows // VOCAB_PADDING) * VOCAB_PADDING // size
        return min(rows, index * part), min(rows, (index + 1) * part)
    return 0, rows


def whole(
    shapes: Mapping[str, tuple[int, ...]], wanted: Sequence[Range], parts: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter in its logical shape, NaN where nothing was pulled. One at a time, so that only one lies in memory."""
    pulled = {r.name: (r, part) for r, part in zip(wanted, parts, strict=True)}
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        if name not in pulled:
            yield name, torch.full(shape, torch.nan)
            continue
        r, part = pulled[name]
        if r.stop - r.start == count:
            yield name, part.view(shape)
        else:
            full = torch.full((count,), torch.nan, dtype=part.dtype)
            full[r.start : r.stop] = part
            yield name, full.view(shape)


@dataclass
class _Nothing(WeightTransferInitInfo):
    pass


@dataclass
class _Handed(WeightTransferUpdateInfo):
    pass


class LocalWeights(WeightTransferEngine[_Nothing, _Handed]):
    """vLLM's weight-transfer engine for weights that this process has pulled itself."""

    init_info_cls = _Nothing
    update_info_cls = _Handed
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._weights: Iterator[tuple[str, torch.Tensor]] = iter(())

    def hand_over(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """What the next `update_weights` loads."""
        self._weights = weights

    def init_transfer_engine(self, init_info: _Nothing) -> None:
        """There is no link of vLLM's own."""

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: _Handed) -> None:
        load: Any = self.model.load_weights
        load(self._weights)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        mend(self.model, self.device)

    def shutdown(self) -> None:
        self._weights = iter(())


def register() -> None:
    """Makes the back end known under its name. Once in a process, before the engine is made."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, LocalWeights)


def install(engine: Any, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Loads `weights` into the model of this process, in place. Nothing may be stepping."""
    engine.collective_rpc(lambda worker: worker.weight_transfer_engine.hand_over(weights))
    engine.collective_rpc("start_weight_update")
    engine.collective_rpc("update_weights", args=({},))
    engine.collective_rpc("finish_weight_update")
