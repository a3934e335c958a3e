"""Saves and keeps checkpoints, at the core's orders.

    SaveCheckpoint ──> core and tally copied, Save to each core rank, in the order of its other orders
    every core rank has written its part ──> a thread: core.msgpack, checkpoint.json, rename ──> CheckpointSaved
    one of them could not, or the disk refuses ──> what there is of it is removed ──> CheckpointFailed
    TidyCheckpoints ──> a thread removes what is not to be kept, and notes the best

What is copied here is the state between two steps. Nothing waits but these threads; a run never ends by a disk.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
from msgspec import Struct

from libra.checkpoint import content
from libra.checkpoint import directory as disk
from libra.controller.clock import Clock
from libra.controller.screen import Screen
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.saved import Best, SavedCore
from libra.telemetry.version import code_version
from libra.wire import messages as m


@dataclass
class _Save:
    """The one under way."""

    command: c.SaveCheckpoint
    partial: Path
    core: SavedCore
    tally: Struct
    began: float
    """Real seconds."""
    saved: dict[int, m.Saved] = field(default_factory=dict[int, m.Saved])
    """By core rank."""


class Checkpoints:
    """`to_core(message)` sends to every core rank, behind what was sent before; `post` takes the answers."""

    def __init__(
        self,
        core: Core,
        run_dir: Path,
        incarnation: str,
        screen: Screen,
        tasks: anyio.abc.TaskGroup,
        clock: Clock,
        to_core: Callable[[m.Message], None],
        post: Callable[[e.AnyEvent], None],
    ) -> None:
        self._core = core
        self._run_dir = run_dir
        self._incarnation = incarnation
        self._screen = screen
        self._tasks = tasks
        self._clock = clock
        self._to_core = to_core
        self._post = post
        self._save: _Save | None = None
        self._disk = anyio.Lock()
        """One thread at a time in the checkpoints' directory."""

    def save(self, command: c.SaveCheckpoint) -> None:
        try:
            partial = disk.begin(self._run_dir, command.step)
        except OSError as x:
            self._post(e.CheckpointFailed(self._clock(), command.seq, str(x)))
            return
        core, tally = self._core.saved(command.step), self._screen.tally.saved()
        self._save = _Save(command, partial, core, tally, self._clock.wall())
        self._to_core(m.Save(command.seq, str(partial), self._core.config.checkpoint.min_free_bytes))

    def heard(self, rank: int, message: m.Saved | m.SaveFailed) -> None:
        save = self._save
        if save is None or message.cmd != save.command.seq:
            return  # of one that has failed already
        if isinstance(message, m.SaveFailed):
            self._save = None
            self._tasks.start_soon(self._failed, save, message.reason)
            return
        save.saved[rank] = message
        if len(save.saved) == len(save.command.ranks):
            self._save = None
            self._tasks.start_soon(self._commit, save)

    def load(self, command: c.LoadCheckpoint) -> None:
        path = disk.path_of(self._run_dir, command.step)
        self._to_core(m.Load(command.seq, str(path), command.version))

    def tidy(self, command: c.TidyCheckpoints) -> None:
        self._tasks.start_soon(self._tidy, command)

    async def _commit(self, save: _Save) -> None:
        def write() -> int:
            disk.write_through(save.partial / disk.CORE, content.encode(code_version(), save.core, save.tally))
            files = {
                p.relative_to(save.partial).as_posix(): p.stat().st_size
                for p in sorted(save.partial.rglob("*"))
                if p.is_file()
            }
            manifest = disk.Manifest(
                code=code_version(),
                run=self._run_dir.name,
                incarnation=self._incarnation,
                step=save.command.step,
                version=save.command.version,
                files=files,
                parts=tuple(part for rank in save.command.ranks for part in save.saved[rank].parts),
            )
            disk.commit(save.partial, manifest)
            return sum(files.values())

        try:
            async with self._disk:
                n_bytes = await anyio.to_thread.run_sync(write)
        except OSError as x:
            await self._failed(save, str(x))
            return
        copy_s = max((s.copy_s for s in save.saved.values()), default=0.0)
        seconds = self._clock.wall() - save.began
        self._screen.saved(self._clock(), save.command.step, n_bytes, copy_s, seconds)
        self._post(e.CheckpointSaved(self._clock(), save.command.seq, copy_s, seconds, n_bytes))

    async def _failed(self, save: _Save, reason: str) -> None:
        async with self._disk:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(save.partial, ignore_errors=True))
        self._post(e.CheckpointFailed(self._clock(), save.command.seq, reason))

    async def _tidy(self, command: c.TidyCheckpoints) -> None:
        def work() -> None:
            disk.drop(self._run_dir, command.steps)
            if command.best:
                disk.note_best(self._run_dir, Best(command.best, command.reward))

        try:
            async with self._disk:
                await anyio.to_thread.run_sync(work)
        except OSError as x:
            self._screen.report("warning", f"checkpoints were not tidied up: {x}")
