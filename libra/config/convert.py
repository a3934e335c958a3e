"""Turns a raw tree of tables into the Structs of `schema`, collecting every fault instead of stopping at the first.

msgspec converts single values and checks their ranges; the walk over tables and arrays is ours, because msgspec raises at
the first fault. Nothing is coerced: a string is never a number, except a `Text` from the command line, which is read as
whatever its field holds. Called by `load`.
"""

import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Union

import msgspec
from msgspec import Struct, inspect

from libra.config.schema import Config

Path = tuple[str | int, ...]
COMMAND_LINE = "on the command line"


class Text(str):
    """A value as typed on the command line; its field's type decides how it is read."""

    __slots__ = ()


def dotted(path: Path) -> str:
    """`("bucket", 0, "tp")` as a person writes it: `bucket.0.tp`."""
    return ".".join(str(p) for p in path)


def convert(raw: Mapping[str, Any], origins: Mapping[Path, str], source: str) -> tuple[Config | None, list[str]]:
    """The configuration that `raw` describes, or None and one line for each fault.

    `origins` says which file (or the command line) a value came from; what it does not name came from `source`.
    """
    walk = _Walk(origins, source)
    config = walk.table(Config, raw, ())
    return (None, walk.problems) if walk.problems else (typing.cast(Config, config), [])


class _Walk:
    def __init__(self, origins: Mapping[Path, str], source: str) -> None:
        self._origins = origins
        self._source = f"in {source}"
        self.problems: list[str] = []

    def table(self, cls: type[Struct], raw: object, path: Path) -> Struct | None:
        if not isinstance(raw, Mapping):
            return self._wrong(path, raw, f"a table with keys like {dotted((*path, _fields(cls)[0].name))}")
        values: dict[str, Any] = {}
        fields = {f.encode_name: f for f in _fields(cls)}
        tag = cls.__struct_config__.tag_field
        for key, value in raw.items():
            if key in fields:
                values[fields[key].name] = self.value(fields[key].type, value, (*path, key))
            elif key != tag:
                self._unknown(cls, (*path, key))
        missing = [f.encode_name for f in fields.values() if f.required and f.encode_name not in raw]
        for key in missing:
            self._say((*path, key), f"missing; expected {_words(inspect.type_info(fields[key].type))}")
        return None if self.problems else cls(**values)

    def value(self, kind: Any, raw: object, path: Path) -> Any:
        base = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
        if tables := _tables(base):
            cls = self._pick(tables, raw, path)
            return None if cls is None else self.table(cls, raw, path)
        if typing.get_origin(base) is tuple:
            return self._array(kind, typing.get_args(base)[0], raw, path)
        return self._leaf(kind, raw, path)

    def _pick(self, tables: list[type[Struct]], raw: object, path: Path) -> type[Struct] | None:
        """Which of the Structs a tagged table means; the first one where the table does not say."""
        field = tables[0].__struct_config__.tag_field
        if field is None or not isinstance(raw, Mapping) or field not in raw:
            return tables[0]
        by_tag = {str(t.__struct_config__.tag): t for t in tables}
        if (tag := raw[field]) in by_tag:
            return by_tag[tag]
        return self._wrong((*path, field), tag, _choices(list(by_tag), tag))

    def _array(self, kind: Any, item: Any, raw: object, path: Path) -> Any:
        if isinstance(raw, Text):
            return self._wrong(path, raw, f"one entry at a time on the command line, as --{dotted(path)}.0")
        if not isinstance(raw, list):
            shape = f"an array of tables ([[{dotted(path)}]])" if _tables(item) else "an array"
            return self._wrong(path, raw, shape)
        least = getattr(inspect.type_info(kind), "min_length", None) or 0
        if len(raw) < least:
            return self._wrong(path, raw, f"at least {least} entr{'y' if least == 1 else 'ies'}")
        return tuple(self.value(item, v, (*path, i)) for i, v in enumerate(raw))

    def _leaf(self, kind: Any, raw: object, path: Path) -> Any:
        info = inspect.type_info(kind)
        value = _read(raw, info) if isinstance(raw, Text) else raw
        try:
            value = msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError:
            return self._wrong(path, raw, _words(info, raw))
        if isinstance(value, float) and not math.isfinite(value):
            return self._wrong(path, raw, _words(info, raw) + ", and finite")
        return value

    def _unknown(self, cls: type[Struct], path: Path) -> None:
        """Names the nearest key of the same table, else the nearest in any table."""
        key = str(path[-1])
        near = difflib.get_close_matches(key, [f.encode_name for f in _fields(cls)], n=1)
        hints = [dotted((*path[:-1], near[0]))] if near else _elsewhere(key)
        self._say(path, "unknown key; " + (f"did you mean {' or '.join(hints)}?" if hints else _known(cls, path)))

    def _wrong(self, path: Path, got: object, expected: str) -> None:
        self._say(path, f"got {_shown(got)}, expected {expected}")

    def _say(self, path: Path, what: str) -> None:
        origin = next((self._origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._origins), None)
        self.problems.append(f"{dotted(path) or 'the file'} {origin or self._source}: {what}")


