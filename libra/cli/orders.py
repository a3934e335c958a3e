"""`libra allocate | hold | pause | resume | move | drain | raise | cancel | undo`: one order, and its answer.

Exit code 0: accepted; 1: refused, and nothing has changed.
"""

import sys

import msgspec

from libra.cli import arguments
from libra.cli.runs import find_or_newest
from libra.cli.text import seconds_of
from libra.control.client import Orders
from libra.core.orders import (
    Allocate,
    CancelMove,
    CancelTrajectory,
    Hold,
    MoveRanks,
    Order,
    Pause,
    Raise,
    Resume,
    Undo,
)
from libra.errors import ConfigError


def order(args: arguments.AnOrder) -> int:
    wanted = _order(args)
    epoch = (
        args.epoch if isinstance(args, arguments.Allocate | arguments.Move | arguments.Drain | arguments.Undo) else None
    )
    with Orders(find_or_newest(args.run)) as link:
        answer = link.give(wanted, epoch)
        run = link.welcome.run
    if args.json:
        print(msgspec.json.encode(answer).decode())
    elif answer.accepted:
        print(f"{run}: accepted{f' ({answer.reason})' if answer.reason else ''}, allocation {answer.epoch}")
    else:
        print(f"libra: {run} refuses: {answer.reason}", file=sys.stderr)
    return 0 if answer.accepted else 1


def _order(args: arguments.AnOrder) -> Order:
    match args:
        case arguments.Allocate(rollout=rollout, gradient=gradient):
            if rollout is None and gradient is None:
                raise ConfigError("libra allocate", ["got no number, expected --rollout N or --gradient M, or both"])
            if wrong := [n for n in (rollout, gradient) if n is not None and n < 0]:
                raise ConfigError("libra allocate", [f"got {wrong[0]} ranks, expected 0 or more"])
            return Allocate(rollout, gradient)
        case arguments.Hold(time=time):
            seconds = seconds_of(time)
            if not seconds:
                raise ConfigError("libra hold", [f"got --for {time}, expected a time such as 90, 60s, 5m or 2h"])
            return Hold(seconds)
        case arguments.Pause():
            return Pause()
        case arguments.Resume():
            return Resume()
        case arguments.Move(ranks=()) | arguments.Drain(ranks=()):
            command = type(args).__name__.lower()
            raise ConfigError(f"libra {command}", ["got no ranks, expected some, such as --ranks 7 8"])
        case arguments.Move(ranks=ranks, to=to, bucket=bucket):
            return MoveRanks(ranks, to, bucket)
        case arguments.Drain(ranks=ranks):
            return MoveRanks(ranks, "spare")
        case arguments.Raise(trajectory=trajectory, group=group, off=off):
            if trajectory is None:
                raise ConfigError("libra raise", ["got no trajectory, expected --trajectory N"])
            return Raise(trajectory, group, not off)
        case arguments.Cancel(trajectory=trajectory, move=move):
            if (trajectory is None) == (move is None):
                raise ConfigError(
                    "libra cancel", ["got none or both of --trajectory N and --move N, expected one of them"]
                )
            return CancelMove(move) if move is not None else CancelTrajectory(trajectory or 0)
        case arguments.Undo():
            return Undo()
