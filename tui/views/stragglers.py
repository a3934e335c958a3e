"""Screen 3: who will be last. Per bucket the residual lengths of what runs, then the tail's trajectories one by one.

Two things keep a trajectory in the tail: much left to sample (`left`, with its P90), or long without an end (`age`). The flags
say which are slow, stalled or retried, and which a person has raised.
"""

from libra.control.snapshot import RESIDUAL_BINS, BucketRow, Snapshot, TailRow
from tui.views.page import Look, Page
from tui.views.text import Line, Span, age, cut, fit, matches, number, right


def stragglers(look: Look) -> Page:
    s = look.model.snapshot
    assert s is not None
    tall = max(1, min(4, (look.height - 14) // max(1, 2 * len(s.buckets))))
    shown = [t for t in s.tail if _wanted(look, t)] if look.ui.filter else s.tail
    signal = look.width - FIXED

    def row(i: int) -> Line:
        return _row(shown[i], signal)

    head = [*_histograms(s, look, tall), (), _about(s, len(shown)), cut(((HEAD, "dim"),), look.width)]
    empty = "no trajectory matches the filter" if look.ui.filter else "nothing in flight"
    return Page(head=head, keys=[t.id for t in shown], row=row, empty=empty)


HEAD = "   id stage          for    age turn  toks  left   P90 eng flags    last signal"
FIXED = 67
"""Columns before the last signal."""


def _wanted(look: Look, t: TailRow) -> bool:
    return matches(
        look.ui.filter,
        t.id,
        t.stage,
        t.signal,
        t.kind,
        f"batch{t.batch}",
        f"group{t.group}",
        f"engine{t.engine}",
        _flags(t),
    )


def _about(s: Snapshot, shown: int) -> Line:
    slow, stalled = sum(t.slow for t in s.tail), sum(t.stalled for t in s.tail)
    return (
        (f"tail: {shown} of {s.tail_of} in flight", "bold"),
        (f"  slow {slow}", "warn" if slow else "dim"),
        (f"  stalled {stalled}", "bad" if stalled else "dim"),
        (f"  retrying {sum(t.retrying for t in s.tail)}", "dim"),
    )


def _histograms(s: Snapshot, look: Look, tall: int) -> list[Line]:
    most = max((n for b in s.buckets for n in b.residual), default=0)
    room = max(2, (look.height - 8) // (tall + (1 if tall > 1 else 0)) - 1)
    lines: list[Line] = [
        ((fit("bucket  up    run  toks wait  oldest  pace", 46), "dim"), ("residual tokens of what runs", "dim"))
    ]
    for bucket in s.buckets[:room]:
        bars = columns(bucket.residual, most, tall, look.glyphs.heat)
        lines += [((" " * 46, ""), (line, "heat")) for line in bars[:-1]]
        lines.append((*_bucket(bucket), (bars[-1], "heat")))
    if len(s.buckets) > room:
        lines.append(((f"... and {len(s.buckets) - room} buckets more", "dim"),))
    lines.append(((" " * 46, ""), (SCALE, "dim")))
    return lines


SCALE = "0  4  32  512  16k  512k"
"""Under the bins: bin i begins at 2^(i-1) tokens."""


def _bucket(b: BucketRow) -> Line:
    return (
        (fit(b.name, 7) + " ", "bold"),
        (fit(f"{b.up}/{b.engines}", 6), "" if b.up == b.engines else "warn"),
        (right(str(b.in_flight), 4) + right(number(float(b.waiting_tokens)), 9), ""),
        (right(age(b.oldest_s), 9) + right(f"x{b.factor:.2f}", 7) + "  ", ""),
    )


def columns(counts: tuple[int, ...], most: int, tall: int, steps: str) -> list[str]:
    """A histogram of `tall` lines, top first, RESIDUAL_BINS columns; anything that is there shows."""
    units = len(steps) - 1
    levels = [0 if not n else max(1, round(n / most * units * tall)) for n in counts[:RESIDUAL_BINS]]
    lines = []
    for line in reversed(range(tall)):
        blank = steps[0] if line == 0 else " "
        lines.append(
            "".join(blank if level <= line * units else steps[min(units, level - line * units)] for level in levels)
        )
    return lines


def _row(t: TailRow, signal: int) -> Line:
    return (
        (right(str(t.id), 5) + " ", ""),
        (fit(t.stage, 11), _stage_style(t)),
        (right(age(t.since_s), 6) + right(age(t.age_s), 7), "bad" if t.stalled else ""),
        (right(str(t.turns), 5) + right(number(float(t.sampled_tokens)), 6), ""),
        (right(number(t.residual_mean), 6) + right(number(t.residual_p90), 6), "bold" if t.evidence > 0 else "dim"),
        (right("-" if t.engine < 0 else str(t.engine), 4) + " ", ""),
        flags(t, 8),
        (" " + fit(t.signal or "-", max(1, signal)), "dim"),
    )


def _stage_style(t: TailRow) -> str:
    return {"generating": "rollout", "acting": "gradient", "waiting": "moving"}.get(t.stage, "")


def _flags(t: TailRow) -> str:
    named = (("stalled", t.stalled), ("slow", t.slow), ("retry", t.retrying), ("raised", t.raised))
    return " ".join(word for word, on in named if on)


def flags(t: TailRow, width: int) -> Span:
    """The most urgent in full, the others by a letter."""
    words = _flags(t).split()
    text = words[0] + "".join(f"+{word[0]}" for word in words[1:]) if words else ""
    return (fit(text, width), "bad" if t.stalled else "warn" if t.slow else "draft" if t.raised else "")
