"""Which device a role takes: the CPU unless it is told otherwise, else its own among its host's."""

import pytest
import torch

from libra.errors import RoleError
from libra.rank.device import finish, group_options, place, role_device


def ranks(local: int, rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": str(local), "RANK": str(rank)}


@pytest.fixture
def devices(monkeypatch):
    """Pretends that torch finds so many accelerators; gives the indices that were made current."""

    def pretend(count):
        made: list[int] = []
        found = torch.device("cuda") if count else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "set_device_index", made.append)
        return made

    return pretend


def test_the_cpu_is_taken_without_a_look_at_anything_else(devices):
    made = devices(8)
    assert role_device("cpu", ranks(3, 3)) == torch.device("cpu")
    assert made == []


def test_each_device_rank_of_a_host_takes_its_own_accelerator(devices):
    made = devices(4)
    first_host = [role_device("accelerator", ranks(r, r)).index for r in (1, 2, 3, 4)]
    second_host = [role_device("accelerator", ranks(local, 5 + local)).index for local in range(4)]
    assert first_host == second_host == [0, 1, 2, 3]
    assert made == first_host + second_host


def test_more_ranks_than_accelerators_share_them(devices):
    devices(1)
    assert {str(role_device("accelerator", ranks(r, r))) for r in (1, 2, 3)} == {"cuda:0"}


def test_a_host_without_an_accelerator_says_so(devices):
    devices(0)
    with pytest.raises(RoleError, match=r"run\.device.*finds no accelerator"):
        role_device("accelerator", ranks(1, 1))


def test_a_role_outside_of_torchrun_is_the_first():
    assert place({}) == 0


def test_groups_follow_the_device():
    assert group_options(torch.device("cpu")) == ("gloo", None)
    assert group_options(torch.device("cuda:1")) == ("nccl", torch.device("cuda:1"))
    finish(torch.device("cpu"))
