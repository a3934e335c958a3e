"""The commands that look at a run and order it, against real sockets; and every way in which a run is not there."""

import json
import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from control_parts import Room, until
from test_control_orders import room_that_takes

from libra.cli.main import main
from libra.cli.text import duration, seconds_of
from libra.config.rundir import own_pid, write_pid
from libra.control import client
from libra.control.messages import PROTOCOL
from libra.control.pointer import FILE, Pointer, read_pointer, write_pointer
from libra.core.orders import (
    Allocate,
    CancelMove,
    CancelTrajectory,
    Hold,
    MoveRanks,
    Pause,
    Raise,
    Resume,
    Undo,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose controller is this very process."""
    path = tmp_path / "run"
    path.mkdir()
    write_pid(path)
    return path


async def libra(*words: str) -> int:
    """The command, in a thread: the loop has to serve it meanwhile."""
    return await anyio.to_thread.run_sync(partial(main, list(words)))


def dead_pointer(run_dir: Path, **changes: object) -> None:
    me = own_pid()
    pointer = Pointer(PROTOCOL, me.host, me.pid, me.start_ticks, "beef", str(run_dir / "v"), str(run_dir / "c"))
    write_pointer(run_dir, msgspec.structs.replace(pointer, **changes))


async def test_status_shows_the_run_to_people_and_to_programs(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    room = Room()
    room.step(150)
    async with room.open(run_dir.parent):
        assert await libra("status", str(run_dir)) == 0
        text = capsys.readouterr().out
        assert await libra("status", str(run_dir), "--json") == 0
        state = json.loads(capsys.readouterr().out)
    assert text.startswith("job  training  step ")
    for head in ("RANK  ROLE", "ENGINE  BUCKET", "TRAJECTORY  BATCH"):
        assert head in text
    assert max(map(len, text.splitlines())) <= 100
    assert state["kind"] == "snapshot"
    assert state["run"]["name"] == "job"
    assert [r["role"] for r in state["ranks"]] == ["trainer", "trainer", "rollout", "rollout"]
    assert len(state["buckets"][0]["residual"]) == 22


async def test_watch_prints_one_object_a_line_until_the_run_ends(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Room()
    room.step(100)
    codes: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            codes.append(await libra("watch", str(run_dir), "--json", "--topics", "batch,report"))

        async with room.open(run_dir.parent, abrupt=True):
            tasks.start_soon(watch)
            await until(lambda: [v for v in room.control.hub.viewers if v.sent_snapshots])
            room.step(100_000)
            await until(lambda: room.control.hub.viewers[0].sent_news >= 7)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert codes == [0]
    assert {line["kind"] for line in lines} == {"snapshot", "news"}
    assert [line["data"]["batch"] for line in lines if line.get("topic") == "batch"] == list(range(6))


async def test_news_alone_come_without_snapshots(run_dir: Path) -> None:
    room = Room()
    room.step(100_000)

    def first_news() -> list[str]:
        with client.View(run_dir) as view:
            words = view.follow(0.0, ("batch",))
            return [type(next(words)).__name__ for _ in range(6)]

    async with room.open(run_dir.parent):
        assert await anyio.to_thread.run_sync(first_news) == ["News"] * 6


@pytest.mark.parametrize(
    ("words", "order", "epoch"),
    [
        (["allocate", "--rollout", "1", "--gradient", "1", "--epoch", "3"], Allocate(1, 1), 3),
        (["allocate", "--gradient", "0"], Allocate(None, 0), None),
        (["hold", "--for", "2m"], Hold(120.0), None),
        (["pause"], Pause(), None),
        (["resume"], Resume(), None),
        (["move", "--ranks", "3", "4", "--bucket", "pair", "--epoch", "3"], MoveRanks((3, 4), "rollout", "pair"), 3),
        (["move", "--ranks", "3", "--to", "gradient"], MoveRanks((3,), "gradient"), None),
        (["drain", "--ranks", "3", "4", "--epoch", "3"], MoveRanks((3, 4), "spare"), 3),
        (["raise", "--trajectory", "17", "--group"], Raise(17, whole_group=True), None),
        (["raise", "--trajectory", "17", "--off"], Raise(17, raised=False), None),
        (["cancel", "--trajectory", "17"], CancelTrajectory(17), None),
        (["cancel", "--move", "2"], CancelMove(2), None),
        (["undo"], Undo(), None),
    ],
)
async def test_a_command_gives_its_order(
    run_dir: Path, words: list[str], order: object, epoch: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    room, taker = room_that_takes()
    async with room.open(run_dir.parent):
        assert await libra(words[0], str(run_dir), *words[1:], "--json") == 0
    ((request, _),) = taker.given
    assert (request.order, request.expected_epoch) == (order, epoch)
    assert json.loads(capsys.readouterr().out) | {"id": ""} == {
        "kind": "orderanswer", "id": "", "accepted": True, "reason": "", "epoch": 4,
    }  # fmt: skip


async def test_a_refused_order_says_why_and_fails(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room, _ = room_that_takes()
    async with room.open(run_dir.parent):
        assert await libra("allocate", str(run_dir), "--rollout", "1", "--epoch", "1") == 1
        assert capsys.readouterr().err == "libra: job refuses: the allocation is 3 by now\n"


@pytest.mark.parametrize(
    "words",
    [
        ["allocate"],
        ["allocate", "--rollout", "-1"],
        ["hold", "--for", "soon"],
        ["hold", "--for", "0"],
        ["move"],
        ["drain"],
        ["raise"],
        ["cancel"],
        ["cancel", "--move", "1", "--trajectory", "2"],
        ["watch", "--every", "often"],
        ["watch", "--topics", "gossip"],
    ],
)
def test_bad_words_are_bad_input(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "x"] if len(words) == 1 else [words[0], "x", *words[1:]]) == 2
    assert "got" in capsys.readouterr().err


def test_a_run_that_died_is_told_from_one_that_never_was(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run_dir / "nowhere")]) == 3
    assert "there is no run" in capsys.readouterr().err
    dead_pointer(run_dir, start_ticks=1)
    for words in (["status"], ["watch"], ["undo"]):
        assert main([words[0], str(run_dir)]) == 3
        assert "its controller" in capsys.readouterr().err


def test_a_run_that_is_just_starting_or_ending_says_so(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run_dir)]) == 3
    assert "has no control socket: it is starting" in capsys.readouterr().err


def test_a_run_on_another_host_names_it(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead_pointer(run_dir, host="elsewhere")
    assert main(["undo", str(run_dir)]) == 1
    assert "runs on elsewhere" in capsys.readouterr().err


def test_a_socket_that_nobody_serves_is_a_run_that_is_gone(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead_pointer(run_dir)
    assert main(["status", str(run_dir)]) == 3
    assert "does not listen" in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() == 0, reason="root may open everything")
def test_without_permission_the_error_names_the_group(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead_pointer(run_dir)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run_dir / "v"))
        server.listen()
        (run_dir / "v").chmod(0)
        assert main(["status", str(run_dir)]) == 1
    assert "[control] group" in capsys.readouterr().err


async def test_another_protocol_is_named_to_the_user(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "PROTOCOL", PROTOCOL + 1)
    async with Room().open(run_dir.parent):
        assert await libra("status", str(run_dir)) == 1
    assert f"speaks protocol {PROTOCOL + 1}, this run speaks {PROTOCOL}" in capsys.readouterr().err


def test_a_controller_that_is_stopped_is_not_waited_for_forever(run_dir: Path) -> None:
    dead_pointer(run_dir)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run_dir / "v"))
        server.listen()
        with pytest.raises(client.LibraError, match=r"no answer within 0\.05 s"):
            client.View(run_dir, timeout_s=0.05)


def test_a_finished_run_is_known_by_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "done"
    run_dir.mkdir()
    (run_dir / "config.toml").write_text("")
    summary = {"ok": True, "steps": 7, "reward_last": 0.5, "reason": "all 7 batches are consumed"}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    assert main(["status", str(run_dir)]) == 0
    assert capsys.readouterr().out == "done  finished  7 steps, reward 0.5\nall 7 batches are consumed\n"
    assert main(["status", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kind": "summary", **summary}
    assert main(["watch", str(run_dir)]) == 3


async def test_without_a_name_the_newest_running_one_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 3
    assert "no run in runs is running" in capsys.readouterr().err
    runs = tmp_path / "runs"
    for name in ("old", "run"):
        (runs / name).mkdir(parents=True)
        write_pid(runs / name)
    os.utime(runs / "old", (1, 1))
    async with Room().open(runs):
        assert await libra("status") == 0
    assert capsys.readouterr().out.startswith("job  starting")


async def test_the_pointer_stands_as_long_as_the_sockets(run_dir: Path) -> None:
    async with Room().open(run_dir.parent):
        pointer = read_pointer(run_dir)
        assert pointer is not None
        assert pointer.process == own_pid()
        assert sorted([pointer.view, pointer.control]) == sorted(
            str(run_dir.parent / s) for s in ("view.sock", "control.sock")
        )
        assert list(run_dir.glob("*control*")) == [run_dir / FILE]  # noqa: ASYNC240
    assert read_pointer(run_dir) is None


def test_times_are_read_and_written() -> None:
    assert [seconds_of(t) for t in ("90", "60s", "5m", "1.5h", "0")] == [90, 60, 300, 5400, 0]
    assert [seconds_of(t) for t in ("", "m", "-1", "1d", "1e3")] == [None] * 5
    assert [duration(t) for t in (0, 59.4, 60, 187, 7500)] == ["0s", "59s", "1m00s", "3m07s", "2h05m"]
