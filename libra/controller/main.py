"""Rank 0: the controller's process, from an empty run directory to the summary.

    listen ─> announce ─> [ accept links │ watch ranks │ run sessions │ refresh display │ signals ] until FinishRun
           ─> stop roles in good order ─> summary.json, reward.png

It holds no device and never imports torch. First Ctrl-C (or `libra stop`, or a terminal that is gone: SIGHUP): the open
step is finished and saved, then the end. A second one, or SIGTERM: the end at once. Either way nothing is left running.
"""

import signal
import subprocess
import sys
import traceback
from pathlib import Path
from secrets import token_hex

import anyio
import anyio.abc

from libra.checkpoint import directory as disk
from libra.config.rundir import TREE_START_FILE
from libra.config.schema import Config
from libra.controller.clock import Clock
from libra.controller.control import viewers_group
from libra.controller.links import Server, welcome
from libra.controller.resume import Resumption
from libra.controller.runtime import calm_collector
from libra.controller.screen import Screen
from libra.controller.shell import Shell
from libra.controller.world import world_of
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.core.learned import Learned
from libra.telemetry import segments, tree_file
from libra.telemetry.display import open_display
from libra.telemetry.journal import DIRECTORY, Head, JournalWriter
from libra.telemetry.logs import CONTROLLER, RunLog
from libra.telemetry.metrics import FILE as METRICS_FILE
from libra.telemetry.metrics import MetricsWriter
from libra.telemetry.summary import FILE as SUMMARY_FILE
from libra.telemetry.summary import Tally, write_summary
from libra.wire.child import die_with_parent
from libra.wire.loop import ignore_stale_wakeups
from libra.wire.rendezvous import Meeting, PrivateDirectory, announce, meeting_file

PICTURE_S = 30.0
"""Deadline of the process that draws reward.png."""
NOW_S = 2.0
"""What roles are given to end when the run is stopped at once."""


class Controller:
    """`learned`: what scheduling starts from. `resumption`: what the run goes on from."""

    def __init__(
        self, config: Config, run_dir: Path, learned: Learned | None, resumption: Resumption | None = None
    ) -> None:
        self.world = world_of(config)
        self.config = self.world.config
        self.run_dir = run_dir
        self.learned = learned
        self.resumption = resumption
        self._hurry = False

    async def run(self) -> int:
        """The whole run; 0 when it ended well or was stopped in good order, 1 when something broke."""
        ignore_stale_wakeups()
        config, run_dir, resumption = self.config, self.run_dir, self.resumption
        if self.learned is not None:
            tree_file.write(run_dir / TREE_START_FILE, self.world.core_config, self.learned)
        private = PrivateDirectory(viewers_group(config))
        meeting = Meeting(str(private.path / "controller.sock"), token_hex(32), token_hex(8))
        tally = Tally.of(config)
        directory = run_dir / DIRECTORY
        if resumption is not None:
            tally.resume(resumption.tally)
            disk.tidy(run_dir)
            directory = segments.begin_later(run_dir, resumption.start())
        journal = JournalWriter(directory, Head.of(self.world.core_config, meeting.incarnation))
        metrics = MetricsWriter(run_dir / METRICS_FILE)
        clock = Clock(config.emulation.speed, resumption.core.seconds if resumption else 0.0)
        try:
            with journal, metrics, RunLog(run_dir / CONTROLLER, clock) as log, open_display() as display:
                try:
                    async with self.world.running(), anyio.create_task_group() as tasks:
                        screen = Screen(config, display, log, metrics, tally)
                        saved = resumption.core if resumption else None
                        core = Core(self.world.core_config, learned=self.learned, saved=saved)
                        shell = Shell(core, self.world, run_dir, meeting, journal, tally, screen, tasks, clock)
                        server = Server(meeting, shell.serve, welcome(config))
                        listener = await anyio.create_unix_listener(meeting.address, mode=0o600)
                        tasks.start_soon(self._signals, shell)
                        tasks.start_soon(listener.serve, server.accept)
                        tasks.start_soon(shell.monitor.run)
                        tasks.start_soon(screen.refresh, shell.core, clock)
                        tasks.start_soon(shell.control.run, private.path, run_dir)
                        if resumption is not None:
                            self._tell(resumption, screen, clock(), meeting.incarnation)
                            shell.control.follower.rewards.extend(tally.rewards)
                        shell.runtime.post(e.RunStarted(clock() if resumption else 0.0))
                        announce(meeting, meeting_file())
                        await shell.finished.wait()
                        await self._stop_roles(shell)
                        await shell.save_tree()
                        tasks.cancel_scope.cancel()
                except Exception as x:  # a fault of ours: the summary and the log must still tell what happened
                    log.error(traceback.format_exc())
                    tally.command(c.FinishRun(0, False, f"the controller failed: {_first_cause(x)}"))
                summary = tally.summary()
                write_summary(run_dir / SUMMARY_FILE, summary)
                if not self._hurry and tally.rewards:
                    await self._draw(log)
                log.write("info" if summary.ok else "error", summary.reason)
                display.finish(summary)
        finally:
            private.remove()
        return 0 if summary.ok else 1

    @staticmethod
    def _tell(resumption: Resumption, screen: Screen, now: float, incarnation: str) -> None:
        for note in resumption.notes:
            screen.report("warning", f"passed over: {note}")
        screen.resumed(now, resumption.core.step, resumption.core.version, incarnation)

    async def _stop_roles(self, shell: Shell) -> None:
        shell.stop_roles()
        with anyio.move_on_after(NOW_S if self._hurry else self.config.deadline.stop_s):
            await shell.all_gone.wait()

    async def _signals(self, shell: Shell) -> None:
        polite = 0
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGHUP, signal.SIGTERM) as signals:
            async for number in signals:
                polite += number != signal.SIGTERM
                now = number == signal.SIGTERM or polite > 1
                self._hurry = self._hurry or now
                shell.runtime.post(e.StopRequested(shell.clock(), now, signal.Signals(number).name))

    async def _draw(self, log: RunLog) -> None:
        """A picture is worth little against a run that ends: whatever goes wrong with it is logged."""
        command = [sys.executable, "-m", "libra.telemetry.picture", str(self.run_dir)]
        try:
            with anyio.fail_after(PICTURE_S):
                done = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT, start_new_session=True)
            if done.returncode:
                log.warning(f"reward.png was not drawn: {done.stdout.decode(errors='replace').strip()}")
        except (TimeoutError, OSError) as x:
            log.warning(f"reward.png was not drawn: {type(x).__name__} {x}")


def _first_cause(x: BaseException) -> str:
    """The innermost error of a group, in one line."""
    while isinstance(x, BaseExceptionGroup):
        x = x.exceptions[0]
    return f"{type(x).__name__}: {x}"


def main(config: Config, run_dir: Path, learned: Learned | None = None, resumption: Resumption | None = None) -> int:
    """Run the controller in this process; returns its exit code."""
    die_with_parent()
    calm_collector()
    return anyio.run(Controller(config, run_dir, learned, resumption).run)
