"""A lease ends a role whatever the role and its supervisor do; the bookkeeping counts from the send."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from supervised import BAD_CONFIG, REPOSITORY

from libra.rank import lease
from libra.rank.lease import LeaseBook
from libra.wire import messages as m
from libra.wire.frames import pack

ORDER = m.SpawnRole(1, m.RoleSpec(3, 1, "rollout", 0, 0, 0, "abc", "secret", "/x", "cpu", BAD_CONFIG), "/x.log")


@contextmanager
def role(how: str, lease_s: float) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A role under a lease of `lease_s` that has begun to count."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, str(Path(__file__).with_name("leased_role.py")), str(theirs.fileno()), how]
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=(theirs.fileno(),),
                env={"PYTHONPATH": str(REPOSITORY)},
            )
        ours.sendall(pack(ORDER) + pack(m.Lease(time.monotonic() + 60.0)))
        assert process.stdout is not None
        assert process.stdout.readline() == "armed\n"
        ours.sendall(pack(m.Lease(time.monotonic() + lease_s)))
        try:
            yield process, ours
        finally:
            process.kill()
            process.communicate()


@pytest.mark.process
def test_a_role_ends_by_itself_with_a_reason_when_nobody_extends_its_lease() -> None:
    with role("sleep", 0.5) as (process, _):
        assert process.wait(30) == 1
        assert process.stdout is not None
        assert "role ends with 1: its lease has lapsed" in process.stdout.read()


@pytest.mark.process
def test_an_extended_lease_goes_on() -> None:
    with role("sleep", 5.0) as (process, pipe):
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            pipe.sendall(pack(m.Lease(time.monotonic() + 5.0)))
            time.sleep(0.2)
        assert process.poll() is None


@pytest.mark.process
def test_a_role_that_holds_the_interpreter_is_ended_by_the_kernel() -> None:
    """Its lease of the first frame counts: nobody in it reads another."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, str(Path(__file__).with_name("leased_role.py")), str(theirs.fileno()), "hold"]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env={"PYTHONPATH": str(REPOSITORY)})
        ours.sendall(pack(ORDER) + pack(m.Lease(time.monotonic() + 3.0)))
        assert process.wait(30) == -signal.SIGALRM


@pytest.mark.process
def test_a_role_that_was_stopped_past_its_lease_does_nothing_more_when_it_wakes() -> None:
    with role("sleep", 1.0) as (process, pipe):
        assert process.stdout is not None
        assert process.stdout.readline() == "counting\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0 + 2 * lease.LAST_WORDS_S)
        pipe.sendall(pack(m.Lease(time.monotonic() + 60.0)))  # too late
        assert process.poll() is None
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == -signal.SIGALRM


def test_a_lease_counts_from_the_send_of_the_acknowledged_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(lease.time, "monotonic", lambda: now[0])
    book = LeaseBook(6.0, hello_sent_s=99.0)
    assert book.until_s == 105.0
    for n in range(4):
        now[0] = 101.0 + n
        book.sending(n)
    assert book.seen(1)
    assert book.until_s == 102.0 + 6.0
    assert not book.seen(0), "an older acknowledgement shortens nothing"
    assert not book.seen(7), "a beat that was never sent extends nothing"
    assert book.until_s == 108.0
    now[0] = 108.0
    assert not book.lapsed
    now[0] = 108.1
    assert book.lapsed
