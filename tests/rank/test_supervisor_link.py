"""A supervisor against a controller played by the test: two roles, leases, loss and return, what it leaves behind."""

import os
import signal
import time
from pathlib import Path

import pytest
from supervised import Supervised

from libra.wire import messages as m

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]
WELCOME = m.Welcome(0.1, 30.0, "nothing", 1)
SHORT = m.Welcome(0.1, 4.0, "nothing", 1)


def descriptors(run: Supervised) -> int:
    return len(list(Path(f"/proc/{run.process.pid}/fd").iterdir()))


def threads(run: Supervised) -> int:
    return len(list(Path(f"/proc/{run.process.pid}/task").iterdir()))


def test_a_role_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Supervised(tmp_path) as run:
        link = run.join(WELCOME)
        link.send(run.order(7))
        exited = link.next(m.ChildExited)
        assert (exited.start, exited.code) == (7, 1)
        assert "role ends with 1: DecodeError" in exited.log_tail
        assert "role ends with 1: DecodeError" in run.log(7)
        link.send(m.Shutdown(1.0))
        assert run.process.wait(30) == 0


def test_a_spare_takes_the_next_order_and_another_is_made(tmp_path: Path) -> None:
    with Supervised(tmp_path) as run:
        link = run.join(WELCOME)

        for start in (1, 2):
            run.until("a ready spare", lambda: link.next(m.Heartbeat).spare)
            (pid,) = run.children()
            os.kill(pid, signal.SIGSTOP)  # so that it is there to be looked at
            link.send(run.order(start))
            while [x.start for x in link.next(m.Heartbeat).roles] != [start]:
                pass
            assert list(run.children()) == [pid], "nobody else was started"
            os.kill(pid, signal.SIGCONT)
            assert link.next(m.ChildExited).start == start
            assert "DecodeError" in run.log(start)


def test_a_dead_spare_is_told_and_does_not_come_again_and_again(tmp_path: Path) -> None:
    with Supervised(tmp_path) as run:
        link = run.join(m.Welcome(0.1, 30.0, "nothing", 1))
        pid = run.until("a spare", lambda: link.next(m.Heartbeat) and max(run.children(), default=0))
        os.kill(pid, signal.SIGKILL)
        run.until("its end", lambda: link.next(m.Heartbeat) and "a spare child ended with -9" in run.errors.read_text())
        for _ in range(30):
            link.next(m.Heartbeat)
        assert run.children() == {}
        link.send(run.order(1))
        assert link.next(m.ChildExited).start == 1
        run.until("a new one", lambda: link.next(m.Heartbeat) and run.children())


def test_two_roles_live_side_by_side_and_a_third_is_refused(tmp_path: Path) -> None:
    with Supervised(tmp_path) as run:
        link = run.join(WELCOME)
        link.send(run.order(1))
        first = run.until("the first", lambda: list(run.children()))[0]
        os.kill(first, signal.SIGSTOP)
        link.send(run.order(2))
        second = run.until("the second", lambda: [p for p in run.children() if p != first])[0]
        os.kill(second, signal.SIGSTOP)
        run.until("both", lambda: [x.start for x in link.next(m.Heartbeat).roles] == [1, 2])
        link.send(run.order(3))
        refused = link.next(m.ChildExited)
        assert (refused.start, refused.code) == (3, 1)
        assert "rank 3 holds the roles of starts 1 and 2, expected at most one" in refused.log_tail
        link.send(m.KillRole(1, 0.1))
        killed = link.next(m.ChildExited)
        assert (killed.start, killed.code) == (1, -signal.SIGKILL), "a stopped role cannot end by itself"
        assert [x.start for x in link.next(m.Heartbeat).roles] == [2]
        link.send(m.Shutdown(0.1))
        assert run.process.wait(30) == 0
        assert run.children() == {}


def test_a_supervisor_that_is_cut_off_ends_its_roles_and_comes_back_without(tmp_path: Path) -> None:
    with Supervised(tmp_path) as run:
        link = run.join(WELCOME)
        link.send(run.order(1))
        os.kill(run.until("the role", lambda: list(run.children()))[0], signal.SIGSTOP)
        link.next(m.Heartbeat)
        link.close()
        link = run.join(WELCOME)  # asserts that its hello names no role
        assert link.next(m.Heartbeat).roles == ()
        link.send(run.order(2))
        assert link.next(m.ChildExited).start == 2, "it is used again; the end of 1 is no news"


def test_a_supervisor_whose_beats_are_not_acknowledged_gives_the_link_up(tmp_path: Path) -> None:
    """What a partition looks like: the link stands, and nothing comes through."""
    with Supervised(tmp_path) as run:
        link = run.join(SHORT)
        began = time.monotonic()
        while time.monotonic() - began < 2 * SHORT.lease_s:  # acknowledged beats extend it
            link.next(m.Heartbeat)
        hello, again = run.accept()
        assert isinstance(hello, m.SupervisorHello)
        assert hello.roles == ()
        link.until_closed()
        again.send(m.Refused("no"))
        assert run.process.wait(30) == 0, "a rank that is not taken back leaves the run alone"
        assert "the controller refused rank 3: no" in run.errors.read_text()


def test_a_supervisor_without_a_controller_ends_with_0(tmp_path: Path) -> None:
    with Supervised(tmp_path) as run:
        link = run.join(WELCOME)
        run.close_controller()
        link.close()
        assert run.process.wait(30) == 0
        assert "the controller is gone" in run.errors.read_text()
        assert run.children() == {}


@pytest.mark.timeout(240)
def test_a_hundred_roles_leave_nothing_behind(tmp_path: Path) -> None:
    """Half end by themselves, half are killed on their way; two at a time."""
    with Supervised(tmp_path) as run:
        link = run.join(WELCOME)
        run.until("a spare", lambda: link.next(m.Heartbeat) and run.children())
        counts = []
        for start in range(0, 100, 2):
            link.send(run.order(start), run.order(start + 1), m.KillRole(start, 0.0))
            codes = {}
            for _ in range(2):
                exited = link.next(m.ChildExited)
                codes[exited.start] = exited.code
            assert codes.keys() == {start, start + 1}
            assert codes[start + 1] == 1
            counts.append((descriptors(run), threads(run)))
        run.until("no zombie", lambda: link.next(m.Heartbeat) and "Z" not in run.children().values())
        assert len(run.children()) <= 1, "a spare at most"
        settled = counts[5:]
        assert max(d for d, _ in settled) <= min(d for d, _ in settled) + 6, counts
        assert max(t for _, t in settled) <= min(t for _, t in settled) + 2, counts
