"""Malformed, oversized and hostile peers: each loses its own link, and nobody else notices."""

import grp
import os
import stat
from pathlib import Path

import anyio
import msgspec
import pytest
from control_parts import Room, frame, link, small_config, until, viewer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libra.config import preflight
from libra.config.schema import ControlConfig
from libra.control import server
from libra.control.messages import PROTOCOL, REQUEST_FRAME_BYTES, Hello, Watch
from libra.control.snapshot import Snapshot
from libra.controller.control import viewers_group
from libra.errors import PreflightError
from libra.wire.frames import pack
from libra.wire.rendezvous import PrivateDirectory

pytestmark = pytest.mark.anyio
GREETING = pack(Hello(PROTOCOL, "test"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


BAD = {
    "garbage": b"\xff" * 64,
    "oversized": frame(b"", REQUEST_FRAME_BYTES + 1),
    "four gigabytes": frame(b"", 0xFFFFFFFF),
    "empty": frame(b""),
    "torn msgpack": frame(b"\xdf\xff\xff\xff\xff"),
    "another vocabulary": frame(msgspec.msgpack.encode({"kind": "pickle", "data": b"cos\nsystem"})),
    "a wrong type": frame(msgspec.msgpack.encode({"kind": "watch", "snapshots_per_s": "many"})),
    "a negative rate": frame(msgspec.msgpack.encode({"kind": "watch", "snapshots_per_s": -1.0})),
    "an unknown topic": frame(msgspec.msgpack.encode({"kind": "watch", "topics": ["secrets"]})),
    "an unknown order": frame(
        msgspec.msgpack.encode({"kind": "orderrequest", "id": "a", "expected_epoch": 0, "order": {"type": "Format"}})
    ),
    "a nested bomb": frame(b"\x91" * 10_000),
    "an order without an id": frame(
        msgspec.msgpack.encode({"kind": "orderrequest", "id": "", "expected_epoch": 0, "order": {"type": "Undo"}})
    ),
    "a second hello": GREETING,
}


@pytest.mark.parametrize("which", ["view", "control"])
@pytest.mark.parametrize("greeting", [b"", GREETING], ids=["before the hello", "after it"])
@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
async def test_a_bad_frame_ends_its_link_and_no_other(tmp_path: Path, which: str, greeting: bytes, data: bytes) -> None:
    room = Room()
    if not greeting and data == GREETING:
        data = frame(msgspec.msgpack.encode({"kind": "watch"}))  # without a hello before it
    async with room.open(tmp_path), viewer(tmp_path, Watch(4.0)) as good:
        await good.hear()
        async with link(tmp_path, which, greet=False) as bad:
            await bad.raw(greeting + data)
            assert await bad.ended()
        await good.say(Watch(4.0))
        assert isinstance(await good.hear(), Snapshot)
        assert not any("fault of ours" in line for line in room.log)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=300), greeted=st.booleans(), framed=st.booleans(), view=st.booleans())
def test_whatever_bytes_come_the_others_are_served(
    tmp_path: Path, data: bytes, greeted: bool, framed: bool, view: bool
) -> None:
    async def attack() -> None:
        room = Room()
        async with room.open(tmp_path):
            async with link(tmp_path, "view" if view else "control", greet=False) as bad:
                await bad.raw((GREETING if greeted else b"") + (frame(data) if framed else data))
            async with viewer(tmp_path, Watch(1.0)) as good:
                assert isinstance(await good.hear(), Snapshot)
            assert not any("fault of ours" in line for line in room.log)

    anyio.run(attack)


async def test_a_silent_peer_is_closed_after_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_S", 0.05)
    room = Room()
    async with room.open(tmp_path), link(tmp_path, "view", greet=False) as peer:
        assert await peer.ended()


async def test_a_viewer_that_takes_nothing_is_closed_after_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WRITE_S", 0.05)
    room = Room()
    async with room.open(tmp_path), viewer(tmp_path, Watch(0.0, ("decision",)), small=True):
        await until(lambda: room.control.hub.wants("decision"))
        for n in range(500):
            room.control.hub.publish("decision", "info", "x" * 4000, {"n": n})
        await until(lambda: not room.control.hub.viewers)
        assert any("view.sock is closed" in line for line in room.log)


async def test_a_viewer_that_goes_while_it_is_written_to_is_no_fault() -> None:
    class Going:
        """Both directions notice the end at once."""

        def __init__(self) -> None:
            self.received = [GREETING, pack(Watch(1000.0))]
            self.sent = 0
            self.gone = anyio.Event()

        async def receive(self, max_bytes: int = 65536) -> bytes:
            if self.received:
                return self.received.pop(0)
            await self.gone.wait()
            raise anyio.EndOfStream

        async def send(self, item: bytes) -> None:
            self.sent += 1
            if self.sent > 1:  # after the welcome
                self.gone.set()
                try:
                    await anyio.sleep_forever()
                except anyio.get_cancelled_exc_class():
                    raise anyio.BrokenResourceError from None

        async def aclose(self) -> None:
            pass

    room, stream = Room(), Going()
    with anyio.fail_after(10):
        await room.control.server.accept_viewer(stream)  # type: ignore[arg-type]
    assert stream.sent == 2
    assert not room.log
    assert room.control.server.links["view"] == room.control.server.refused == 0


async def test_more_links_than_allowed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_LINKS", 2)
    room = Room()
    async with room.open(tmp_path), viewer(tmp_path, Watch(1.0)), viewer(tmp_path, Watch(1.0)):
        async with link(tmp_path, "view", greet=False) as third:
            assert "has 2 links already" in (await third.hear()).reason
        async with link(tmp_path, "control") as other:
            assert other is not None, "the other socket has places of its own"


async def test_sockets_are_the_users_alone(tmp_path: Path) -> None:
    room = Room()
    async with room.open(tmp_path):
        for name in ("view.sock", "control.sock"):
            found = (tmp_path / name).stat()
            assert stat.S_IMODE(found.st_mode) == 0o600
            assert found.st_uid == os.getuid()


async def test_a_configured_group_gets_to_the_view_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    group = os.getgroups()[-1] if os.getgroups() else os.getegid()
    room = Room(small_config(control=ControlConfig(group=grp.getgrgid(group).gr_name)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/0")
    assert viewers_group(room.shell.config) == group
    private = PrivateDirectory(group)
    try:
        found = private.path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o710, group)
        assert private.path.parent.name != "0", "nobody else gets through the user's own runtime directory"
        async with room.open(private.path):
            view, control = (private.path / "view.sock").stat(), (private.path / "control.sock").stat()
            assert (stat.S_IMODE(view.st_mode), view.st_gid) == (0o660, group)
            assert stat.S_IMODE(control.st_mode) == 0o600
    finally:
        private.remove()


def test_a_group_that_is_not_there_is_found_before_anything_is_loaded() -> None:
    with pytest.raises(PreflightError, match=r"control\.group: got 'nobodys-group'"):
        preflight.check(small_config(control=ControlConfig(group="nobodys-group")))
