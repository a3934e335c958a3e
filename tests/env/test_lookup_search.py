"""The corpus and its search: every fact is found, and no query whatever ends the tool."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.env.lookup import tool
from libra.env.lookup.corpus import build, facts, known, word
from libra.errors import EnvError

HOSTILE = [
    "a AND",
    "NEAR(a b",
    "-x",
    "a:b",
    "nowhere : france",
    "^ france ^",
    "france *  *",
    "(" * 90 + "a",
    "NOT france",
    "france' OR 1=1 --",
    '"france',
    "; DROP TABLE facts; --",
    "france\ud800",
]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("lookup") / "facts.db"
    build(path)
    return tool.open_database(path)


def test_the_corpus_is_some_hundred_facts_each_known_once():
    assert 500 <= len(facts()) <= 1000
    assert sum(map(len, known().values())) == len(facts())
    assert known()["Seine"]["mouth"] == "English Channel"


def test_names_stay_apart_as_words():
    names = {name for f in facts() for name in (f.subject, f.object)}
    assert len({word(name) for name in names}) == len(names)


def test_every_fact_is_the_best_record_for_its_subject_and_relation(database):
    for f in facts():
        found = tool.search(database, f"{word(f.subject)} {f.relation}")
        assert found == (True, f"{f.subject} | {f.relation} | {f.object}")


def test_a_subject_weighs_more_than_an_object(database):
    assert tool.search(database, "france")[1].startswith("France | ")


def test_search_is_more_than_a_table(database):
    assert tool.search(database, "capit* AND franc*") == (True, "France | capital | Paris")
    assert tool.search(database, "object : seine") == (True, "Paris | river | Seine")
    assert tool.search(database, "English Channel mouth") == (True, "Seine | mouth | English Channel")


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_syntax_is_an_error(database, query):
    assert tool.search(database, query) == (False, "syntax")


@pytest.mark.parametrize("query", ["", "   ", '"', "*", "\0", "<>", "x" * (tool.QUERY_CHARACTERS + 1)])
def test_what_has_no_word_or_no_end_is_malformed(database, query):
    assert tool.search(database, query) == (False, "malformed")


def test_what_no_record_has_is_nothing(database):
    assert tool.search(database, "france discoverer") == (False, "nothing")
    assert tool.search(database, "atlantis") == (False, "nothing")


@settings(deadline=None)
@given(st.text(max_size=60) | st.text(alphabet='aAND ORNT()"*:^-+{}', max_size=60))
def test_any_text_is_answered(database, query):
    ok, output = tool.search(database, query)
    assert output.count(" | ") == 2 if ok else output in ("malformed", "syntax", "nothing", "failed")


def test_a_search_that_goes_on_for_ever_is_given_up(database, monkeypatch):
    monkeypatch.setattr(tool, "_STEPS", 1)
    monkeypatch.setattr(tool, "_LOOKS", 3)
    assert tool.search(database, "a* OR b* OR c* OR d*") == (False, "failed")


def test_the_database_cannot_be_written(database):
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.execute("DELETE FROM facts")


def test_a_database_that_is_not_there_is_an_error_at_the_start(tmp_path):
    with pytest.raises(sqlite3.OperationalError):
        tool.open_database(tmp_path / "none.db")


def test_a_database_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(EnvError, match=r"facts\.db.*FTS5"):
        build(tmp_path / "no" / "facts.db")
