"""`python -m tui [RUN]`, which is what `libra top` becomes: environment first, then textual.

0  left by a key     1  failed     2  bad command line     3  no such run     130  Ctrl-C before the first picture
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from libra.errors import LibraError, RunGone
from tui.terminal import prepare_here


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="libra top",
        description="Watch a run: stragglers, ranks and the allocation, live or replayed. `?` tells the keys.",
        epilog="Over SSH it sends little: 2 states a second, only what changed. NO_COLOR=1 is obeyed.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a name under ./runs, or a path; without it the newest that is running, or was",
    )
    parser.add_argument(
        "--control", action="store_true", help="keys may order: move ranks, hold, raise, cancel; each asks first"
    )
    parser.add_argument("--replay", action="store_true", help="play the journal, also of a run that is under way")
    parser.add_argument("--ascii", action="store_true", help="no glyphs beyond ASCII")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # textual draws on stderr
        print(
            "libra: top needs a terminal; libra status and libra watch do without (--json for programs)",
            file=sys.stderr,
        )
        return 1
    terminal = prepare_here(ascii_only=args.ascii)
    gc.disable()  # a seventh of what the imports cost, and nothing that they make is ever garbage
    try:
        from tui.opening import open_dashboard

        gc.freeze()
        gc.enable()
        app = open_dashboard(args.run, terminal, control=args.control, replay=args.replay, directory=Path())
        app.run(mouse=False)
        return app.return_code or 0
    except RunGone as e:
        print(f"libra: {e}", file=sys.stderr)
        return 3
    except LibraError as e:
        print(f"libra: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
