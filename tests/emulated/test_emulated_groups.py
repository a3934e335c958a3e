"""Where a test asks for it, the ranks of an emulated engine form a gloo group of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401 (before torch.distributed)
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

MEMBER = """
import sys
from msgspec import structs
from emulated_parts import Running
from libra.rank.emulated_engine import EmulatedEngine
from libra.wire import messages as m

role = Running(EmulatedEngine, 7, "rollout", bucket=1)
role.role.config = structs.replace(role.role.config, emulation=structs.replace(role.role.config.emulation, real_groups=True))
with role:
    role.order(m.FormMembers(1, "incarnation/0/engine-4/0", int(sys.argv[1]), 2), m.Install(2, 0, ("",)))
    role.says(m.Formed)
    role.says(m.Installed)
import torch.distributed as dist
print(dist.get_backend(), dist.get_world_size(), dist.get_rank())
"""


@pytest.mark.process
def test_the_members_of_an_emulated_engine_form_a_real_group() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
    }
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(index)],
            cwd=Path(__file__).parent,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [member.communicate(timeout=100)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    for index, words in enumerate(said):
        assert f"gloo 2 {index}" in words.splitlines(), words
