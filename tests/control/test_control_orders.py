"""Orders: once each, with their author, answered whatever happens."""

import getpass
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest
from control_parts import Room, link, small_config, viewer

from libra.config.schema import ControlConfig
from libra.control import desk
from libra.control.desk import OrderDesk
from libra.control.messages import OrderAnswer, OrderRequest, Watch
from libra.control.peer import Peer
from libra.core.orders import Allocate, Hold, MoveRanks, Undo

pytestmark = pytest.mark.anyio
ME = Peer(os.getuid(), "me")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Taker:
    """A core that takes orders: refuses those of another epoch, counts what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[OrderRequest, str]] = []
        self.answered: Callable[[str, bool, str, int], None] = lambda *_: None
        self.epoch = 3

    def give(self, request: OrderRequest, author: str) -> None:
        self.given.append((request, author))
        if request.expected_epoch not in (None, self.epoch):
            self.answered(request.id, False, f"the allocation is {self.epoch} by now", self.epoch)
        else:
            self.epoch += 1
            self.answered(request.id, True, "", self.epoch)


def room_that_takes(**control: bool) -> tuple[Room, Taker]:
    taker = Taker()
    room = Room(small_config(control=ControlConfig(**control)), taker.give)
    taker.answered = room.control.desk.answered
    return room, taker


async def test_an_order_reaches_the_core_with_its_author_and_is_answered(tmp_path: Path) -> None:
    room, taker = room_that_takes()
    order = MoveRanks((3,), "gradient")
    async with room.open(tmp_path), link(tmp_path, "control") as peer, viewer(tmp_path, Watch(0.0, ("order",))) as eye:
        await peer.say(OrderRequest("a", 3, order))
        assert await peer.hear() == OrderAnswer("a", True, "", 4)
        author = f"{getpass.getuser()} (uid {os.getuid()})"
        assert taker.given == [(OrderRequest("a", 3, order), author)]
        news = await eye.hear()
        assert (news.topic, news.data["author"], news.data["accepted"]) == ("order", author, True)
        await peer.say(OrderRequest("b", 3, order))
        refused = await peer.hear()
        assert (refused.accepted, refused.epoch) == (False, 4)
        assert "the allocation is 4 by now" in refused.reason


async def test_the_same_id_gets_the_same_answer_and_does_nothing(tmp_path: Path) -> None:
    room, taker = room_that_takes()
    async with room.open(tmp_path), link(tmp_path, "control") as one, link(tmp_path, "control") as two:
        await one.say(OrderRequest("a", None, Hold(60.0)), OrderRequest("a", None, Hold(60.0)))
        answers = [await one.hear(), await one.hear()]
        await two.say(OrderRequest("a", None, Hold(60.0)), OrderRequest("a", None, Undo()))
        answers.append(await two.hear())
        assert answers == [answers[0]] * 3
        assert len(taker.given) == 1
        other = await two.hear()
        assert not other.accepted
        assert "used for another order" in other.reason


async def test_without_override_orders_are_refused_with_the_reason(tmp_path: Path) -> None:
    room, taker = room_that_takes(override=False)
    async with room.open(tmp_path), link(tmp_path, "control") as peer:
        await peer.say(OrderRequest("a", None, Undo()))
        answer = await peer.hear()
        assert not answer.accepted
        assert "control.override = false" in answer.reason
        assert taker.given == []


async def test_a_core_that_takes_no_orders_refuses_them(tmp_path: Path) -> None:
    async with Room().open(tmp_path), link(tmp_path, "control") as peer:
        await peer.say(OrderRequest("a", None, Allocate(1, 1)))
        answer = await peer.hear()
        assert not answer.accepted
        assert "takes no orders" in answer.reason


async def test_only_the_runs_user_and_root_may_order() -> None:
    told: list[str] = []
    taker = Taker()
    office = OrderDesk(True, taker.give, lambda: 3, lambda _request, _answer, author: told.append(author))
    taker.answered = office.answered
    stranger = Peer(os.getuid() + 12345, "eve")
    answer = await office.submit(OrderRequest("a", None, Undo()), stranger)
    assert not answer.accepted
    assert "may not order" in answer.reason
    assert told == [str(stranger)]
    assert taker.given == []
    assert (await office.submit(OrderRequest("b", None, Undo()), ME)).accepted
    assert (await office.submit(OrderRequest("c", None, Undo()), Peer(0, "root"))).accepted


async def test_an_answer_that_comes_later_is_waited_for_and_one_that_never_comes_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    office = OrderDesk(True, lambda _request, _author: None, lambda: 0, lambda *_: None)
    answers: list[OrderAnswer] = []

    async def ask() -> None:
        answers.append(await office.submit(OrderRequest("a", None, Undo()), ME))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        office.answered("a", True, "begun", 1)
        office.answered("a", False, "twice", 2)
        office.answered("unknown", True, "", 9)
    assert answers == [OrderAnswer("a", True, "begun", 1)] * 2
    monkeypatch.setattr(desk, "ANSWER_S", 0.02)
    silent = await office.submit(OrderRequest("b", None, Undo()), ME)
    assert not silent.accepted
    assert "no answer within 0.02 s" in silent.reason


async def test_the_memory_of_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "REMEMBERED", 8)
    taker = Taker()
    office = OrderDesk(True, taker.give, lambda: 0, lambda *_: None)
    taker.answered = office.answered
    for n in range(100):
        await office.submit(OrderRequest(str(n), None, Undo()), ME)
    assert len(office._cases) == 8
    await office.submit(OrderRequest("99", None, Undo()), ME)
    assert len(taker.given) == 100, "a young id is still known"


def test_orders_survive_the_wire() -> None:
    for order in (Allocate(3, 1), MoveRanks((2, 3), "rollout", "tp2"), Hold(5.0), Undo()):
        request = OrderRequest("x", 1, order)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=OrderRequest) == request
