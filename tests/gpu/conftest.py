"""One accelerator for the tests of this room; without one they are skipped, and `just test-gpu` says so in one line."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from libra.rank.device import group_options, role_device


@pytest.fixture(scope="session")
def accelerator() -> torch.device:
    if torch.accelerator.current_accelerator(check_available=True) is None:
        pytest.skip(f"torch {torch.__version__} finds no accelerator here")
    return role_device("accelerator")


@pytest.fixture
def alone() -> Iterator[Callable[[torch.device], None]]:
    """Makes this process the one member of a group on a device; ends the group before."""

    def form(device: torch.device) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        backend, bound = group_options(device)
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=bound)

    yield form
    if dist.is_initialized():
        dist.destroy_process_group()
