"""Emulated core ranks and replicas: every loss token of a step is summed once, whatever a replica does."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from emulated_parts import Running

from libra.config.schema import EmulatedFault
from libra.errors import RoleError
from libra.rank.emulated_gradient import EmulatedGradient
from libra.rank.emulated_trainer import EmulatedTrainer
from libra.rank.link import IDLE_S
from libra.wire import messages as m

ROWS = [[m.Counts(1, 2_000, 300), m.Counts(2, 900, 120)], [m.Counts(3, 4_000, 70)]]
"""What two ranks take: 490 loss tokens."""
LENT = [[m.Counts(4, 1_000, 60)]]


def core() -> Running:
    return Running(EmulatedTrainer, 1, "trainer")


def replica(rank: int = 3, fault: EmulatedFault | None = None) -> Running:
    return Running(EmulatedGradient, rank, "gradient", fault)


def lend(role: Running) -> m.ShareOffered:
    """Installed, one round, offered."""
    role.order(m.Install(1, 0, ("",)))
    role.says(m.Installed)
    role.order(m.Accumulate(2, 0, 0, 550, [], LENT), m.OfferShare(3, 0))
    assert role.says(m.RoundFinished).seconds > 0
    return role.says(m.ShareOffered)


def asked(offer: m.ShareOffered, deadline_s: float = 10.0) -> m.FetchShare:
    return m.FetchShare(13, 0, 5, offer.version, (offer.address,), [offer.note], deadline_s)


def test_a_step_adds_up_over_rounds_and_a_share() -> None:
    with core() as trainer, replica() as lender:
        trainer.order(m.Open(11, 0, 0, 550), m.RunRound(12, 0, [], ROWS))
        offer = lend(lender)
        trainer.order(asked(offer))
        assert trainer.says(m.ShareFetched).cmd == 13
        trainer.order(m.Close(14, 0, 1, (5,)))
        assert trainer.says(m.Held).version == 1
        step = trainer.says(m.StepFinished)
    assert step.finite
    assert step.loss == 1.0


@pytest.mark.parametrize("loss_tokens", [489, 491, 550])
def test_a_step_that_does_not_add_up_is_never_closed(loss_tokens: int) -> None:
    with core() as trainer:
        trainer.order(m.Open(11, 0, 0, loss_tokens), m.RunRound(12, 0, [], ROWS), m.Close(14, 0, 1))
        failure = trainer.fails()
    assert isinstance(failure, RoleError)
    assert f"490 loss tokens were summed, expected {loss_tokens}" in str(failure)


def test_a_staged_share_that_is_not_listed_is_not_added() -> None:
    with core() as trainer, replica() as lender:
        trainer.order(m.Open(11, 0, 0, 490), m.RunRound(12, 0, [], ROWS))
        trainer.order(asked(lend(lender)))
        trainer.says(m.ShareFetched)
        trainer.order(m.Close(14, 0, 1))
        assert trainer.says(m.StepFinished).loss == 1.0


def test_a_replica_refuses_a_version_that_it_does_not_hold() -> None:
    with replica() as lender:
        lender.order(m.Install(1, 0, ("",)))
        lender.says(m.Installed)
        lender.order(m.Accumulate(2, 1, 1, 550, [], LENT))
        assert "holds version 0" in lender.says(m.RoundRefused).reason


def test_a_sum_that_was_not_wanted_is_gone_with_the_next_version() -> None:
    with replica() as lender:
        lender.order(m.Install(1, 0, ("",)))
        lender.says(m.Installed)
        lender.order(m.Accumulate(2, 0, 0, 550, [], LENT))
        lender.says(m.RoundFinished)
        lender.order(m.Install(3, 1, ("",)))
        lender.says(m.Installed)
        lender.order(m.Accumulate(4, 1, 1, 550, [], [[m.Counts(9, 100, 11)]]), m.OfferShare(5, 1))
        assert lender.says(m.ShareOffered).note.loss == 11.0


def test_the_members_of_a_replica_have_one_sum_and_parts_of_their_own() -> None:
    with replica(3) as one, replica(4) as two, core() as trainer:
        offers = []
        for index, member in enumerate((one, two)):
            member.order(m.FormMembers(1, "prefix", index, 2), m.Install(2, 0, ("",)))
            member.says(m.Installed)
            member.order(m.Accumulate(3, 0, 0, 490, [], ROWS), m.OfferShare(4, 0))
            offers.append(member.says(m.ShareOffered))
        assert [offer.note.loss for offer in offers] == [420.0, 70.0]
        sources, notes = tuple(o.address for o in offers), [o.note for o in offers]
        trainer.order(m.Open(11, 0, 0, 490), m.FetchShare(13, 0, 5, offers[0].version, sources, notes, 10.0))
        trainer.says(m.ShareFetched)
        trainer.order(m.Close(14, 0, 1, (5,)))
        assert trainer.says(m.StepFinished).loss == 1.0


def test_a_replica_that_hangs_while_it_shares_costs_its_share_and_not_the_rounds() -> None:
    with core() as trainer, replica(fault=EmulatedFault(kind="hang", stage="sharing", rank=3)) as lender:
        offer = lend(lender)
        trainer.order(m.Open(11, 0, 0, 490), asked(offer, deadline_s=0.3), m.RunRound(12, 0, [], ROWS))
        assert trainer.says(m.RoundFinished).cmd == 12
        assert "no share from 127.0.0.1" in trainer.says(m.ShareLost).reason
        trainer.order(m.Close(14, 0, 1))
        assert trainer.says(m.StepFinished).loss == 1.0


def test_a_replica_that_is_late_is_waited_for_until_the_deadline() -> None:
    fault = EmulatedFault(kind="delay", stage="sharing", rank=3, delay_s=0.3)
    with core() as trainer, replica(fault=fault) as lender:
        trainer.order(asked(lend(lender)))
        assert trainer.says(m.ShareFetched).cmd == 13


def test_a_stranger_is_told_nothing() -> None:
    with core() as trainer, replica() as lender:
        offer = lend(lender)
        trainer.link.spec = m.RoleSpec(1, 1, "trainer", 0, 0, -1, "earlier", "token", "", "cpu", b"", True)
        trainer.order(asked(offer, deadline_s=2.0))
        assert trainer.says(m.ShareLost).cmd == 13


@pytest.mark.process
@pytest.mark.parametrize("stage", ["joining", "accumulating", "sharing"])
def test_a_replica_dies_where_it_is_told_to(stage: str) -> None:
    script = f"""
from emulated_parts import Running
from test_emulated_shares import *
with core() as trainer, replica(fault=EmulatedFault(kind="die", stage="{stage}", rank=3)) as lender:
    offer = lend(lender)
    trainer.order(asked(offer))
    trainer.says(m.ShareFetched)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert f"it dies when {stage}" in done.stdout


@pytest.mark.parametrize("stage", ["joining", "accumulating"])
def test_a_replica_that_hangs_says_nothing_and_makes_no_progress(stage: str) -> None:
    with replica(fault=EmulatedFault(kind="hang", stage=stage, rank=3)) as lender:
        lender.order(m.Install(1, 0, ("",)))
        if stage == "accumulating":
            lender.says(m.Installed)
            lender.order(m.Accumulate(2, 0, 0, 550, [], LENT))
        while not lender.link.orders.empty():
            time.sleep(0.01)
        before = lender.link.progress
        time.sleep(4 * IDLE_S)
        assert lender.link.progress <= before + 1, "the order that hangs it may have been on its way"
        assert lender.link.said.empty()
