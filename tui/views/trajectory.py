"""Screen 5: one trajectory, turn by turn, with the path it took through the causality tree.

Each node of the path says what those who came by there still needed; where they differ from level to level, a signal told much.
"""

from libra.control.snapshot import NodeRow, TrajectoryDetail, TurnRow
from tui.views.page import Look, Page
from tui.views.text import Line, clean, fit, number, right, seconds, words


def trajectory(look: Look) -> Page:
    wanted, d = look.ui.trajectory, look.model.detail
    if wanted < 0:
        return Page(empty="no trajectory chosen: take one on screen 3 (j, k, enter)")
    if d is None or d.id != wanted:
        return Page(empty=f"trajectory {wanted}: waiting for its turns")
    if not d.found:
        return Page(
            head=[((f"trajectory {wanted}", "bold"),)],
            empty=f"it is over, or never was; if it was: libra show {look.model.run} --trajectory {wanted}",
        )
    path = d.path[-max(2, (look.height - 8) // 2) :]
    turns = d.turns
    head: list[Line] = [
        *_about(d, look),
        (),
        (("path through the causality tree            visits    left     P90", "dim"),),
    ]
    head += [_node(node, d.path.index(node), node is d.path[-1], look) for node in path] or [
        (("no prediction was made yet", "dim"),)
    ]
    head += [(), ((_HEAD, "dim"),)]

    def row(i: int) -> Line:
        return _turn(turns[i], look)

    return Page(head=head, keys=[t.turn for t in turns], row=row, empty="no turn has begun")


_HEAD = "turn    began  tokens context engine bucket    ver  seconds     tool  signal / why there"


def _about(d: TrajectoryDetail, look: Look) -> list[Line]:
    s = look.model.snapshot
    row = next((t for t in s.tail if t.id == d.id), None) if s is not None else None
    left = (
        words(
            f"predicted left {number(row.residual_mean)} tokens (P90 {number(row.residual_p90)})",
            f"age {seconds(row.age_s)}",
            ("stalled", "bad") if row.stalled else None,
            ("slow", "warn") if row.slow else None,
            ("raised", "draft") if row.raised else None,
        )
        if row is not None
        else words(("not in the tail", "dim"))
    )
    reward = "-" if d.reward is None else f"{d.reward:.3f}"
    return [
        words(
            (f"trajectory {d.id}", "bold"),
            d.task,
            f"prompt {d.prompt}, sample {d.sample}",
            f"group {d.group}, batch {d.batch}",
            f"attempt {d.attempt}",
        ),
        (
            *words((d.stage, "title"), f"{len(d.turns) + d.earlier} turns", f"reward {reward}"),
            ("  ", ""),
            *left,
        ),
    ]


def _node(node: NodeRow, depth: int, used: bool, look: Look) -> Line:
    branch = "  " * min(depth, 8) + (look.glyphs.dot if used else look.glyphs.arrow) + " "
    return (
        (fit(branch + node.label, 41), "bold" if used else ""),
        (
            right(f"{node.visits:.1f}", 8) + right(number(node.residual_mean), 8) + right(number(node.residual_p90), 8),
            "bold" if used else "",
        ),
    )


def _turn(t: TurnRow, look: Look) -> Line:
    runs = t.seconds is None
    cut = f" in {t.segments} pieces" if t.segments > 1 else ""
    return (
        (right(str(t.turn), 4) + right(seconds(t.began), 9), ""),
        (right(number(float(t.sampled_tokens)), 8) + right(number(float(t.context_tokens)), 8), ""),
        (right("-" if t.engine < 0 else str(t.engine), 7) + " " + fit(t.bucket or "-", 8), "rollout" if runs else ""),
        (right("-" if t.version < 0 else str(t.version), 5), ""),
        (right("running" if runs else seconds(t.seconds), 9) + right(seconds(t.tool_s), 9), "rollout" if runs else ""),
        (f"  {clean(t.signal)}{cut}", ""),
        (f"  {clean(t.reason)}" if t.reason else "", "dim"),
    )
