"""A run's own journal as a workload: what its trajectories did, to be simulated under other decisions.

The journal's events go through a core again, whose commands tell which trajectory belonged to which prompt and sample. Kept
are counts, signals and tool seconds of the training trajectories that ended; attempts that failed, were dropped or had not
ended are left out. Held-out evaluations are left out too.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e
from libra.errors import ConfigError, JournalError
from libra.telemetry import segments
from libra.telemetry.journal import DIRECTORY, JournalReader
from libra.workload.trace import TraceTrajectory, TraceTurn


class _Open(Struct):
    """A trajectory under way."""

    prompt: int
    sample: int
    prompt_tokens: int = 0
    context: int = 0
    sampled: int = 0
    """Of the present turn."""
    acted_s: float = 0.0
    turns: list[TraceTurn] = []


def read_run(run_dir: Path) -> list[TraceTrajectory]:
    """Trajectories of the run in `run_dir`, by prompt and sample. Raises ConfigError, or JournalError for a broken journal."""
    if not (run_dir / DIRECTORY).is_dir():
        raise ConfigError(
            str(run_dir), [f"holds no {DIRECTORY}/, expected the directory of a run, or a file of JSON lines"]
        )
    importer = _Importer()
    for directory in segments.directories(run_dir):
        reader = JournalReader(directory)
        try:
            core = segments.core_of(directory, msgspec.json.decode(reader.head.config, type=Config))
        except (msgspec.ValidationError, msgspec.DecodeError) as x:
            raise JournalError(f"{directory}: its configuration does not fit this code's schema: {x}") from x
        importer.cut()
        for event, _ in reader:
            importer.event(event)
            for command in core.handle(event):
                importer.command(event.t, command)
    return [t for _, t in sorted(importer.ended.items())]


class _Importer:
    def __init__(self) -> None:
        self.ended: dict[tuple[int, int], TraceTrajectory] = {}
        self._open: dict[int, _Open] = {}

    def cut(self) -> None:
        """The run was cut and went on: what was in flight began anew."""
        self._open.clear()

    def command(self, now: float, command: c.Command) -> None:
        match command:
            case c.OpenTrajectory(kind="train", traj=traj, prompt=prompt, sample=sample):
                self._open[traj] = _Open(prompt, sample)
            case c.Act(traj=traj) if traj in self._open:
                self._open[traj].acted_s = now
            case c.Discard(trajs=trajs):
                for traj in trajs:
                    self._open.pop(traj, None)
            case _:
                pass

    def event(self, event: e.AnyEvent) -> None:
        match event:
            case e.TurnReady(traj=traj) if traj in self._open:
                self._open[traj].prompt_tokens = self._open[traj].context = event.context_tokens
            case e.TurnGenerated(traj=traj) if traj in self._open:
                self._open[traj].sampled += event.tokens
            case e.ToolReturned(traj=traj) if traj in self._open:
                it = self._open[traj]
                observed = event.context_tokens - it.context - it.sampled
                self._turn(it, event.tool or "tool", event.seconds, event.status, observed)
                it.context = event.context_tokens
            case e.EpisodeEnded(traj=traj) if traj in self._open:
                it = self._open.pop(traj)
                self._turn(it, "", event.t - it.acted_s, "ok", 0)
                if it.turns:
                    self.ended[it.prompt, it.sample] = TraceTrajectory(
                        f"prompt-{it.prompt}", it.sample, "", it.prompt_tokens, tuple(it.turns)
                    )
            case _:
                pass

    @staticmethod
    def _turn(it: _Open, tool: str, seconds: float, status: e.Status, observed: int) -> None:
        """A turn without a sampled token (the environment closed the episode by itself) is no turn of the policy's."""
        if it.sampled:
            it.turns.append(TraceTurn(it.sampled, tool, max(0.0, seconds), status, max(0, observed)))
        it.sampled = 0
