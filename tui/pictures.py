"""The documents' pictures, made by the dashboard itself from a run's journal: `python -m tui.pictures RUN SECONDS DIRECTORY`.

The journal is played up to SECONDS of the run's clock as a replay would, a state a second, and every screen is saved as SVG.
"""

import sys
from pathlib import Path

from libra.cli.runs import find
from libra.controller.rewind import Rewind
from tui.desk import Verdict
from tui.draft import Draft
from tui.model import LinkState, Model, Playing
from tui.palette import UNICODE, palette
from tui.saving import svg_of
from tui.ui import SCREENS, Ui
from tui.views.frame import frame

WIDTH, HEIGHT = 100, 28
STATE_EVERY_S = 10.0


def main(run: str, until_s: float, directory: Path) -> None:
    tape, model, ui = Rewind(find(run)), Model(Path(run).name), Ui()
    told = 0
    while tape.now < min(until_s, tape.length_s):
        tape.advance(STATE_EVERY_S)
        model.take(tape.snapshot())
        for news in tape.news_since(told):
            model.hear(news)
            told = news.n
    model.link, model.playing = LinkState("replay"), Playing(tape.now, tape.length_s, True, 1.0)
    assert model.snapshot is not None
    if model.snapshot.tail:
        ui.trajectory = max(model.snapshot.tail, key=lambda t: t.turns).id
        model.detail = tape.detail(ui.trajectory)
    for screen in SCREENS:
        ui.screen = screen
        picture = frame(model, ui, Draft(), Verdict(), UNICODE, WIDTH, HEIGHT, 0.0)
        svg = svg_of(picture.lines, palette("256"), WIDTH, f"{model.run}: {screen}")
        (directory / f"dashboard-{screen}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
