"""A core rank's part of a checkpoint: its pieces of weights and moments, copied at once and written beside its work.

    Save ──> copy to the host (the trainer stands still for this) ──> a thread: write in place, sync ──> Saved │ SaveFailed
    Load ──> read this rank's ranges ──> weights and moments as they were

No collective: every offset follows from names and shapes (`libra.checkpoint.tensors`), so a core of another size reads the same
files. The buffers are made at the first save and kept: three times this rank's share of the parameters, on the host.

Called by `libra.rank.trainer_role`, in the thread that issues collectives.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from libra.checkpoint.directory import MOMENTS, WEIGHTS, require_room
from libra.checkpoint.tensors import Piece, TensorFile
from libra.errors import CheckpointError, LibraError
from libra.train.sharded import ShardedPolicy
from libra.train.summed_step import SummedStep
from libra.wire.messages import FilePart, Save, Saved, SaveFailed

STEPS = "steps"
"""Note in the optimiser's files: AdamW's count of steps."""


class Saving:
    """`answer` is called from the writing thread."""

    def __init__(
        self, sharded: ShardedPolicy, summed: SummedStep, answer: Callable[[Saved | SaveFailed], None]
    ) -> None:
        self._sharded = sharded
        self._summed = summed
        self._answer = answer
        self._shapes = {name: tuple(p.shape) for name, p in sharded.parameters.items()}
        self._dtype = str(sharded.dtype).removeprefix("torch.")
        self._buffers: list[list[torch.Tensor]] = []
        """Of weights, first and second moments: this rank's pieces on the host."""
        self._writer: threading.Thread | None = None

    def save(self, order: Save) -> None:
        """Copy, and have the rest done. Each order is answered once."""
        began = time.monotonic()
        files = self._files(self._summed.steps)
        try:
            if self._writer is not None and self._writer.is_alive():
                raise CheckpointError("an earlier one is still being written")
            if self._sharded.index == 0:
                require_room(Path(order.directory), sum(f.n_bytes for f in files.values()), order.min_free_bytes)
        except (LibraError, OSError) as e:
            self._answer(SaveFailed(order.cmd, str(e)))
            return
        live = self._live()
        if not self._buffers:
            pinned = self._sharded.device.type != "cpu"
            self._buffers = [[torch.empty_like(t, device="cpu", pin_memory=pinned) for t in part] for part in live]
        for part, buffers in zip(live, self._buffers, strict=True):
            for tensor, buffer in zip(part, buffers, strict=True):
                buffer.copy_(tensor)
        copied_s = time.monotonic() - began
        self._writer = threading.Thread(
            target=self._write, args=(order, files, began, copied_s), name="checkpoint", daemon=True
        )
        self._writer.start()

    def _write(self, order: Save, files: dict[str, TensorFile], began: float, copied_s: float) -> None:
        root = Path(order.directory)
        try:
            parts: list[FilePart] = []
            for (name, file), buffers in zip(files.items(), self._buffers, strict=True):
                pieces = [
                    Piece(r.name, r.start, b.view(torch.uint8).numpy().data)
                    for r, b in zip(self._sharded.ranges(), buffers, strict=True)
                ]
                parts.append(file.write(root / name, root, pieces, with_header=self._sharded.index == 0))
        except OSError as e:
            self._answer(SaveFailed(order.cmd, f"{e.strerror or e} ({root})"))
        else:
            self._answer(Saved(order.cmd, copied_s, time.monotonic() - began, parts))

    def load(self, directory: Path) -> None:
        """Takes weights and moments of a checkpoint of this model. CheckpointError where it is of another one."""
        ranges = [(r.name, r.start, r.stop) for r in self._sharded.ranges()]
        for name, part in zip((WEIGHTS, *MOMENTS), self._live(), strict=True):
            file = TensorFile.read(directory / name)
            if file.shapes != self._shapes or file.dtype != self._dtype:
                raise CheckpointError(
                    f"{directory / name} holds {len(file.shapes)} tensors of {file.dtype}, which do not fit this model of"
                    f" {len(self._shapes)} of {self._dtype}; resume with the configuration of the run"
                )
            for tensor, data in zip(part, file.pull(directory / name, ranges), strict=True):
                tensor.copy_(torch.frombuffer(data, dtype=self._sharded.dtype))
            if name in MOMENTS:
                self._summed.steps = int(file.notes.get(STEPS, 0))

    def _live(self) -> list[list[torch.Tensor]]:
        """Weights, first and second moments: this rank's pieces that are not empty, 1-D, live."""
        weights = [s.data for s in self._sharded.shards() if s.data.numel()]
        return [weights, *self._summed.moments()]

    def _files(self, steps: int) -> dict[str, TensorFile]:
        count = {STEPS: str(steps)}
        files = {WEIGHTS: TensorFile(self._shapes, self._dtype, {"format": "pt"})}
        return files | {name: TensorFile(self._shapes, self._dtype, count) for name in MOMENTS}
