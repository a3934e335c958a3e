"""`libra status`: how a run stands now, over its view socket; how it ended, from its summary."""

import msgspec

from libra.cli.arguments import Status
from libra.cli.runs import find_or_newest
from libra.cli.text import duration, table
from libra.control.client import View
from libra.control.snapshot import Snapshot, TailRow
from libra.errors import RunGone
from libra.telemetry.summary import FILE as SUMMARY_FILE

ROWS = 16
"""Of each table; --json has all."""
TAIL_ROWS = 6


def status(args: Status) -> int:
    run_dir = find_or_newest(args.run)
    try:
        with View(run_dir) as link:
            snapshot = link.snapshot()
    except RunGone:
        if not (run_dir / SUMMARY_FILE).is_file():
            raise
        summary = msgspec.json.decode((run_dir / SUMMARY_FILE).read_bytes(), type=dict[str, object])
        print(_json({"kind": "summary", **summary}) if args.json else _ended(run_dir.name, summary))
        return 0
    print(_json(snapshot) if args.json else "\n".join(lines(snapshot)))
    return 0


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _ended(name: str, summary: dict[str, object]) -> str:
    how = "finished" if summary.get("ok") else "failed"
    reward = summary.get("reward_last")
    figures = f"{summary.get('steps')} steps, reward {reward if reward is not None else '-'}"
    return f"{name}  {how}  {figures}\n{summary.get('reason')}"


def headline(s: Snapshot) -> str:
    """The run in one line."""
    run = s.run
    left = f", about {duration(run.eta_s)} to go" if run.eta_s is not None else ""
    reward = next((r for r in reversed(run.rewards) if r is not None), None)
    known = f"  reward {reward:.3f}" if reward is not None else ""
    return (
        f"{run.name}  {run.phase}  step {run.step}/{run.steps}{known}  {run.tokens_per_s:,.0f} tokens/s"
        f"  {duration(s.t)}{left}"
    )


def lines(s: Snapshot) -> list[str]:
    """The whole state, within 80 columns where names are short."""
    run, pace, held = s.run, s.pace, s.allocation
    out = [headline(s)]
    if run.label:
        out.append(f"  {run.label} ({run.progress:.0%})")
    flight = ", ".join(f"{count} {stage}" for stage, count in run.in_flight.items()) or "nothing"
    out.append(f"  mode {run.mode}, lag {run.lag} of {run.max_lag} at most, version {run.version}; in flight: {flight}")
    known = (("train", pace.train_s), ("rollout", pace.rollout_s), ("waited", pace.wait_s))
    if seconds := [f"{name} {value:.2f} s" for name, value in known if value is not None]:
        out.append(f"  a batch: {', '.join(seconds)}")
    counts = (
        (n, name)
        for name in ("trainer", "rollout", "gradient", "moving", "spare", "lost")
        if (n := getattr(held, name))
    )
    hold = (
        f", held for {duration(held.hold_until - s.t)}" if held.hold_until is not None and held.hold_until > s.t else ""
    )
    out.append(f"  allocation {held.epoch}: {', '.join(f'{n} {name}' for n, name in counts)}{hold}")
    out += [f"  move {m.id}: {m.what}, {m.stage} for {duration(s.t - m.since)}" for m in held.moves]
    out += ["", *_ranks(s), "", *_engines(s)]
    if s.tail:
        out += ["", *_tail(s)]
    if run.alerts:
        out += ["", *(f"{duration(a.t):>7}  {a.level}: {a.what}" for a in run.alerts)]
    return out


def _shown(head: tuple[str, ...], rows: list[tuple[str, ...]], total: int) -> list[str]:
    return [
        *table([head, *rows]),
        *([f"... and {total - len(rows)} more (--json has all)"] if total > len(rows) else []),
    ]


def _ranks(s: Snapshot) -> list[str]:
    """Those in trouble first."""
    order = sorted(s.ranks, key=lambda r: (r.status == "up", r.rank))[:ROWS]
    rows = [
        (
            str(r.rank),
            r.role,
            "-" if r.unit < 0 else str(r.unit),
            r.bucket or "-",
            r.status,
            "-" if r.seen_s is None else f"{r.seen_s:.1f}s",
            r.doing or "-",
            r.host,
        )
        for r in order
    ]
    return _shown(("RANK", "ROLE", "UNIT", "BUCKET", "STATUS", "SEEN", "DOING", "HOST"), rows, len(s.ranks))


def _engines(s: Snapshot) -> list[str]:
    rows = [
        (
            str(e.id),
            e.bucket,
            str(e.version),
            str(e.running),
            str(e.waiting),
            f"{e.kv:.0%}",
            f"{e.outstanding_tokens:,}",
        )
        for e in s.engines[:ROWS]
    ]
    return _shown(("ENGINE", "BUCKET", "VERSION", "RUNNING", "WAITING", "KV", "OUTSTANDING"), rows, len(s.engines))


def _tail(s: Snapshot) -> list[str]:
    rows = [
        (
            str(t.id),
            str(t.batch),
            t.stage,
            duration(t.age_s),
            str(t.turns),
            f"{t.sampled_tokens:,}",
            f"{t.residual_mean:,.0f} / {t.residual_p90:,.0f}",
            t.signal or "-",
            _flags(t),
        )
        for t in s.tail[:TAIL_ROWS]
    ]
    head = ("TRAJECTORY", "BATCH", "STAGE", "AGE", "TURNS", "TOKENS", "LEFT (P90)", "SIGNAL", "")
    return _shown(head, rows, s.tail_of)


def _flags(t: TailRow) -> str:
    return " ".join(word for word, on in (("slow", t.slow), ("stalled", t.stalled), ("retry", t.retrying)) if on)
