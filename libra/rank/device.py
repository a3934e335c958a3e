"""Which device a role computes on: the one place that knows that there are vendors.

All else takes a `torch.device` and asks nothing of it. CUDA, Ascend and others are reached through `torch.accelerator` alone
(an Ascend build brings its plug-in, `torch_npu`, which torch loads by itself); the backend of a process group follows from the
device as well. Called by roles when they begin, before they touch anything, and never by a supervisor.
"""

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from libra.errors import RoleError

CPU = torch.device("cpu")


def role_device(wanted: str, environment: Mapping[str, str] = os.environ) -> torch.device:
    """The device for `run.device` = "cpu" or "accelerator"; an accelerator is also made this process's current one.

    The device ranks of a host take its accelerators in order, beginning again with the first where there are more ranks.
    RoleError where there is none.
    """
    if wanted == "cpu":
        return CPU
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        raise RoleError(
            f'run.device = "{wanted}", but torch {torch.__version__} finds no accelerator on this host; '
            'use a torch that is built for it, or run.device = "cpu"'
        )
    index = place(environment) % torch.accelerator.device_count()
    torch.accelerator.set_device_index(index)
    return torch.device(found.type, index)


def place(environment: Mapping[str, str]) -> int:
    """Which of its host's device ranks this is, from 0, by torchrun's variables. The first host's first process is the
    controller, which has no device."""
    local, rank = int(environment.get("LOCAL_RANK", "0")), int(environment.get("RANK", "0"))
    return max(0, local - 1) if local == rank else local


def group_options(device: torch.device) -> tuple[str, torch.device | None]:
    """Backend of a process group on `device`, and the device that it is bound to: on an accelerator communicators are then
    made at once, so that a fault shows while the group is formed."""
    return dist.get_default_backend_for_device(device), None if device.type == "cpu" else device


def finish(device: torch.device) -> None:
    """Returns when the device has done all that it was given: before seconds are told. A CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