def _fields(cls: type[Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(cls)


def _tables(kind: Any) -> list[type[Struct]]:
    """The Structs that a field of this type may hold: itself, or the members of a union of Structs (and None)."""
    members = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    members = [m for m in members if m is not types.NoneType]
    return members if all(isinstance(m, type) and issubclass(m, Struct) for m in members) else []


def _read(text: Text, info: inspect.Type) -> object:
    """The text as a value of the field's type; unchanged where it is none, for the complaint to quote."""
    match info:
        case inspect.Metadata():
            return _read(text, info.type)
        case inspect.UnionType() if text == "none" and any(isinstance(t, inspect.NoneType) for t in info.types):
            return None
        case inspect.UnionType():
            read = (_read(text, t) for t in info.types if not isinstance(t, inspect.NoneType))
            return next((v for v in read if not isinstance(v, Text)), str(text))
        case inspect.BoolType():
            return {"true": True, "false": False}.get(text, text)
        case inspect.IntType() | inspect.FloatType():
            try:
                return int(text) if isinstance(info, inspect.IntType) else float(text)
            except ValueError:
                return text
        case _:
            return str(text)


def _words(info: inspect.Type, got: object = None) -> str:
    """What a field accepts, for people: "a whole number from 1 to 10"."""
    match info:
        case inspect.Metadata():
            described = (info.extra_json_schema or {}).get("description")
            return described or _words(info.type, got)
        case inspect.UnionType():
            return " or ".join(_words(t, got) for t in info.types)
        case inspect.NoneType():
            return 'none (leave it out, or "none" on the command line)'
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return _choices(list(info.values), got)
        case inspect.IntType():
            return "a whole number" + _range(info)
        case inspect.FloatType():
            return "a number" + _range(info)
        case inspect.DictType():
            return "a table of arrays"
        case inspect.StrType():
            return "a string" + (f" that matches {info.pattern}" if info.pattern else "")
        case _:
            return type(info).__name__.removesuffix("Type").lower()


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    bounds = [("of at least", info.ge), ("above", info.gt), ("of at most", info.le), ("below", info.lt)]
    said = [f"{word} {bound}" for word, bound in bounds if bound is not None]
    return f" {' and '.join(said)}" if said else ""


def _choices(known: list[Any], got: object) -> str:
    near = difflib.get_close_matches(str(got), [str(k) for k in known], n=1)
    hint = f" (nearest: {_shown(near[0])})" if near else ""
    return ("one of " if len(known) > 1 else "") + ", ".join(_shown(k) for k in known) + hint


def _shown(value: object) -> str:
    """A value as TOML writes it, cut where it is long."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            text = repr(str(value))
        case Mapping():
            text = "a table"
        case list():
            text = f"an array of {len(value)}"
        case _:
            text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known(cls: type[Struct], path: Path) -> str:
    where = f"[{dotted(path[:-1])}]" if len(path) > 1 else "a configuration"
    return f"{where} knows {', '.join(f.encode_name for f in _fields(cls))}"


def _elsewhere(key: str) -> list[str]:
    """Full paths, in any table, of the key nearest to `key`; at most two."""
    paths: dict[str, list[str]] = {}
    for path in _all_keys(Config, ()):
        paths.setdefault(str(path[-1]), []).append(dotted(path))
    near = difflib.get_close_matches(key, paths, n=1, cutoff=0.75)
    return paths[near[0]][:2] if near else []


def _all_keys(cls: type[Struct], path: Path) -> Iterator[Path]:
    for f in _fields(cls):
        here = (*path, f.encode_name)
        base = typing.get_args(f.type)[0] if typing.get_origin(f.type) is typing.Annotated else f.type
        is_array = typing.get_origin(base) is tuple
        inner = _tables(typing.get_args(base)[0] if is_array else base)
        yield here
        for table in inner:
            yield from _all_keys(table, (*here, 0) if is_array else here)
