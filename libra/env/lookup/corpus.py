"""The corpus of the look-up: facts that refer to each other, and the database in which the tool searches them.

`corpus.tsv` carries them (public domain; its header says what is in it). A fact is a subject, a relation and an object; objects
are subjects of other facts, so that questions of several hops exist: the discoverer of an element, the country of his birth,
its capital, the river there. Invariant: (subject, relation) is unique. Called by tasks, tokens and the environment.
"""

import re
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from msgspec import Struct

from libra.errors import EnvError

_FILE = Path(__file__).with_name("corpus.tsv")
_NO_WORD = re.compile(r"\W+")


class Fact(Struct, frozen=True):
    subject: str
    relation: str
    object: str


@cache
def facts() -> tuple[Fact, ...]:
    """All, in the file's order."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return tuple(Fact(*line.split("\t")) for line in lines if not line.startswith("#"))


@cache
def known() -> dict[str, dict[str, str]]:
    """Subject -> relation -> object."""
    table: dict[str, dict[str, str]] = {}
    for fact in facts():
        table.setdefault(fact.subject, {})[fact.relation] = fact.object
    return table


def word(name: str) -> str:
    """A name as one word: "English Channel" is `english_channel`, which full-text search takes for the phrase."""
    return _NO_WORD.sub("_", name.lower())


def build(path: Path) -> None:
    """Write the database. EnvError where this Python's SQLite cannot search text or the disk refuses."""
    try:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE VIRTUAL TABLE facts USING fts5(subject, relation, object)")
            rows = [(f.subject, f.relation, f.object) for f in facts()]
            database.executemany("INSERT INTO facts VALUES (?, ?, ?)", rows)
    except sqlite3.Error as error:
        raise EnvError(
            f"the look-up's database cannot be written to {path}: {error}; it needs a Python whose SQLite has FTS5 "
            f"(this is SQLite {sqlite3.sqlite_version}) and some room in the directory of temporary files"
        ) from error
