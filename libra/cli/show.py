"""`libra show`: trajectories of a run as a person reads them, decoded by the run's own environment."""

import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import wrap

import msgspec

from libra.checkpoint import best, newest
from libra.cli.arguments import Show
from libra.cli.runs import find, info
from libra.cli.text import table
from libra.config import Config
from libra.config.load import load
from libra.config.rundir import CONFIG_FILE
from libra.env.registry import environment
from libra.errors import CheckpointError, ConfigError, RunGone
from libra.telemetry import transcripts
from libra.telemetry.transcripts import Return, Transcript, Turn

Decode = Callable[[list[int]], str]
COLUMN = 44
"""Narrowest column of trajectories side by side."""


def show(args: Show) -> int:
    if args.trajectory is not None and args.group is not None:
        raise ConfigError("show", ["got --trajectory and --group; expected one of them"])
    run_dir = find(args.run)
    config = load(run_dir / CONFIG_FILE)
    if args.trajectory is None and args.group is None:
        return _overview(run_dir, args.json)
    found = transcripts.find(run_dir, traj=args.trajectory, group=args.group)
    if not found:
        raise RunGone(_nothing(run_dir, args, config))
    if args.trajectory is not None:
        found = found[-1:]  # of a number that was given twice, since the run was cut, the later one
    else:
        latest = {t.sample: t for t in found}
        found = [latest[sample] for sample in sorted(latest)]
    if args.json:
        print(msgspec.json.format(msgspec.json.encode([msgspec.structs.asdict(t) for t in found]), indent=1).decode())
        return 0
    decode = environment(config.live_env, config.model).decode
    if args.trajectory is not None:
        print("\n".join([*head(found[0]), "", *story(found[0], decode)]))
    else:
        print(side_by_side(found, decode, shutil.get_terminal_size((132, 40)).columns))
    return 0


def head(t: Transcript) -> list[str]:
    """What it was, where it ran, what came of it."""
    which = "training" if t.kind == "train" else {"eval": "held-out, during the run"}.get(t.kind, "held-out")
    versions = sorted({v for turn in t.turns for v in (turn.oldest, turn.newest) if v >= 0})
    span = "none" if not versions else f"{versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
    places = list(dict.fromkeys(f"engine {turn.engine} ({turn.bucket})" for turn in t.turns))
    sampled = sum(turn.tokens for turn in t.turns)
    result = f"reward {t.reward:g}" if t.end == "ended" else t.end
    return [
        f"trajectory {t.traj}: {which}, group {t.group}, prompt {t.prompt}, sample {t.sample}"
        + (f", attempt {t.attempt + 1}" if t.attempt else ""),
        f"{result}{f': {t.why}' if t.why else ''}",
        f"{len(t.turns)} turns, {sampled} of {len(t.tokens)} tokens sampled, {len(t.returns)} returns, {t.seconds:.2f} s,"
        f" ended at {t.at:.1f} s",
        f"policy version {span}; {' > '.join(places) or 'no engine'}",
    ]


def story(t: Transcript, decode: Decode) -> list[str]:
    """The prompt, then what was sampled and what came back, in their order."""
    parts: list[Turn | Return] = sorted([*t.turns, *t.returns], key=lambda part: part.start)
    prompt = parts[0].start if parts else len(t.tokens)
    lines = [f"prompt    {decode(t.tokens[:prompt])}"]
    for part in parts:
        text = decode(t.tokens[part.start : part.start + part.tokens]) or "(nothing)"
        match part:
            case Turn():
                version = f"v{part.oldest}" if part.oldest == part.newest else f"v{part.oldest}-{part.newest}"
                cut = "" if part.finish == "stop" else f", {part.finish}"
                note = f"[engine {part.engine}, {version}, {part.tokens} tokens, mean logp {part.logprob:.2f}{cut}]"
                lines.append(f"policy  > {text}   {note}")
            case Return():
                lines.append(f"{part.tool:<7} < {text}   [{part.status}, {part.seconds * 1e3:.1f} ms]")
    return lines


def side_by_side(found: list[Transcript], decode: Decode, width: int) -> str:
    """Trajectories of one group, as many beside each other as fit."""
    columns = max(1, min(len(found), width // COLUMN))
    room = width // columns - 2
    blocks: list[str] = []
    for first in range(0, len(found), columns):
        cells = [
            [part for line in [*head(t), "", *story(t, decode)] for part in wrap(line, room) or [""]]
            for t in found[first : first + columns]
        ]
        tall = max(map(len, cells))
        rows = zip(*(cell + [""] * (tall - len(cell)) for cell in cells), strict=True)
        blocks.append("\n".join("  ".join(part.ljust(room) for part in row).rstrip() for row in rows))
    return "\n\n".join(blocks)


def _overview(run_dir: Path, as_json: bool) -> int:
    """What there is to be shown, and to go on from."""
    kept = transcripts.names(run_dir)
    groups = list(dict.fromkeys(group for _, group in kept))
    run = info(run_dir)
    try:
        path, manifest, _ = newest(run_dir)
        checkpoint, version = path.name, manifest.version
    except CheckpointError:
        checkpoint, version = "", -1
    top = best(run_dir)
    if as_json:
        fields = {
            "run": run.name,
            "state": run.state,
            "steps": run.steps,
            "trajectories": len(kept),
            "newest_trajectories": [traj for traj, _ in kept[-10:]],
            "newest_groups": groups[-5:],
            "checkpoint": checkpoint or None,
            "best": msgspec.to_builtins(top),
        }
        print(msgspec.json.encode(fields).decode())
        return 0
    rows = [
        ("run", f"{run.name}, {run.state}, {run.steps} steps"),
        ("checkpoint", f"{checkpoint}, version {version}" if checkpoint else "none"),
        ("best", f"step-{top.step:06d}, held-out reward {top.reward:.3f}" if top else "none"),
        ("kept", f"{len(kept)} trajectories of {len(groups)} groups"),
        ("newest", f"--trajectory {kept[-1][0]}, --group {groups[-1]}" if kept else "-"),
    ]
    print("\n".join(table(rows)))
    return 0


def _nothing(run_dir: Path, args: Show, config: Config) -> str:
    what = f"trajectory {args.trajectory}" if args.trajectory is not None else f"group {args.group}"
    kept = transcripts.names(run_dir)
    if config.emulated:
        return f"{run_dir.name} is emulated: its trajectories have lengths, and no tokens to show"
    if not kept:
        return f"{run_dir.name} has kept no trajectory (transcripts.keep = {config.transcripts.keep!r}); {what} is not there"
    numbers = [traj if args.trajectory is not None else group for traj, group in kept]
    return (
        f"{run_dir.name} has not kept {what}; it has {len(kept)} trajectories, numbers {min(numbers)} to {max(numbers)}"
        f" (transcripts.keep = {config.transcripts.keep!r}, the newest {config.transcripts.max_bytes / 1e6:,.0f} MB)"
    )
