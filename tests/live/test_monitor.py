"""Liveness by heartbeats and progress, on a clock of our own."""

from libra.config.schema import DeadlineConfig
from libra.controller.monitor import Monitor
from libra.core import events as e
from libra.wire.messages import FORMING, Heartbeat, RoleBeat

DEADLINE = DeadlineConfig(lost_s=5.0, stalled_s=20.0)


class Watch:
    """A monitor of rank 3, whose role began with StartRole 7."""

    def __init__(self) -> None:
        self.now = 0.0
        self.posted: list[e.AnyEvent] = []
        self.closed = 0
        self.monitor = Monitor(DEADLINE, lambda: self.now, self.posted.append)
        self.monitor.joined(3, self.close)
        self.monitor.role_started(3, 7)

    def close(self) -> None:
        self.closed += 1

    def beat(self, at: float, beats: int, start: int = 7, doing: str = "generating") -> None:
        self.now = at
        self.monitor.heartbeat(3, Heartbeat(0, (RoleBeat(start, beats, doing),)))
        self.monitor._check(at)


def test_a_silent_supervisor_is_cut_off_with_a_reason() -> None:
    watch = Watch()
    watch.beat(1.0, 1)
    watch.monitor._check(6.0)
    assert not watch.closed
    watch.monitor._check(6.1)
    assert watch.closed == 1
    assert watch.monitor.why(3) == "no heartbeat for 5 s"
    watch.monitor._check(60.0)
    assert watch.closed == 1


def test_a_role_that_gets_nowhere_is_stalled_once_however_regular_its_beats() -> None:
    watch = Watch()
    for second in range(1, 60):
        watch.beat(float(second), beats=second if second < 10 else 10)
    assert [(type(x), x.t) for x in watch.posted] == [(e.RoleStalled, 31.0)]
    (stalled,) = watch.posted
    assert isinstance(stalled, e.RoleStalled)
    assert (stalled.rank, stalled.start) == (3, 7)
    assert "no progress for 20 s (last: generating)" in stalled.reason


def test_a_role_that_makes_its_engine_is_not_stalled_but_from_then_on_it_may_be() -> None:
    """vLLM compiles and captures graphs for minutes without a sign; the core's own deadline bounds that."""
    watch = Watch()
    for second in range(1, 80):
        watch.beat(float(second), beats=5, doing=FORMING)
    assert watch.posted == []
    for second in range(80, 110):
        watch.beat(float(second), beats=5)
    assert [(type(x), x.t) for x in watch.posted] == [(e.RoleStalled, 100.0)]


def test_a_role_is_not_stalled_before_its_first_progress() -> None:
    """Imports take long on a busy machine; the core's own deadline bounds them."""
    watch = Watch()
    for second in range(1, 80):
        watch.beat(float(second), beats=0)
    assert watch.posted == []


def test_progress_of_an_earlier_process_does_not_count() -> None:
    watch = Watch()
    watch.beat(1.0, 5)
    watch.monitor.role_started(3, 9)
    for second in range(2, 60):
        watch.beat(float(second), beats=second, start=7)
    assert watch.posted == []


def test_time_in_which_the_controller_stood_still_is_forgiven() -> None:
    watch = Watch()
    watch.beat(1.0, 1)
    watch.monitor._forgive(100.0)
    watch.monitor._check(102.0)
    assert not watch.closed
    assert watch.posted == []
