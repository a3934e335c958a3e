"""The `libra` command: parses, calls one subcommand, and turns errors into one clear message and an exit code.

    0  done, accepted       1  failed, refused          2  bad configuration or command line
    3  no such run, or it does not run                  128 + n  ended by signal n (Ctrl-C: 130)

Nothing here imports torch; only `libra run` does, when it is about to start processes.
"""

import sys
from collections.abc import Sequence

from libra.errors import ConfigError, LibraError, PreflightError, RunGone

FAILED, BAD_INPUT, GONE, INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv) or ["--help"])
    except (ConfigError, PreflightError) as e:
        print(f"libra: {e}", file=sys.stderr)
        return BAD_INPUT
    except RunGone as e:
        print(f"libra: {e}", file=sys.stderr)
        return GONE
    except LibraError as e:
        print(f"libra: {e}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    if argv[0] == "top":  # before the parser of all the others is loaded: the first picture is to come within a second
        from libra.cli.top import top

        top(argv[1:])
    from libra.cli import arguments

    command = arguments.parse(argv)
    match command:
        case arguments.Run():
            from libra.cli.run import run

            return run(command)
        case arguments.List():
            from libra.cli.listing import show_runs

            return show_runs(command)
        case arguments.Top():
            raise AssertionError("top is taken before it is parsed here")
        case arguments.Stop():
            from libra.cli.stop import stop

            return stop(command)
        case arguments.Status():
            from libra.cli.status import status

            return status(command)
        case arguments.Watch():
            from libra.cli.watch import watch

            return watch(command)
        case arguments.Show():
            from libra.cli.show import show

            return show(command)
        case arguments.Replay():
            from libra.cli.replay import replay

            return replay(command)
        case arguments.Simulate():
            from libra.cli.simulate import simulate

            return simulate(command)
        case arguments.Compare():
            from libra.cli.compare import compare

            return compare(command)
        case arguments.Fetch():
            from libra.cli.fetch import fetch

            return fetch(command)
        case arguments.Export():
            from libra.cli.export import export

            return export(command)
        case arguments.Cost():
            from libra.cli import cost

            return cost.main(command.words or ("--help",))
        case arguments.Top():
            raise AssertionError("libra top has been served above")
        case _:
            from libra.cli.orders import order

            return order(command)
