"""`libra watch`: the run as it goes, a line for each state and each thing that happens, flushed at once.

It ends with 0 when the run has ended, with 1 when the link is lost while the run goes on.
"""

import os
import sys

import msgspec

from libra.cli.arguments import Watch
from libra.cli.runs import find_or_newest
from libra.cli.status import headline
from libra.cli.text import duration, seconds_of
from libra.config.rundir import is_alive, read_pid
from libra.control.client import Seen, View
from libra.control.messages import TOPICS, Missed, News, Topic
from libra.control.snapshot import Snapshot, TrajectoryDetail
from libra.errors import ConfigError, LibraError, RunGone


def watch(args: Watch) -> int:
    every, topics = seconds_of(args.every), _topics(args.topics)
    if every is None:
        raise ConfigError("--every", [f"got {args.every!r}, expected a time such as 1s, 0.5s or 1m; 0 for none"])
    run_dir = find_or_newest(args.run)
    say = _json if args.json else _line
    ended = False
    with View(run_dir) as link:
        try:
            for word in link.follow(1 / every if every else 0.0, topics):
                ended = ended or (isinstance(word, News) and word.data.get("ended") is True)
                print(say(word), flush=True)
        except BrokenPipeError:  # `| head` has seen enough; nothing may be flushed into it any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except RunGone:
            pid = read_pid(run_dir)
            if not ended and pid is not None and is_alive(pid):
                raise LibraError(f"lost the link to {run_dir.name}, which still runs") from None
            if not args.json:
                print(f"{run_dir.name} has ended", flush=True)
    return 0


def _topics(text: str) -> tuple[Topic, ...]:
    words = [word for word in text.split(",") if word]
    if wrong := [word for word in words if word not in TOPICS]:
        raise ConfigError("--topics", [f"got {', '.join(wrong)}, expected some of {', '.join(TOPICS)}"])
    return tuple(topic for topic in TOPICS if topic in words)


def _json(word: Seen) -> str:
    return msgspec.json.encode(word).decode()


def _line(word: Seen) -> str:
    match word:
        case Snapshot():
            return headline(word)
        case News(t=t, topic=topic, level=level, what=what):
            return f"{duration(t):>7}  {topic if level == 'info' else level}: {what}"
        case Missed(news=news):
            return f"({news} lines missed)"
        case TrajectoryDetail(id=id, stage=stage):
            return f"trajectory {id}: {stage}"
