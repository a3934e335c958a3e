"""From a TOML file, its parts and the command line to one checked `Config`, and back.

    parts (`include`, in order)  <  the file  <  --section.key value
    cost.hardware = "a800-sxm4-80gb"  is replaced by the table in configs/hardware/a800-sxm4-80gb.toml
    model.pretrained = "ORG/NAME"     is replaced by its directory, and brings the other keys of [model] with it

A later source wins key by key; arrays (`bucket`) are replaced whole. All faults of all sources are reported at once, before
anything else is loaded. The resolved configuration includes and names no parts: `dump` writes it so that it stands alone.
Called by `resolve` and by whoever opens a run directory.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from libra.config import convert, pretrained
from libra.config.convert import COMMAND_LINE, Text, dotted
from libra.config.parts import find_part, hardware_problems, model_problems
from libra.config.schema import Config, ModelConfig
from libra.errors import ConfigError

Tree = dict[str, Any]
Origins = dict[convert.Path, str]


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of `path` with `overrides` (`["--trainer.lr", "1e-4"]` or `["--trainer.lr=1e-4"]`) on top.

    Raises ConfigError with every fault of the file, its parts and the overrides.
    """
    source = str(path)
    problems: list[str] = []
    tree, origins = _read(Path(path), (), problems)
    tree.pop("include", None)
    for keys, text in _pairs(overrides, problems):
        _override(tree, origins, keys, text, problems)
        _name_parts(tree, origins, COMMAND_LINE, problems)
    config, faults = convert.convert(tree, origins, source)
    if config is not None:
        config = _pretrained(config, tree, origins, source, faults)
        faults += _contradictions(config, origins, source)
    if problems or faults or config is None:
        raise ConfigError(source, problems + faults)
    return config


def dump(config: Config) -> str:
    """The configuration as TOML that loads back to an equal one. Values that are None are left out: None is their default."""
    tables = msgspec.to_builtins(config, str_keys=True)
    del tables["include"]
    return tomli_w.dumps(_without_none(tables))


# --- files and their parts


def _read(path: Path, above: tuple[Path, ...], problems: list[str]) -> tuple[Tree, Origins]:
    """The merged tree of a file and its parts, and where each leaf came from. `above` are the files that include it."""
    here = path.resolve()
    if here in above:
        chain = " -> ".join(p.name for p in (*above[above.index(here) :], here))
        problems.append(f"include in {above[-1].name}: a cycle ({chain}); remove one of these includes")
        return {}, {}
    own = _parse(path, problems)
    tree: Tree = {}
    origins: Origins = {}
    for part in _includes(own, path, problems):
        below, below_origins = _read(path.parent / part, (*above, here), problems)
        _merge(tree, origins, below, below_origins, ())
    own_origins = dict.fromkeys(_leaves(own, ()), f"in {path}")
    for kind in _name_parts(own, own_origins, f"in {path}", problems):
        tree.get("cost", {}).pop(kind, None)  # another device is another device: nothing of the former one stays
    _merge(tree, origins, own, own_origins, ())
    return tree, origins


def _parse(path: Path, problems: list[str]) -> Tree:
    try:
        with path.open("rb") as f:
            return tomllib.load(f)
    except FileNotFoundError:
        problems.append(f"{path}: no such file{_nearest_file(path)}")
    except OSError as e:
        problems.append(f"{path}: cannot be read ({e.strerror})")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        problems.append(f"{path}: not valid TOML: {e}")
    return {}


def _nearest_file(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix == ".toml"]
    except OSError:
        return f"; there is no directory {path.parent} either"
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def _includes(own: Tree, path: Path, problems: list[str]) -> list[str]:
    parts = own.pop("include", [])
    if isinstance(parts, list) and all(isinstance(p, str) for p in parts):
        return parts
    problems.append(f'include in {path}: got {parts!r}, expected an array of paths, as include = ["model/tiny.toml"]')
    return []


def _merge(into: Tree, origins: Origins, tree: Mapping[str, Any], tree_origins: Origins, at: convert.Path) -> None:
    for key, value in tree.items():
        here = (*at, key)
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], origins, value, tree_origins, here)
            continue
        for old in [o for o in origins if o[: len(here)] == here]:
            del origins[old]
        into[key] = value
        origins.update({o: name for o, name in tree_origins.items() if o[: len(here)] == here})


def _leaves(value: object, at: convert.Path) -> list[convert.Path]:
    """Paths of all values that are no tables; an empty table counts, so that a complaint about it finds its file."""
    if isinstance(value, Mapping) and (value or not at):
        return [leaf for key, v in value.items() for leaf in [(*at, key), *_leaves(v, (*at, key))]]
    if isinstance(value, list):
        return [at, *(leaf for i, v in enumerate(value) for leaf in _leaves(v, (*at, i)))]
    return [at]


