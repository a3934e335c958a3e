"""Pieces for publication, whole states, and their files."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_ranks import run_ranks
from training_parts import CPU, VOCABULARY, config

from libra.errors import WeightsError
from libra.train.sharded import read_state, save_state
from libra.train.trainer import Trainer


def pieces(index: int, size: int, group_bytes: int) -> dict[str, Any]:
    trainer = Trainer(config(), VOCABULARY, index, size, CPU, group_bytes=group_bytes)
    shards = trainer.shards()
    whole = trainer.sharded.full_state()
    for s in shards:
        assert s.data.dim() == 1
        assert s.data.is_contiguous()
        s.data.zero_()  # a view of the live parameter
    zeroed = trainer.sharded.full_state()
    with pytest.raises(WeightsError, match="does not fit"):
        trainer.sharded.load_full_state({"nothing": torch.zeros(1)})
    return {
        "shards": [(s.name, s.shape, s.start, s.data.numel()) for s in shards],
        "whole": whole,
        "left": sum(t.abs().sum().item() for t in zeroed.values()),
    }


def whole_back(index: int, size: int, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    trainer = Trainer(config(), VOCABULARY, index, size, CPU)
    trainer.sharded.load_full_state(state)
    return {
        "shards": [(s.name, s.start, s.data.clone()) for s in trainer.shards()],
        "whole": trainer.sharded.full_state(),
    }


@pytest.mark.process
@pytest.mark.parametrize(("size", "group_bytes"), [(1, 1 << 20), (2, 1), (3, 1), (3, 1 << 20)])
def test_the_pieces_of_all_ranks_cover_each_parameter_once_and_in_order(
    tmp_path: Path, size: int, group_bytes: int
) -> None:
    ranks = run_ranks(size, tmp_path, pieces, group_bytes)
    whole = ranks[0]["whole"]
    assert "lm_head.weight" not in whole, "tied"
    assert all(r["whole"] == {} for r in ranks[1:])
    assert ranks[0]["left"] == 0.0
    for position, (name, shape, _, _) in enumerate(ranks[0]["shards"]):
        end = 0
        for rank in ranks:
            got_name, got_shape, start, count = rank["shards"][position]
            assert (got_name, got_shape, start) == (name, shape, end)
            end += count
        assert shape == tuple(whole[name].shape)
        assert end == whole[name].numel()
    if size == 3:
        assert any(count == 0 for *_, count in ranks[2]["shards"]), "an empty piece is part of the test"


@pytest.mark.process
@pytest.mark.parametrize("size", [1, 3])
def test_a_whole_state_is_loaded_and_reassembles_from_the_pieces(tmp_path: Path, size: int) -> None:
    torch.manual_seed(0)
    (first,) = run_ranks(1, tmp_path, pieces, 1)
    state = {n: torch.randn_like(t) for n, t in first["whole"].items()}
    ranks = run_ranks(size, tmp_path, whole_back, state)
    built = {n: torch.full((t.numel(),), torch.nan) for n, t in state.items()}
    for rank in ranks:
        for name, start, data in rank["shards"]:
            built[name][start : start + data.numel()] = data
    for name, tensor in state.items():
        assert torch.equal(built[name].view_as(tensor), tensor)
        assert torch.equal(ranks[0]["whole"][name], tensor)


def test_a_state_file_comes_back_whole_with_its_notes(tmp_path: Path) -> None:
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}
    save_state(tmp_path / "deep" / "x.safetensors", state, {"loss": "0.5"})
    got, notes = read_state(tmp_path / "deep" / "x.safetensors")
    assert notes["loss"] == "0.5"
    assert sorted(got) == ["a", "b"]
    assert all(torch.equal(got[n], state[n]) for n in state)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.safetensors"], "nothing is left aside"


@pytest.mark.parametrize("at", [3, -3])
def test_a_flipped_byte_is_noticed(tmp_path: Path, at: int) -> None:
    path = tmp_path / "x.safetensors"
    save_state(path, {"a": torch.arange(6.0)}, {})
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="delete it"):
        read_state(path)


def test_a_reader_never_sees_half_a_file_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    state = {"a": torch.arange(20_000.0)}
    save_state(path, state, {})
    threads = [threading.Thread(target=lambda: [save_state(path, state, {}) for _ in range(20)]) for _ in range(2)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        assert torch.equal(read_state(path)[0]["a"], state["a"])
    for t in threads:
        t.join()


def test_a_state_outlives_its_file(tmp_path: Path) -> None:
    """A mapped one would end the process with SIGBUS once somebody cuts the file short."""
    path = tmp_path / "x.safetensors"
    save_state(path, {"a": torch.arange(20_000.0)}, {})
    state, _ = read_state(path)
    path.write_bytes(b"?")
    assert torch.equal(state["a"], torch.arange(20_000.0))
