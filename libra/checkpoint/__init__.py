"""Checkpoints on disk, without torch: what a run goes on from, and what `libra export` reads.

    runs/NAME/checkpoints/step-000120/   checkpoint.json            what it is and holds; written last
                                         weights/model.safetensors  by transformers' names, as the trainer stores them
                                         optimizer/exp_avg.safetensors, exp_avg_sq.safetensors      the same names
                                         core.msgpack               the core's and the tally's state
                                         inflight/                  foreseen for trajectories in flight; not written yet
                          best.json                                 which one has the best held-out reward

`directory` knows names and what is whole, `tensors` the files that several ranks write and read together, `content` the rest.
"""

from pathlib import Path

from libra.checkpoint.directory import WEIGHTS, Manifest, best, newest, read_manifest, whole
from libra.checkpoint.tensors import TensorFile

__all__ = ["Manifest", "best", "newest", "read_manifest", "weights", "whole"]


def weights(path: Path) -> dict[str, Path]:
    """The parameters of the checkpoint at `path`, by transformers' names (tied ones once): the safetensors file of each."""
    file = path / WEIGHTS
    return dict.fromkeys(TensorFile.read(file).names, file)
