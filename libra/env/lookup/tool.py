"""The search itself: one query a call, the best record back. Runs in a tool worker, loaded by file.

Standard library only: the worker starts without this package on its path. The database is opened once, read-only, when the
worker starts; it is named by the environment variable `LIBRA_LOOKUP`.

    run("france capital")  ->  True, "France | capital | Paris"

A query is an FTS5 expression (https://www.sqlite.org/fts5.html#full_text_query_syntax): words that must all occur, phrases,
`OR`, `NOT`, `NEAR`, prefixes. The best record has the highest BM25 score, the subject weighing most; of equals, the first in
the corpus. Errors, by their first line: `malformed` (no word at all, or too long), `syntax` (no FTS5 expression), `nothing` (no
record), `failed` (the search took too many steps). None of them ends the worker.
"""

import os
import sqlite3

QUERY_CHARACTERS = 200
"""In one query at most."""
_STEPS = 1_000
"""Steps of SQLite's machine between two looks at the count."""
_LOOKS = 2_000
"""Looks before a search is given up: two million steps, some tenths of a second."""
_SEARCH = "SELECT subject, relation, object FROM facts WHERE facts MATCH ? ORDER BY bm25(facts, 4, 2, 1), rowid LIMIT 1"


def open_database(path):
    """Read-only: what a query could do to the file, SQLite refuses."""
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    database.execute("SELECT count(*) FROM facts").fetchone()  # a worker without its corpus does not come up at all
    return database


def search(database, query):
    if not any(c.isalnum() for c in query) or len(query) > QUERY_CHARACTERS:
        return False, "malformed"
    looks = iter(range(_LOOKS))
    database.set_progress_handler(lambda: next(looks, None) is None, _STEPS)
    try:
        found = database.execute(_SEARCH, (query,)).fetchone()
    except sqlite3.OperationalError as error:
        return False, "failed" if "interrupted" in str(error) else "syntax"
    except (sqlite3.Error, UnicodeError):
        return False, "syntax"
    finally:
        database.set_progress_handler(None, 0)
    return (True, " | ".join(found)) if found else (False, "nothing")


_DATABASE = open_database(os.environ["LIBRA_LOOKUP"]) if "LIBRA_LOOKUP" in os.environ else None


def run(argument: str) -> tuple[bool, str]:
    if _DATABASE is None:
        raise RuntimeError("LIBRA_LOOKUP names no database")
    return search(_DATABASE, argument)
