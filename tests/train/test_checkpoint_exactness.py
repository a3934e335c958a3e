"""k steps, a checkpoint, another core, and the rest of the steps are the same numbers as all steps in one go."""

import threading
from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from training_parts import CPU, VOCABULARY, config, loss_tokens, sample

from libra.checkpoint.directory import MOMENTS, WEIGHTS
from libra.checkpoint.tensors import TensorFile
from libra.train.saving import Saving
from libra.train.trainer import Trainer
from libra.wire.messages import Sample, Save, Saved, SaveFailed

pytestmark = pytest.mark.process
STEPS, CUT = 5, 2


def batch(step: int) -> list[Sample]:
    return [sample(10 * step + j, 1 + j % 4, version=step) for j in range(4)]


def train(trainer: Trainer, index: int, size: int, steps: range) -> None:
    for step in steps:
        trainer.open(step, loss_tokens(batch(step)))
        trainer.round(batch(step)[index::size])
        assert trainer.close().finite


def state(trainer: Trainer) -> dict[str, list[torch.Tensor]]:
    """Everything that the next step depends on, whole."""
    first, second = trainer.summed.moments()
    weights = [s.data.clone() for s in trainer.shards() if s.data.numel()]
    return {"weights": weights, "first": [t.clone() for t in first], "second": [t.clone() for t in second]}


def equal(a: dict[str, list[torch.Tensor]], b: dict[str, list[torch.Tensor]]) -> bool:
    return all(torch.equal(x, y) for key in a for x, y in zip(a[key], b[key], strict=True))


def save(trainer: Trainer, directory: str, min_free_bytes: int = 0) -> Saved | SaveFailed:
    answered = threading.Event()
    answers: list[Saved | SaveFailed] = []

    def answer(message: Saved | SaveFailed) -> None:
        answers.append(message)
        answered.set()

    Saving(trainer.sharded, trainer.summed, answer).save(Save(1, directory, min_free_bytes))
    assert answered.wait(20)
    return answers[0]


def make(index: int, size: int, dtype: str) -> Trainer:
    return Trainer(config(), VOCABULARY, index, size, CPU, dtype=getattr(torch, dtype), group_bytes=1)


def cut_and_resumed(index: int, size: int, dtype: str, directory: str) -> tuple[bool, bool, int]:
    straight = make(index, size, dtype)
    train(straight, index, size, range(STEPS))
    cut = make(index, size, dtype)
    train(cut, index, size, range(CUT))
    assert isinstance(save(cut, directory), Saved)
    train(cut, index, size, range(CUT, STEPS))  # saving has disturbed nothing
    torch.distributed.barrier()
    resumed = make(index, size, dtype)
    Saving(resumed.sharded, resumed.summed, lambda _: None).load(Path(directory))
    count = resumed.summed.steps
    train(resumed, index, size, range(CUT, STEPS))
    return equal(state(straight), state(resumed)), equal(state(straight), state(cut)), count


def fresh(path: Path) -> Path:
    for name in (WEIGHTS, *MOMENTS):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize(("size", "dtype"), [(1, "float32"), (2, "float32"), (3, "float64")])
def test_a_resumed_run_is_the_run_bit_by_bit(tmp_path: Path, size: int, dtype: str) -> None:
    for same, undisturbed, count in run_ranks(size, tmp_path, cut_and_resumed, dtype, str(fresh(tmp_path / "c"))):
        assert same, "parameters and moments"
        assert undisturbed
        assert count in (CUT, 0)  # 0: this rank holds nothing


def write(index: int, size: int, directory: str) -> None:
    trainer = make(index, size, "float64")
    train(trainer, index, size, range(CUT))
    assert isinstance(save(trainer, directory), Saved)


def go_on(index: int, size: int, directory: str) -> dict[str, torch.Tensor]:
    trainer = make(index, size, "float64")
    Saving(trainer.sharded, trainer.summed, lambda _: None).load(Path(directory))
    train(trainer, index, size, range(CUT, STEPS))
    return trainer.sharded.full_state()


def test_a_core_of_another_size_goes_on_from_it(tmp_path: Path) -> None:
    """Resharding: three wrote, two and one read. Sums over ranks round differently, so nearly the same is the same."""
    directory = str(fresh(tmp_path / "c"))
    run_ranks(3, tmp_path, write, directory)
    two, one = run_ranks(2, tmp_path, go_on, directory)[0], run_ranks(1, tmp_path, go_on, directory)[0]
    assert two.keys() == one.keys()
    assert max((two[name] - one[name]).abs().max().item() for name in two) < 1e-10


def names_and_values(index: int, size: int, directory: str) -> tuple[bool, bool]:
    import safetensors.torch

    trainer = make(index, size, "float32")
    train(trainer, index, size, range(1))
    assert isinstance(save(trainer, directory), Saved)
    loaded = safetensors.torch.load_file(Path(directory) / WEIGHTS)
    live = trainer.sharded.full_state()
    same = loaded.keys() == live.keys() and all(torch.equal(loaded[name], live[name]) for name in live)
    return same, "lm_head.weight" in loaded


def test_anybody_reads_the_weights_by_transformers_names(tmp_path: Path) -> None:
    ((same, head),) = run_ranks(1, tmp_path, names_and_values, str(fresh(tmp_path / "c")))
    assert same
    assert not head, "a tied one is there once"


def refused(index: int, size: int, directory: str) -> tuple[str, bool]:
    trainer = make(index, size, "float32")
    answer = save(trainer, directory, min_free_bytes=1 << 60)
    assert isinstance(answer, SaveFailed)
    return answer.reason, (Path(directory) / WEIGHTS).exists()


def test_a_full_disk_is_found_before_anything_is_written(tmp_path: Path) -> None:
    ((reason, written),) = run_ranks(1, tmp_path, refused, str(fresh(tmp_path / "c")))
    assert "MB free, expected" in reason
    assert "checkpoint.min_free_bytes" in reason
    assert not written


def other_model(index: int, size: int, directory: str) -> str:
    write(index, size, directory)
    trainer = Trainer(config(tied=False), VOCABULARY, index, size, CPU, dtype=torch.float64)
    try:
        Saving(trainer.sharded, trainer.summed, lambda _: None).load(Path(directory))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return ""


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    (said,) = run_ranks(1, tmp_path, other_model, str(fresh(tmp_path / "c")))
    assert said.startswith("CheckpointError")
    assert "do not fit this model" in said
    assert TensorFile.read(tmp_path / "c" / WEIGHTS).dtype == "float64"
