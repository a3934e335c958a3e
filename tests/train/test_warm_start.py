"""The supervised start: what it learns, what it keeps, and when it does it again."""

import logging
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gloo_ranks import run_ranks
from training_parts import CPU, VOCABULARY, config, worst_difference

from libra.config.schema import Config, RunConfig, WarmStartConfig
from libra.config.worlds import ToolFault, ToolLimits
from libra.train import warm_cache
from libra.train.sharded import read_state
from libra.train.trainer import Trainer
from libra.train.warm_start import Demonstration, deal, shuffled_batches, warm_start

STEPS = 12


def demonstrations(n: int) -> list[Demonstration]:
    """Counting upwards from a given token."""
    rows = [[(i + j) % VOCABULARY for j in range(2 + i % 7)] for i in range(n)]
    return [(row, [False] + [True] * (len(row) - 1)) for row in rows]


def warm_config(cache: str, steps: int = STEPS) -> Config:
    warm = WarmStartConfig(demonstrations=40, steps=steps, batch=5, lr=0.05, cache=cache)
    return msgspec.structs.replace(config(max_grad_norm=10.0), warm_start=warm)


def run_warm(index: int, size: int, cache: str, steps: int = STEPS) -> dict[str, Any]:
    c = warm_config(cache, steps)
    trainer = Trainer(c, VOCABULARY, index, size, CPU)
    asked: list[int] = []
    told: list[tuple[int, int]] = []
    warnings: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    warm_cache.log.addHandler(Collect())

    def counted(n: int) -> list[Demonstration]:
        asked.append(n)
        return demonstrations(n)

    result = warm_start(
        trainer.sharded, c, VOCABULARY, counted, lambda step, steps, loss: told.append((step, steps)) or None
    )
    state = trainer.sharded.full_state()
    return {"result": result, "state": state, "asked": asked, "told": told, "warnings": warnings}


@pytest.mark.process
def test_a_second_run_takes_the_cached_weights_whatever_its_number_of_ranks(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    made = run_ranks(2, tmp_path, run_warm, cache)
    assert not made[0]["result"].cached
    assert made[0]["result"].loss == made[1]["result"].loss
    assert made[0]["result"].loss < math.log(VOCABULARY), "something was learnt"
    assert made[0]["told"][-1] == (STEPS, STEPS)
    assert 40 in made[0]["asked"]
    (again,) = run_ranks(1, tmp_path, run_warm, cache)
    assert again["result"].cached
    assert again["result"].loss == made[0]["result"].loss
    assert 40 not in again["asked"], "no demonstrations are made for a hit"
    assert worst_difference(again["state"], made[0]["state"]) == 0.0


@pytest.mark.process
def test_ranks_learn_together_what_one_learns_alone(tmp_path: Path) -> None:
    (alone,) = run_ranks(1, tmp_path, run_warm, str(tmp_path / "one"), 3)
    three = run_ranks(3, tmp_path, run_warm, str(tmp_path / "three"), 3)
    assert three[0]["result"].loss == pytest.approx(alone["result"].loss, rel=1e-5)
    assert not three[0]["result"].cached


@pytest.mark.process
@pytest.mark.parametrize("damage", ["torn", "flipped", "foreign"])
def test_a_damaged_file_is_a_warning_and_made_again(tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    run_ranks(1, tmp_path, run_warm, str(cache), 2)
    (path,) = cache.iterdir()
    whole, (state, _) = path.read_bytes(), read_state(path)
    path.write_bytes({"torn": whole[:-7], "flipped": whole[:-3] + b"\x55" + whole[-2:], "foreign": b"?"}[damage])
    (made,) = run_ranks(1, tmp_path, run_warm, str(cache), 2)
    assert not made["result"].cached
    assert any("made again" in w for w in made["warnings"])
    assert [p.name for p in cache.iterdir()] == [path.name]
    assert worst_difference(read_state(path)[0], state) == 0.0


@pytest.mark.process
def test_without_steps_nothing_is_done_or_cached(tmp_path: Path) -> None:
    (made,) = run_ranks(1, tmp_path, run_warm, str(tmp_path / "cache"), 0)
    assert not made["result"].cached
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    warm_cache.write(tmp_path / "file" / "x.safetensors", {}, 0.5)
    assert "not cached" in caplog.text


def test_the_key_changes_with_all_that_shapes_the_weights_and_nothing_else() -> None:
    replace = msgspec.structs.replace
    c, sample = warm_config("somewhere"), demonstrations(3)
    assert isinstance(c, Config)

    def path(c: Config, vocabulary: int = VOCABULARY, sample: list[Demonstration] = sample) -> str:
        return warm_cache.cache_path(c, vocabulary, sample).name

    shaped = [
        path(replace(c, model=replace(c.model, layers=3))),
        path(replace(c, run=replace(c.run, seed=4))),
        path(replace(c, warm_start=replace(c.warm_start, steps=13))),
        path(replace(c, env=replace(c.env, max_operand=20))),
        path(c, VOCABULARY + 1),
        path(c, sample=demonstrations(4)),
        path(c),
    ]
    assert len(set(shaped)) == len(shaped)
    same = [
        replace(c, env=replace(c.env, tool=ToolLimits(workers=7), fault=ToolFault(kind="hang", rate=0.5))),
        replace(c, run=RunConfig(seed=c.run.seed, name="other", steps=7)),
        replace(c, warm_start=replace(c.warm_start, cache="elsewhere")),
    ]
    assert {path(other) for other in same} == {path(c)}


def test_the_directory_is_the_configured_one_or_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert warm_cache.directory("") == Path("/x/cache/libra")
    assert warm_cache.directory("/y") == Path("/y")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/nobody")
    assert warm_cache.directory("") == Path("/home/nobody/.cache/libra")


def test_batches_walk_every_demonstration_once_an_epoch() -> None:
    batches = shuffled_batches(10, 4, seed=1)
    epochs = [i for _ in range(5) for i in next(batches)]
    assert sorted(epochs[:10]) == sorted(epochs[10:]) == list(range(10))
    assert next(shuffled_batches(10, 4, seed=1)) == epochs[:4]
    assert next(shuffled_batches(10, 4, seed=2)) != epochs[:4]


def test_a_batch_is_dealt_out_whole_and_evenly() -> None:
    batch = demonstrations(11)
    parts = [deal(batch, index, 3) for index in range(3)]
    assert sorted(map(str, [d for part in parts for d in part])) == sorted(map(str, batch))
    tokens = [sum(len(ids) for ids, _ in part) for part in parts]
    assert max(tokens) - min(tokens) <= max(len(ids) for ids, _ in batch)
    assert deal(batch[:1], 1, 3) == []
