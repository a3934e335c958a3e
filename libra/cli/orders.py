"""`libra allocate | hold | release | undo`: one order over the control socket, and its answer.

Exit code 0: accepted; 1: refused, and nothing has changed.
"""

import sys

import msgspec

from libra.cli import arguments
from libra.cli.runs import find_or_newest
from libra.cli.text import seconds_of
from libra.control.client import Orders
from libra.core.orders import Allocate, Hold, Order, Undo
from libra.errors import ConfigError


def order(args: arguments.Allocate | arguments.Hold | arguments.Release | arguments.Undo) -> int:
    wanted = _order(args)
    epoch = args.epoch if isinstance(args, arguments.Allocate | arguments.Undo) else None
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


def _order(args: arguments.Allocate | arguments.Hold | arguments.Release | arguments.Undo) -> Order:
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
        case arguments.Release():
            return Hold(0.0)
        case arguments.Undo():
            return Undo()
