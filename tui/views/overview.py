"""Screen 1: does the run make progress, how fast, which stage holds it up, and is something wrong?"""

from libra.control.snapshot import Snapshot
from tui.views.page import Look, Page
from tui.views.text import Line, Span, age, bar, fit, flowed, number, percent, ranges, right, seconds, spark, words

LABEL = 12
ROLES = ("trainer", "rollout", "gradient", "moving", "spare", "lost")


def overview(look: Look) -> Page:
    s = look.model.snapshot
    assert s is not None
    lines = [
        *_progress(s, look),
        (),
        *_rates(s, look),
        (),
        *_pace(s, look),
        _trainer(s),
        (),
        *_flight(s, look),
        _engines(s),
        _roles(s),
        *_allocation(s, look),
    ]
    if look.height >= 32:
        lines += [(), *_buckets(s, look)]
    room = look.height - len(lines) - 1
    alerts = s.run.alerts[-max(room, 1) :]
    lines += [
        _named("alerts", (("none", "dim"),) if not alerts else ()),
        *(_alert(a.t, a.level, a.what) for a in alerts),
    ]
    return Page(head=lines)


def _named(name: str, line: Line) -> Line:
    return ((fit(name, LABEL), "dim"), *line)


def _progress(s: Snapshot, look: Look) -> list[Line]:
    run = s.run
    share = run.step / run.steps if run.steps else 0.0
    wide = max(10, min(40, look.width - LABEL - 40))
    lines = [
        _named(
            "step",
            words(
                (f"{run.step} / {run.steps}", "bold"),
                (bar(share, wide, look.glyphs.bar), "heat"),
                percent(share),
                f"ETA {age(run.eta_s)}",
            ),
        ),
        _named(
            "run",
            words(
                run.phase,
                f"{run.mode}, {run.policy}",
                f"version {run.version}",
                f"lag {run.lag} of {run.max_lag}",
                f"up {age(s.t)}",
            ),
        ),
    ]
    if run.label:
        lines.append(_named("", words(run.label, bar(run.progress, 20, look.glyphs.bar), percent(run.progress))))
    return lines


def _rates(s: Snapshot, look: Look) -> list[Line]:
    run = s.run
    wide = max(0, min(60, look.width - LABEL - 26))
    steps = look.glyphs.heat
    reward = next((r for r in reversed(run.rewards) if r is not None), None)
    held = [(f"{name} {value:.3f}", "") for name, value in list(run.heldout.items())[-2:]]
    return [
        _named(
            "throughput",
            (
                (fit(f"{number(run.tokens_per_s)} tok/s", 13), "bold"),
                (spark(look.model.history.tokens_per_s, wide, steps, 0.0), "heat"),
            ),
        ),
        _named("", ((f"{number(float(run.tokens_sampled))} tokens sampled", "dim"),)),
        _named(
            "reward",
            ((fit("-" if reward is None else f"{reward:.3f}", 13), "bold"), (spark(run.rewards, wide, steps), "heat")),
        ),
        *([_named("held-out", words(*held))] if held else []),
    ]


def _pace(s: Snapshot, look: Look) -> list[Line]:
    """Both stages' seconds for a batch, on one scale: the longer one holds the run up."""
    pace = (("train", s.pace.train_s), ("rollout", s.pace.rollout_s), ("trainer idle", s.pace.wait_s))
    top = max((v for _, v in pace if v), default=0.0)
    wide = max(10, look.width - LABEL - 16)
    styles = {"train": "trainer", "rollout": "rollout", "trainer idle": "warn"}
    return [
        _named(
            name,
            (
                (right(seconds(value), 8) + "  ", "bold"),
                (bar(value / top, wide, (" ", look.glyphs.bar[1])) if value and top else "", styles[name]),
            ),
        )
        for name, value in pace
    ]


def _trainer(s: Snapshot) -> Line:
    t = s.trainer
    if t.step is None:
        return _named("trainer", words(f"waits for a batch for {age(t.since_s)}", f"{s.run.groups_ready} groups ready"))
    waits = f"waits for rank {ranges(t.waits_for)}" if t.waits_for else ""
    return _named(
        "trainer",
        words(
            f"step {t.step} for {age(t.since_s)}",
            f"round {t.rounds}, {t.rounds_out} out, {t.micro_batches_left} left",
            "closing" if t.closing else waits,
        ),
    )


def _flight(s: Snapshot, look: Look) -> list[Line]:
    stages = [(f"{name} {count}", "") for name, count in s.run.in_flight.items() if count]
    failed = [(f"failed {s.run.failed}", "warn")] if s.run.failed else []
    parts: list[Span] = [*failed, *(stages or [("nothing", "dim")]), (f"groups {s.run.groups_ready}", "")]
    lines = flowed([(part, ("  ", "")) for part in parts], look.width - LABEL)
    return [_named("" if n else "in flight", line) for n, line in enumerate(lines)]


def _engines(s: Snapshot) -> Line:
    if not s.engines:
        return _named("engines", (("none", "dim"),))
    up = sum(e.up for e in s.engines)
    kv = [e.kv for e in s.engines if e.up]
    full = f"KV {percent(sum(kv) / len(kv))} mean, {percent(max(kv))} most" if kv else "KV -"
    run, wait = sum(e.running for e in s.engines), sum(e.waiting for e in s.engines)
    down: Span = (f"{up} of {len(s.engines)} up", "" if up == len(s.engines) else "warn")
    return _named("engines", words(down, f"running {run}", f"waiting {wait}", full))


def _roles(s: Snapshot) -> Line:
    counts = [(f"{name} {n}", name) for name in ROLES if (n := getattr(s.allocation, name))]
    ages = [r.seen_s for r in s.ranks if r.seen_s is not None]
    oldest = f"oldest heartbeat {age(max(ages))}" if ages else ""
    return _named("ranks", words(*counts, (oldest, "warn" if ages and max(ages) > 10 else "dim") if oldest else None))


def _allocation(s: Snapshot, look: Look) -> list[Line]:
    a = s.allocation
    lines = [_named("moves", words(f"epoch {a.epoch}", automatic(s), f"{len(a.moves)} under way" if a.moves else ""))]
    for move in a.moves[: 3 if look.height < 32 else 8]:
        lines.append(_named("", words((move.what, "moving"), f"{move.stage} for {age(s.t - move.since)}")))
    return lines


def automatic(s: Snapshot) -> Span:
    """Whether ranks may move by themselves."""
    a = s.allocation
    rule = f"automatic moves: {s.run.rule}" if s.run.rule else "automatic moves"
    if a.paused:
        return (f"{rule} paused", "warn")
    if a.hold_until is not None and a.hold_until > s.t:
        return (f"{rule} held for {age(a.hold_until - s.t)}", "warn")
    return (rule, "dim")


def _buckets(s: Snapshot, look: Look) -> list[Line]:
    return [
        _named(
            b.name,
            words(
                f"TP {b.tp}",
                f"{b.up} of {b.engines} up",
                f"in flight {b.in_flight}",
                f"{number(float(b.waiting_tokens))} tokens wait",
                f"oldest {age(b.oldest_s)}",
            ),
        )
        for b in s.buckets[: max(1, look.height - 26)]
    ]


def _alert(t: float, level: str, what: str) -> Line:
    style = "bad" if level == "error" else "warn"
    return ((right(seconds(t), LABEL - 2) + "  ", "dim"), (f"{level}: ", style), (fit(what, 400).rstrip(), ""))
