"""Hardware and model files: those that ship are consistent; one that contradicts itself is refused by file and field."""

from pathlib import Path

import pytest

from libra.config.parts import find_part, load_hardware, load_model
from libra.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
HARDWARE = sorted((CONFIGS / "hardware").glob("*.toml"))
MODELS = [CONFIGS / f"model/{n}.toml" for n in ("qwen3-4b", "qwen3-14b", "qwen3-30b-a3b", "smollm2-135m")]


@pytest.mark.parametrize("path", HARDWARE, ids=lambda p: p.stem)
def test_a_hardware_file_that_ships_is_consistent_and_named_as_its_file(path: Path) -> None:
    assert load_hardware(path).name == path.stem


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_a_model_file_that_ships_is_consistent_and_named_as_its_file(path: Path) -> None:
    assert load_model(path).name == path.stem


def broken(tmp_path: Path, source: Path, old: str, new: str) -> Path:
    text = source.read_text()
    assert old in text
    path = tmp_path / "broken.toml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("model", "old", "new", "field"),
    [
        ("qwen3-14b", "parameters = 14_800_000_000", "parameters = 8_000_000_000", "parameters: got 8,000,000,000"),
        ("qwen3-14b", "layers = 40", "layers = 48", "parameters: got"),
        ("qwen3-14b", "layers = 40", "layers = 0", r"\$\.layers"),
        ("qwen3-14b", "kv_heads = 8", "kv_heads = 7", "kv_heads: got 7"),
        ("qwen3-14b", "hidden = 5120", "hiden = 5120", "hiden"),
        (
            "qwen3-30b-a3b",
            "active_parameters = 3_3",
            "active_parameters = 43_3",
            "active_parameters: got 43,300,000,000",
        ),
        ("qwen3-30b-a3b", "experts_per_token = 8", "experts_per_token = 16", "active_parameters: got"),
        ("qwen3-30b-a3b", "experts_per_token = 8", "experts_per_token = 129", "experts_per_token: got 129"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(tmp_path: Path, model: str, old: str, new: str, field: str) -> None:
    path = broken(tmp_path, CONFIGS / f"model/{model}.toml", old, new)
    with pytest.raises(ConfigError, match=field) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("2 = [46, 55, 67, 285]", "2 = [46, 55, 67, 60]", r"allreduce_us\.2: got"),
        ("devices_per_node = 8", "devices_per_node = 4", r"allreduce_us\.8: got TP 8"),
        ("memory_bytes = 80e9", "memory_bytes = 6e9", r"engine\.workspace_bytes"),
        ("flops = 312e12", "flops = -1.0", r"\$\.flops"),
        ("[allreduce_us]", "[allreduce]", "allreduce"),
    ],
)
def test_hardware_that_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, field: str) -> None:
    path = broken(tmp_path, CONFIGS / "hardware/a800-sxm4-80gb.toml", old, new)
    with pytest.raises(ConfigError, match=field) as caught:
        load_hardware(path)
    assert str(path) in str(caught.value)


def test_a_missing_part_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="a800-sxm4-80gb"):
        find_part("hardware", "a800")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(Path("no/such.toml"))
