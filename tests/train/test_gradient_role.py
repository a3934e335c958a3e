"""Whatever a replica does, the core's rounds go on; and its members work with one version or not at all."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from role_stage import ANSWER_S, Member, Pending, Replica, Stage, fetch
from training_parts import config, loss_tokens, sample

from libra.wire import messages as m
from tests.weights.weights_parts import Proxy

pytestmark = pytest.mark.process
LENT, KEPT = [sample(1, 4), sample(2, 3)], [sample(3, 5)]
TOKENS = loss_tokens(LENT + KEPT)


class Core:
    """Two core ranks, trained by hand."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.members: list[Member] = stage.start("trainer", 2)
        stage.form(self.members)
        stage.ask(self.members, lambda cmd, _: m.StartWarm(cmd)).wait(m.Warmed)

    def open(self, step: int, tokens: int = TOKENS) -> None:
        self.stage.ask(self.members, lambda cmd, _: m.Open(cmd, step, step, tokens))

    def round(self, samples: list[m.Sample]) -> None:
        self.stage.ask(self.members, lambda cmd, i: m.RunRound(cmd, 0, [] if i else samples)).wait(m.RoundFinished)

    def close(self, step: int, *shares: int) -> Pending:
        return self.stage.ask(self.members, lambda cmd, _: m.Close(cmd, step, step + 1, shares))

    def step(self, step: int) -> None:
        self.open(step, loss_tokens(KEPT))
        self.round(KEPT)
        self.close(step).wait(m.StepFinished)


@contextmanager
def lending(size: int = 1) -> Iterator[tuple[Stage, Core, Replica, list[m.ShareOffered]]]:
    """Step 0 is open, a replica has computed and offered what it was given, the core has had no round yet."""
    with Stage(config()) as stage:
        replica = Replica(stage, 5, size)
        core = Core(stage)
        replica.form()
        replica.install(0, stage.held(core.members, 0))
        core.open(0)
        replica.accumulate(0, 0, TOKENS, [LENT]).wait(m.RoundFinished)
        yield stage, core, replica, replica.offer(0).wait(m.ShareOffered)


def hang(replica: Replica, offered: m.ShareOffered) -> Proxy | None:
    os.kill(replica.members[0].process.pid, signal.SIGSTOP)
    return None


def stall(replica: Replica, offered: m.ShareOffered) -> Proxy | None:
    """The first bytes of the answer come, the rest never does."""
    return Proxy(offered.address, lambda total, data: data[: max(0, 400 - total)])


@pytest.mark.parametrize("trouble", [hang, stall])
def test_rounds_and_the_close_go_on_while_a_share_hangs(
    trouble: Callable[[Replica, m.ShareOffered], Proxy | None],
) -> None:
    with lending() as (stage, core, replica, offered):
        proxy = trouble(replica, offered[0])
        source = proxy.address if proxy else offered[0].address
        fetched = fetch(stage, core.members, 0, 5, offered, [source], deadline_s=10 * ANSWER_S)
        for samples in (KEPT, [], LENT):  # what was lent is computed again
            core.round(samples)
        assert not fetched.answers
        closed = core.close(0).wait(m.StepFinished)
        assert closed[0].finite
        lost = fetched.wait(m.ShareLost)  # each fetch is cancelled by the close, long before its deadline
        assert all("replica 5 for step 0" in a.reason for a in lost)
        core.step(1)
        if proxy:
            proxy.close()


def test_a_slow_share_is_added_when_it_is_there_and_delays_no_round_before() -> None:
    arrive = threading.Event()

    def slow(total: int, data: bytes) -> bytes:
        assert arrive.wait(ANSWER_S)
        return data

    with lending(size=2) as (stage, core, _, offered):
        proxies = [Proxy(o.address, slow) for o in offered]
        fetched = fetch(stage, core.members, 0, 5, offered, [p.address for p in proxies], deadline_s=ANSWER_S)
        core.round(KEPT)
        core.round([])
        assert not fetched.answers
        arrive.set()
        fetched.wait(m.ShareFetched)
        helped = core.close(0, 5).wait(m.StepFinished)
        for proxy in proxies:
            proxy.close()
    with Stage(config()) as stage:
        alone = Core(stage)
        alone.open(0)
        alone.round(KEPT + LENT)
        expected = alone.close(0).wait(m.StepFinished)
    for got, want in zip(helped, expected, strict=True):
        assert (got.finite, got.loss, got.grad_norm) == (True, pytest.approx(want.loss), pytest.approx(want.grad_norm))


def test_a_share_is_fetched_while_the_core_is_inside_a_round() -> None:
    with lending() as (stage, core, _, offered):
        first, second = core.members
        # Its collectives wait for the second rank.
        entered = stage.ask([first], lambda cmd, _: m.RunRound(cmd, 0, KEPT))
        fetch(stage, core.members, 0, 5, offered, [o.address for o in offered], ANSWER_S).wait(m.ShareFetched)
        assert not entered.answers
        stage.ask([second], lambda cmd, _: m.RunRound(cmd, 0, [])).wait(m.RoundFinished)
        entered.wait(m.RoundFinished)
        assert core.close(0, 5).wait(m.StepFinished)[0].finite


def test_a_close_that_lists_a_share_which_is_not_here_ends_the_core_and_names_it() -> None:
    with lending() as (_, core, _, _):
        core.round(KEPT)
        closing = core.close(0, 5)
        assert not closing.over()
        assert any("shares of replicas [5]" in member.complaint for member in core.members)


def test_members_that_got_different_versions_refuse_alike_until_all_hold_one() -> None:
    with Stage(config()) as stage:
        core, replica = Core(stage), Replica(stage, 5, 2)
        replica.form()
        first, second = replica.members
        core.step(0)
        sources = stage.held(core.members, 1)

        def install(members: list[Member], version: int) -> list[int]:
            answers = stage.ask(members, lambda cmd, _: m.Install(cmd, version, sources)).wait(m.Installed)
            return [a.version for a in answers]

        assert install([first], 1) == [1]
        core.step(1)
        core.step(2)  # version 1 is overwritten now
        stage.held(core.members, 3)
        assert install([first, second], 1) == [1, 3]
        for version in (1, 3):
            refused = replica.accumulate(version, version, TOKENS, [LENT]).wait(m.RoundRefused)
            assert any("another member" in a.reason for a in refused)
        assert all("no share" in a.reason for a in replica.offer(3).wait(m.RoundRefused))
        assert install([first, second], 3) == [3, 3]
        replica.accumulate(3, 3, TOKENS, [LENT]).wait(m.RoundFinished)
        offered = replica.offer(3).wait(m.ShareOffered)
        assert [o.version for o in offered] == [3, 3]
        assert sum(o.note.loss for o in offered) != 0
        refused = replica.accumulate(3, 3, TOKENS, [LENT]).wait(m.RoundRefused)
        assert all("shared already" in a.reason for a in refused)


def test_weights_that_cannot_be_had_leave_the_replica_as_it_was() -> None:
    with Stage(config()) as stage:
        core, replica = Core(stage), Replica(stage, 5, 1)
        replica.form()
        replica.install(0, stage.held(core.members, 0))
        nowhere = stage.ask(replica.members, lambda cmd, _: m.Install(cmd, 1, ("127.0.0.1:1",)))
        [failed] = nowhere.wait(m.InstallFailed)
        assert "127.0.0.1:1" in failed.reason
        replica.accumulate(0, 0, TOKENS, [LENT]).wait(m.RoundFinished)
