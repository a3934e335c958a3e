"""Reading JSON lines that people bring: every fault names file, line and field, says what was got, and all come at once.

Nothing is repaired: a negative, missing, null or non-finite number is an error here, never a clamp. Used by the importers.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from libra.errors import ConfigError

SHOWN = 20
"""Faults that one error lists; reading stops there."""
_FIELD = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
T = TypeVar("T")


def read_lines(path: Path | str) -> list[bytes]:
    """The file's lines; a file that cannot be read is a ConfigError."""
    try:
        return Path(path).read_bytes().splitlines()
    except OSError as e:
        raise ConfigError(str(path), [f"cannot be read: {e.strerror}; expected a file of JSON lines"]) from None


class Faults:
    """Collects one line for each fault of a source and raises them together."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._problems: list[str] = []

    def add(self, line: int, field: str, what: str) -> None:
        self._problems.append(f"line {line}, {field}: {what}" if field else f"line {line}: {what}")
        if len(self._problems) >= SHOWN:
            self._problems.append(f"reading stopped after {SHOWN} faults")
            self.settle()

    def settle(self) -> None:
        if self._problems:
            raise ConfigError(self.source, self._problems)


def decode(lines: Iterable[bytes], kind: type[T], faults: Faults) -> Iterator[tuple[int, T]]:
    """(line number from 1, value) of each well-formed line; blank lines are passed over. The caller settles `faults`."""
    decoder = msgspec.json.Decoder(kind)
    empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        empty = False
        try:
            value = decoder.decode(line)
        except msgspec.DecodeError as e:
            faults.add(number, *_explain(line, e))
            continue
        yield number, value
    if empty:
        faults.add(1, "", "the file is empty; expected one JSON object a line")


def _explain(line: bytes, error: msgspec.DecodeError) -> tuple[str, str]:
    """(field, what is wrong with it)."""
    if not isinstance(error, msgspec.ValidationError):
        return _non_finite(line) or ("", f"not JSON: {error}")
    found = _FIELD.match(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    missing = _MISSING.search(what)
    if missing:
        return f"{path}.{missing['name']}".lstrip("."), "missing"
    expected = what[0].lower() + what[1:]
    try:
        got = _at(json.loads(line), path)
    except (ValueError, LookupError, TypeError):
        return path, expected
    return path, f"got {json.dumps(got)[:60]}, {expected}"


def _non_finite(line: bytes) -> tuple[str, str] | None:
    """The first NaN or Infinity of a line that is JSON but for those."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    for path, number in _floats(value, ""):
        if not math.isfinite(number):
            return path.lstrip("."), f"got {number}, expected a finite number"
    return None


def _floats(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _floats(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _floats(inner, f"{path}[{i}]")


def _at(value: object, path: str) -> object:
    """The value at a path such as `turns[2].tool_s`."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[name] if name else value[int(index)]  # type: ignore[index]
    return value