def _name_parts(tree: Tree, origins: Origins, source: str, problems: list[str]) -> list[str]:
    """Put the tables of cost parts where their names stand, and tell which were named."""
    cost = tree.get("cost")
    if not isinstance(cost, dict):
        return []
    named = [kind for kind in ("hardware", "model") if isinstance(cost.get(kind), str)]
    for kind in named:
        name = str(cost[kind])
        cost[kind] = {}
        try:
            path = find_part(kind, name)
        except ConfigError as e:
            problems += [f"cost.{kind} {origins.get(('cost', kind), source)}: {p}" for p in e.problems]
            tree.pop("cost", None)  # one complaint is enough
            return named
        cost[kind] = _parse(path, problems)
        origins.update(dict.fromkeys(_leaves({"cost": {kind: cost[kind]}}, ()), f"in {path}"))
    return named


def _pretrained(config: Config, tree: Tree, origins: Origins, source: str, problems: list[str]) -> Config:
    """With `[model]` filled in from the config.json of its pretrained model. One that states every key stands alone: a run's
    own directory can be read after the model's has gone."""
    stated = tree.get("model", {})
    if not config.model.pretrained or set(stated) == set(ModelConfig.__struct_fields__):
        return config
    where = origins.get(("model", "pretrained"), f"in {source}")
    try:
        directory = pretrained.find(config.model.pretrained)
        described = pretrained.describe(directory)
    except ConfigError as e:
        named = "" if e.source == "model.pretrained" else f"model.pretrained {where}: {e.source}: "
        problems += [named + p for p in e.problems]
        return config
    problems += [
        f"model.{key} {origins.get(('model', key), where)}: got {getattr(config.model, key)!r} beside model.pretrained, whose "
        f"config.json says {described[key]!r}; leave the key out"
        for key in stated
        if key in described and getattr(config.model, key) != described[key]
    ]
    try:
        model = msgspec.convert({**described, "pretrained": str(directory)}, ModelConfig)
    except msgspec.ValidationError as e:
        problems.append(f"model.pretrained {where}: {directory / pretrained.CONFIG_FILE}: {e}")
        return config
    return msgspec.structs.replace(config, model=model)


def _contradictions(config: Config, origins: Origins, source: str) -> list[str]:
    """What contradicts itself inside a part."""
    if config.cost is None:
        return []
    lines = [("hardware", line) for line in hardware_problems(config.cost.hardware)]
    lines += [("model", line) for line in model_problems(config.cost.model)]
    return [f"cost.{kind}.{line} ({origins.get(('cost', kind, 'name'), f'in {source}')})" for kind, line in lines]


# --- the command line


def _pairs(overrides: Sequence[str], problems: list[str]) -> list[tuple[list[str], Text]]:
    """`--a.b v` and `--a.b=v` as (keys, text)."""
    pairs: list[tuple[list[str], Text]] = []
    words = iter(overrides)
    for word in words:
        name, equals, text = word.partition("=")
        if not name.startswith("--") or "." not in name:
            problems.append(f"{word!r} on the command line: expected --section.key value, as --trainer.lr 1e-4")
            continue
        if not equals:
            following = next(words, None)
            if following is None:
                problems.append(f"{name} on the command line: its value is missing")
                break
            text = following
        pairs.append((name[2:].split("."), Text(text)))
    return pairs


def _override(tree: Tree, origins: Origins, keys: list[str], text: Text, problems: list[str]) -> None:
    """Put `text` where `keys` point; arrays are entered by index, and start from the defaults where no file sets them."""
    node: Any = tree
    default: Any = msgspec.to_builtins(Config())
    at: convert.Path = ()
    for depth, key in enumerate(keys):
        is_last = depth == len(keys) - 1
        step: Any = int(key) if isinstance(node, list) and key.isdecimal() else key
        at = (*at, step)
        if isinstance(node, list) and not (isinstance(step, int) and step < len(node)):
            problems.append(f"{dotted(at)} on the command line: {dotted(at[:-1])} has entries 0 to {len(node) - 1}")
            return
        default = default.get(key) if isinstance(default, dict) else None
        if is_last:
            node[step] = text
            origins[at] = COMMAND_LINE
        else:
            if isinstance(node, dict) and key not in node:
                node[key] = list(default) if isinstance(default, list | tuple) else {}
                origins[at] = COMMAND_LINE
            node = node[step]
            if not isinstance(node, dict | list):
                problems.append(f"{dotted(at)} on the command line: not a table, so it has no key {keys[depth + 1]!r}")
                return


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
