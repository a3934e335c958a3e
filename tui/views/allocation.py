"""Screen 4: who has which role, what the rule would do and why, moves as they happen, and a person's draft with its price.

The table holds the moves under way, then the units; the draft's marks stand in the units' own lines.
"""

from collections.abc import Hashable

from libra.control.snapshot import MoveRow, Snapshot
from tui.desk import Verdict
from tui.draft import Draft, Unit, units
from tui.views.overview import ROLES, automatic
from tui.views.page import Look, Page
from tui.views.text import Line, Span, age, clean, cut, fit, percent, ranges, right, seconds, words, wrapped


def allocation(look: Look, draft: Draft, verdict: Verdict) -> Page:
    s = look.model.snapshot
    assert s is not None
    present = units(s)
    keys: list[Hashable] = [*(("move", m.id) for m in s.allocation.moves), *(u.ranks for u in present)]
    moves = s.allocation.moves
    engines = {e.ranks: e for e in s.engines}
    hosts = {r.rank: r.host for r in s.ranks} if look.width >= 100 else {}

    def row(i: int) -> Line:
        if i < len(moves):
            return _move(moves[i], s, look)
        return _unit(present[i - len(moves)], draft, engines, hosts, look)

    head = [*_state(s, look), *_draft(s, look, draft, verdict), cut(((_head(bool(hosts)), "dim"),), look.width)]
    return Page(head=head, keys=keys, row=row, foot=_past(s, look, len(head), len(keys)), empty="no units")


def _head(hosts: bool) -> str:
    return "unit         ranks      now              wanted            load              " + ("host" if hosts else "")


def _state(s: Snapshot, look: Look) -> list[Line]:
    a = s.allocation
    counts = [(f"{name} {n}", name) for name in ROLES if (n := getattr(a, name))]
    pace = f"train {seconds(s.pace.train_s)}, rollout {seconds(s.pace.rollout_s)} a batch"
    lines: list[Line] = [words((f"epoch {a.epoch}", "bold"), *counts), words(automatic(s), (pace, "dim"))]
    if a.proposal:
        gain = f", a batch {percent(a.gain)} shorter" if a.gain is not None else ""
        lines += [((text, "title"),) for text in wrapped(f"proposal: {a.proposal}{gain}", look.width, 2)]
    else:
        lines.append((("proposal: none", "dim"),))
    return lines


def _draft(s: Snapshot, look: Look, draft: Draft, verdict: Verdict) -> list[Line]:
    """Nothing where there is no draft."""
    if not draft:
        return []
    changes = draft.difference(s, look.glyphs.arrow)
    lines: list[Line] = [
        (
            (f"draft, {len(changes)} change{'s' if len(changes) != 1 else ''}", "draft"),
            ("  enter orders it, esc drops it", "dim"),
        )
    ]
    stale = verdict.revision != draft.revision
    lines += [((f"  {text}", style if not stale else "dim"),) for text, style in judged(verdict, stale, look.width - 2)]
    return lines


def judged(verdict: Verdict, stale: bool, width: int) -> list[Span]:
    """What the core and the simulator say of a draft."""
    if stale:
        return [("being checked", "dim")]
    check, price = verdict.check, verdict.price
    out: list[Span] = []
    if check is not None:
        if not check.valid:
            return [(text, "bad") for text in wrapped(f"not possible: {check.reason}", width, 2)]
        out += [(text, "ok") for text in wrapped("valid: " + "; ".join(check.effects), width, 2)]
    if verdict.problem:
        out += [(text, "warn") for text in wrapped(verdict.problem, width, 2)]
    elif price is not None:
        out += [(text, "") for text in wrapped(_priced(price), width, 4)]
    elif check is not None:
        out.append(("being priced by a simulation from here", "dim"))
    return out


def _priced(price: object) -> str:
    if not getattr(price, "valid", False):
        return f"no price: {getattr(price, 'reason', '')}"
    ratio = getattr(price, "throughput_ratio", None)
    change = "unknown throughput" if ratio is None else f"{(ratio - 1) * 100:+.0f} % throughput"
    stages = f"train {seconds(getattr(price, 'train_s', None))}, rollout {seconds(getattr(price, 'rollout_s', None))} a batch"
    notes = "; ".join(getattr(price, "notes", ()))
    transition_s = getattr(price, "transition_s", None)
    transition = "transition unknown" if transition_s is None else f"{seconds(transition_s)} transition"
    told = f"predicted {change}, {transition} ({stages})"
    return f"{told}; {notes}" if notes else told


def _move(m: MoveRow, s: Snapshot, look: Look) -> Line:
    return words(
        (f"{look.glyphs.dot} move {m.id}", "moving"),
        (clean(m.what), "moving"),
        f"{m.stage} for {age(s.t - m.since)}",
        (f"{age(s.t - m.began)} in all", "dim"),
        (f"by {m.author or 'the rule'}" + (f": {m.reason}" if m.reason else ""), "dim"),
    )


def _unit(unit: Unit, draft: Draft, engines: dict, hosts: dict[int, str], look: Look) -> Line:
    target = draft.marks.get(unit.ranks)
    wanted = f"{look.glyphs.arrow} {target}" if target else ""
    engine = engines.get(unit.ranks)
    load = f"{right(f'{engine.running}+{engine.waiting}', 7)} KV {percent(engine.kv)}" if engine else ""
    if engine and not engine.up:
        load = "not up"
    now = (unit.bucket and f"rollout {unit.bucket}") or unit.role
    return (
        (fit(unit.name, 13), ""),
        (fit(ranges(unit.ranks), 11), ""),
        (fit(now, 17), unit.role),
        (fit(wanted, 18), "draft"),
        (fit(load, 18), "dim"),
        (hosts.get(unit.ranks[0], ""), "dim"),
    )


def _past(s: Snapshot, look: Look, above: int, rows: int) -> list[Line]:
    """The last moves that ended, as many as there is room for: three at least."""
    room = max(3, look.height - above - rows - 1)
    recent = s.allocation.recent[-room:]
    if not recent:
        return []
    lines: list[Line] = [(("moves that ended", "dim"),)]
    for m in reversed(recent):
        who = m.author or "rule"
        why = f": {m.reason}" if m.reason else ""
        lines.append(
            (
                (right(seconds(m.since), 8) + "  ", "dim"),
                (f"{m.id} {clean(m.what)}  ", ""),
                (f"{m.stage} after {seconds(m.since - m.began)}  ", "ok" if m.stage == "ready" else "warn"),
                (clean(f"by {who}{why}"), "dim"),
            )
        )
    return lines
