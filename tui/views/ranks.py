"""Screen 2: every device rank, what it does, and how busy it was in each step: a slow rank is a line, a stall a column.

The heat map's rightmost column is the step that runs. Busy is what a rank's role reported; ranks that wait show as empty.
"""

from libra.control.snapshot import EngineRow, RankRow, Snapshot
from tui.history import LEVELS, UNKNOWN_LEVEL, Column
from tui.views.page import Look, Page
from tui.views.text import Line, age, cut, fit, matches, percent, right

OLD_HEARTBEAT_S = 10.0
HOST = 14
STATUS_STYLE = {"lost": "bad", "absent": "warn", "starting": "moving", "forming": "moving", "fetching": "moving"}


def ranks(look: Look) -> Page:
    s = look.model.snapshot
    assert s is not None
    engines = {e.id: e for e in s.engines}
    shown = [r for r in s.ranks if _wanted(look, r)] if look.ui.filter else s.ranks
    hosts = look.width >= 100
    fixed = _fixed(hosts)
    columns = look.model.history.newest(look.width - fixed)

    def row(i: int) -> Line:
        return _row(shown[i], engines, columns, look, hosts)

    head = "rank role     unit bucket  run+wait   KV  seen doing      "
    heat = f"busy, {len(columns)} steps" if columns else "busy"
    title = (
        (head + (fit("host", HOST) + " " if hosts else ""), "dim"),
        (right(heat, max(0, look.width - fixed)), "dim"),
    )
    return Page(
        head=[_summary(s, look), cut(title, look.width)],
        keys=[r.rank for r in shown],
        row=row,
        empty="no rank matches the filter" if look.ui.filter else "no ranks",
    )


def _fixed(hosts: bool) -> int:
    return 4 + 1 + 8 + 1 + 4 + 1 + 7 + 1 + 8 + 1 + 4 + 1 + 5 + 1 + 10 + (HOST + 1 if hosts else 0)


def _wanted(look: Look, r: RankRow) -> bool:
    return matches(look.ui.filter, r.rank, r.role, r.bucket, r.status, r.host, r.doing, r.device)


def _summary(s: Snapshot, look: Look) -> Line:
    trouble = [r for r in s.ranks if r.status in ("absent", "lost")]
    late = [r for r in s.ranks if r.seen_s is not None and r.seen_s > OLD_HEARTBEAT_S]
    scale = look.glyphs.heat
    return (
        (f"{len(s.ranks)} ranks", "bold"),
        (f"  {len(trouble)} absent or lost", "bad" if trouble else "dim"),
        (f"  {len(late)} without heartbeat for {OLD_HEARTBEAT_S:g}s", "bad" if late else "dim"),
        (f"  busy 0 {scale} 100%", "dim"),
    )


def _row(r: RankRow, engines: dict[int, EngineRow], columns: list[Column], look: Look, hosts: bool) -> Line:
    engine = engines.get(r.unit) if r.role == "rollout" else None
    queue = f"{engine.running}+{engine.waiting}" if engine else "-"
    kv = percent(engine.kv) if engine else "-"
    doing = r.doing or r.status if r.status == "serving" else r.status
    late = r.seen_s is not None and r.seen_s > OLD_HEARTBEAT_S
    role = "moving" if r.move and r.role != "lost" else r.role
    return (
        (right(str(r.rank), 4) + " ", ""),
        (fit(role, 9), role),
        (right("-" if r.unit < 0 else str(r.unit), 4) + " ", ""),
        (fit(r.bucket or "-", 8), ""),
        (right(queue, 8) + " ", ""),
        (right(kv, 4) + " ", "warn" if engine and engine.kv >= 0.95 else ""),
        (right(age(r.seen_s), 5) + " ", "bad" if late else "dim"),
        (fit(doing or "-", 10), STATUS_STYLE.get(r.status, "")),
        (f" {fit(r.host, HOST)}" if hosts else "", "dim"),
        (heat(r, columns, look), "heat2" if role == "gradient" else "heat"),
    )


def heat(r: RankRow, columns: list[Column], look: Look) -> str:
    """A glyph a step."""
    steps, absent = look.glyphs.heat, look.glyphs.absent
    last = len(steps) - 1
    levels = (column.of(r.rank) for column in columns)
    text = "".join(
        absent if level == UNKNOWN_LEVEL else steps[(level * last + LEVELS // 2) // LEVELS] for level in levels
    )
    return " " + text
