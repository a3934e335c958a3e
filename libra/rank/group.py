"""A role's process group: formed by its members only, in the thread that issues collectives.

Called by the trainer, gradient and vLLM roles, for groups of one as well.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from libra.rank.device import group_options
from libra.wire.messages import FormMembers


def join_group(order: FormMembers, device: torch.device, timeout_s: float) -> Store:
    """Makes the default group, on a store prefix that no other attempt can have used; warmed up by one collective.

    Returns the store below that prefix, for groups beside the default one.

    `timeout_s` bounds this and every later collective: on gloo it is all that ends a wait for a hung member.
    """
    timeout = timedelta(seconds=timeout_s)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = PrefixStore(order.prefix, TCPStore(address, port, is_master=False, timeout=timeout))
    backend, bound = group_options(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=order.index,
        world_size=order.size,
        timeout=timeout,
        device_id=bound,
    )
    dist.all_reduce(torch.zeros(1, device=device))
    return store
