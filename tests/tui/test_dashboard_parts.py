"""The dashboard's pure parts: terminals, numbers, drafts, histories, changed columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tui_parts import model, state

from libra.core.orders import Arrange, MoveRanks
from tui.draft import Draft, units
from tui.history import COLUMNS, History
from tui.palette import ASCII, UNICODE, palette
from tui.terminal import look, prepare
from tui.views import text as tx
from tui.views.help import KEYS
from tui.widgets.canvas import changed

ENV = {"TERM": "xterm-256color"}


def test_over_ssh_less_is_sent_and_nothing_is_animated() -> None:
    ssh = look({**ENV, "SSH_CONNECTION": "a b"}, encoding="UTF-8")
    assert (ssh.fps, ssh.states_per_s) == (10, 2.0)
    environ: dict[str, str] = {"TEXTUAL_FPS": "5"}
    prepare(environ, ssh)
    assert environ["TEXTUAL_ANIMATIONS"] == "none"
    assert environ["TEXTUAL_FPS"] == "5", "what the user has set stays"


@pytest.mark.parametrize(
    ("environ", "encoding", "colours", "glyphs"),
    [
        (ENV, "UTF-8", "256", UNICODE),
        ({**ENV, "NO_COLOR": "1"}, "UTF-8", "none", UNICODE),
        ({"TERM": "xterm"}, "UTF-8", "16", UNICODE),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "UTF-8", "256", UNICODE),
        ({"TERM": "linux"}, "UTF-8", "16", ASCII),
        (ENV, "ANSI_X3.4-1968", "256", ASCII),
        ({}, "UTF-8", "none", ASCII),
    ],
)
def test_a_terminal_is_told_by_its_environment(environ, encoding, colours, glyphs) -> None:
    terminal = look(environ, encoding=encoding)
    assert (terminal.colours, terminal.glyphs) == (colours, glyphs)


def test_without_colours_no_style_has_one_and_every_palette_has_every_name() -> None:
    assert all(style.color is None and style.bgcolor is None for style in palette("none").values())
    assert palette("none").keys() == palette("16").keys() == palette("256").keys()


def test_no_key_does_two_things() -> None:
    names = [name for key in KEYS for name in key.name.split(",")]
    assert len(names) == len(set(names))


@given(st.floats(0, 1e12))
def test_numbers_and_seconds_stay_in_their_columns(value: float) -> None:
    assert len(tx.number(value)) <= 6
    assert len(tx.seconds(min(value, 3e7))) <= 7
    assert len(tx.age(min(value, 359999.0))) <= 6


@given(st.text(max_size=40), st.integers(0, 30))
def test_a_cell_has_its_width_whatever_it_holds(text: str, width: int) -> None:
    assert tx.width_of(((tx.fit(text, width), ""),)) == width
    assert tx.width_of(tx.cut(((tx.clean(text), ""), ("x", "")), width)) == width


@given(st.text("ab ", max_size=30), st.text("ab ", max_size=30))
def test_changed_columns_are_all_that_differ(old: str, new: str) -> None:
    spans = changed(((old, ""),), ((new, ""),))
    a, b = old.ljust(30), new.ljust(30)
    for x in range(30):
        if a[x] != b[x]:
            assert any(x0 <= x < x1 for x0, x1 in spans)
    assert bool(spans) == (a != b)


def test_filters_match_words_and_whole_fields() -> None:
    assert tx.matches("Roll up", "rollout", "up")
    assert not tx.matches("=engine3", "engine31")
    assert tx.matches("=engine3", "engine3")


def test_units_with_one_target_make_one_move_and_others_an_arrangement() -> None:
    s, draft = state(), Draft()
    by_name = {u.name: u for u in units(s)}
    draft.move(by_name["engine 0"], s)
    draft.move(by_name["engine 1"], s)
    assert draft.order() == MoveRanks((3, 4), "gradient")
    draft.move(by_name["replica 99"], s)
    assert draft.order() == Arrange((MoveRanks((3, 4), "gradient"), MoveRanks((9, 10), "rollout", "tp2")))
    draft.reshape(by_name["replica 99"], s)
    assert MoveRanks((9, 10), "rollout", "tp1") in draft.order().moves  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("home", "bucket"),
    [
        ({}, "tp2"),  # never served: the engines of its size
        ({9: "tp1", 10: "tp1"}, "tp1"),
        ({9: "tp1", 10: "tp2"}, "tp2"),  # from two places: again the size
        ({9: "gone", 10: "gone"}, "tp2"),
    ],
)
def test_a_replica_goes_back_to_the_bucket_that_its_ranks_came_from(home: dict[int, str], bucket: str) -> None:
    s = state()
    s = structs.replace(s, allocation=structs.replace(s.allocation, home=home))
    draft = Draft()
    draft.move(units(s)[-1], s)
    assert draft.order() == MoveRanks((9, 10), "rollout", bucket)


def test_core_trainers_never_stand_in_a_draft() -> None:
    s, draft = state(), Draft()
    trainer = units(s)[0]
    for edit in (draft.move(trainer, s), draft.reshape(trainer, s), draft.drain(trainer)):
        assert "core trainers stay" in edit
    assert draft.order() is None


@given(st.lists(st.sampled_from("+-mbx"), max_size=30), st.integers(0, 7))
def test_every_draft_is_whole_units_elsewhere(keys: list[str], at: int) -> None:
    s, draft = state(), Draft()
    present = units(s)
    unit = present[at % len(present)]
    for key in keys:
        match key:
            case "+":
                draft.more_rollout(s)
            case "-":
                draft.less_rollout(s)
            case "m":
                draft.move(unit, s)
            case "b":
                draft.reshape(unit, s)
            case _:
                draft.drain(unit)
    places = {u.ranks: u.now for u in present}
    assert all(places[ranks] not in (None, target) for ranks, target in draft.marks.items())
    order = draft.order()
    moves = () if order is None else order.moves if isinstance(order, Arrange) else (order,)
    ranks = [rank for m in moves for rank in m.ranks]
    assert sorted(ranks) == sorted(rank for unit_ranks in draft.marks for rank in unit_ranks)
    assert len(draft.difference(s)) == len(draft.marks)


def test_busy_is_the_share_of_each_step() -> None:
    history = History()
    for n in range(1, 41):
        history.take(state(n))
    assert [c.step for c in history.newest(10)] == [0, 1, 2, 3, 4]
    assert {c.of(1) for c in history.newest(10)} == {90}, "the trainer reports 0.9 s a second"
    assert {c.of(9) for c in history.newest(10)} == {40}
    assert history.newest(1)[0].of(4) == 100, "its engine ran something all the time"
    assert history.newest(1)[0].of(99) == 255


def test_a_history_is_bounded_and_begins_anew_where_time_goes_back() -> None:
    history = History()
    for n in range(1, 2000):
        history.take(state(n))
    assert len(history.columns) == COLUMNS
    history.take(state(5))
    assert not history.columns


def test_a_counter_that_began_anew_is_not_a_negative_share() -> None:
    history = History()
    history.take(state(1))
    s = state(2)
    history.take(structs.replace(s, ranks=(structs.replace(s.ranks[0], busy_s=0.0), *s.ranks[1:])))
    assert history.newest(1)[0].of(1) == 255


def test_news_that_were_heard_are_not_heard_twice() -> None:
    m = model()
    for n in list(m.news):
        m.hear(n)
    assert len(m.news) == 40
