"""`libra export RUN DIR`: a checkpoint as a transformers directory, which loads and generates elsewhere.

    config.toml of the run ──> config.json          (a pretrained model's own, with the type of the weights put right)
    checkpoints/step-N/weights ──> model.safetensors        copied: the names are transformers' own already
    the environment ──> tokenizer files             (and generation_config.json with the tokens that end a turn)

Written aside and renamed, so that DIR is there as a whole or not at all. No tensor is touched: torch is not imported.
"""

import json
import shutil
import tempfile
from pathlib import Path

from libra.checkpoint.directory import WEIGHTS, newest, path_of, steps, verify, whole
from libra.cli.arguments import Export
from libra.cli.runs import find
from libra.config import Config, load, pretrained
from libra.config.rundir import CONFIG_FILE
from libra.env.registry import environment
from libra.errors import CheckpointError, PreflightError


def export(args: Export) -> int:
    """Write the directory. Returns the exit code."""
    run_dir, target = find(args.run), Path(args.directory)
    if target.exists():
        raise PreflightError([f"{target} is there already; expected a directory to be made: choose another name"])
    source = _chosen(run_dir, args.step)
    config = load(run_dir / CONFIG_FILE)
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=parent) as scratch:
        made = Path(scratch) / "model"
        write(config, source, made)
        made.replace(target)
    print(f"{source.name} of {config.run.name} in {target}")
    return 0


def _chosen(run_dir: Path, step: int | None) -> Path:
    """The checkpoint of `step`, or the newest that is whole; every byte was compared. CheckpointError where there is none."""
    if step is None:
        return newest(run_dir)[0]
    if step not in (there := steps(run_dir)):
        raise CheckpointError(f"{run_dir} has checkpoints of the steps {there}; expected one of step {step} to export")
    path = path_of(run_dir, step)
    verify(path, whole(path))
    return path


def write(config: Config, source: Path, directory: Path) -> None:
    """The model of the checkpoint `source` into `directory`, which is made."""
    directory.mkdir()
    shutil.copyfile(source / WEIGHTS, directory / "model.safetensors")
    world = environment(config.live_env, config.model)
    world.save_tokenizer(directory)
    words, ends = world.vocabulary, list(world.vocabulary.stop_ids)
    ids = {"eos_token_id": ends if len(ends) > 1 else ends[0], "pad_token_id": words.pad_id}
    described = pretrained.config_json(config.model, words.size)
    if config.model.pretrained and (original := Path(config.model.pretrained) / pretrained.CONFIG_FILE).is_file():
        described = {**json.loads(original.read_bytes()), "dtype": "float32"}
        described.pop("torch_dtype", None)
    _write_json(directory / pretrained.CONFIG_FILE, described)
    _write_json(
        directory / "generation_config.json", {**ids, "do_sample": True, "temperature": config.rollout.temperature}
    )


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
