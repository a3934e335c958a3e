"""Made-up states of a run for the dashboard's tests, the same every time and of any size; a source that says nothing."""

from pathlib import Path

from msgspec import structs

from libra.control import snapshot as sn
from libra.control.messages import DraftAnswer, News, OrderAnswer
from libra.control.price import Price
from libra.control.state import LiveState
from libra.core.orders import Arrange, MoveRanks, Order
from tui.desk import Verdict
from tui.draft import Draft
from tui.model import LinkState, Model
from tui.palette import ASCII, UNICODE, Glyphs
from tui.terminal import Terminal
from tui.ui import ScreenName, Ui
from tui.views.frame import Picture, frame

TERMINAL = Terminal(False, 20, 20.0, "256", UNICODE)
PLAIN = Terminal(True, 10, 20.0, "none", ASCII)


def state(n: int = 1, ranks: int = 10, **fields: object) -> sn.Snapshot:
    """The n-th state of a run, two states a second. Two core trainers, then engines of one rank, of two, and one replica."""
    t = n * 0.5
    rows, engines = [], []
    replica = ranks - 2
    for rank in range(ranks):
        role = "trainer" if rank < 2 else "gradient" if rank >= replica else "rollout"
        unit = -1 if rank < 2 else 99 if rank >= replica else rank - 2
        rows.append(
            sn.RankRow(
                rank + 1,
                f"node{rank // 8:02}",
                "cuda",
                role,
                unit,
                "tp1" if role == "rollout" else "",
                "serving",
                0.4 + rank % 3,
                {"trainer": "round", "gradient": "round", "rollout": "generating"}[role],
                n,
                t * (0.9 if rank < 2 else 0.4),
                0,
                0,
            )
        )
    for e in range(ranks - 4):
        load = (e * 7 + n * (1 if e % 10 == 0 else 0)) % 32
        kv = min(1.0, load / 32)
        engines.append(
            sn.EngineRow(
                e, "tp1", (e + 3,), True, n // 8, -1, load, e % 3, kv, load * 900, load * 700, load * 800, n * load * 5
            )
        )
    tail = tuple(
        sn.TailRow(
            400 + i,
            "train",
            i // 4,
            i % 4,
            i // 4,
            3,
            ("generating", "acting", "waiting")[i % 3],
            3.0 + i,
            5 + i,
            3200 + 411 * i,
            5100 + 411 * i,
            9000.0 - 350 * i,
            21000.0 - 700 * i,
            0.0 if i == 4 else 12.5,
            "search/large/ok" if i else "",
            i,
            61.0 + 5 * i,
            i == 2,
            i == 3,
            i == 5,
            i == 6,
        )
        for i in range(12)
    )
    snapshot = sn.Snapshot(
        n,
        t,
        sn.RunPart(
            "demo",
            "async",
            0,
            "tail_first",
            "training",
            n // 8,
            60,
            n // 8,
            1834.0,
            12345.6 + n,
            4_560_000 + n,
            (0.31, 0.35, None, 0.42, 0.44),
            {"accuracy": 0.512},
            1,
            2,
            3,
            {"waiting": 4, "generating": 171, "acting": 20, "ready": 61},
            1,
            0.0,
            "",
            (sn.Alert(4.0, "warning", "engine 3 was slow"),),
            "balance",
        ),
        sn.PacePart(41.2, 38.0, 2.1),
        sn.AllocationPart(
            4,
            2,
            ranks - 4,
            2,
            0,
            0,
            0,
            None,
            (),
            (sn.MoveRow(1, (9, 10), "engines 6, 7 -> replica 99", "ready", 10.0, 41.0, "", "rollout was ahead"),),
            "replica 99 -> engine (tp1): rollout holds the trainer up",
            False,
            0.07,
        ),
        sn.TrainerPart(n // 8, n // 8, 2, 9, 5, False, (1,), 12.5),
        tuple(rows),
        tuple(engines),
        (sn.ReplicaRow(99, (ranks - 1, ranks), "serving", n // 8, 40),),
        (
            sn.BucketRow(
                "tp1",
                1,
                ranks - 4,
                ranks - 4,
                160,
                12400,
                187.0,
                tuple(max(0, 40 - (i - 11) ** 2) for i in range(22)),
                1.08,
            ),
            sn.BucketRow("tp2", 2, 0, 0, 0, 0, None, (0,) * 22, 1.0),
        ),
        tail,
        256,
    )
    return structs.replace(snapshot, **fields)


def detail(id: int = 401) -> sn.TrajectoryDetail:
    turns = tuple(
        sn.TurnRow(
            i,
            10.0 + 9 * i,
            700 + 30 * i,
            1200 + 900 * i,
            i % 3,
            "tp1",
            5,
            None if i == 3 else 6.5,
            None if i == 3 else 1.25,
            "" if i == 3 else "search/large/ok",
            "shortest queue among engines with room",
        )
        for i in range(4)
    )
    path = (
        sn.NodeRow("prompt 7", 210.0, 4100.0, 12000.0),
        sn.NodeRow("search/large/ok", 64.5, 6200.0, 15000.0),
        sn.NodeRow("open/medium/ok", 9.0, 8800.0, 20100.0),
    )
    return sn.TrajectoryDetail(id, 46.0, True, "train", 7, 1, 0, 3, 1, "generating", None, turns, 0, path)


def news(n: int, what: str = "rank 4 is up", level: str = "info") -> News:
    return News(n, 3.0 * n, "rank" if level == "info" else "report", level, what, {"rank": 4})


def model(states: int = 40, ranks: int = 10, control: bool = False) -> Model:
    """One that has followed a run for so many states."""
    m = Model("demo", control)
    m.link = LinkState("live")
    for n in range(1, states + 1):
        m.take(state(n, ranks))
    for n in range(1, 41):
        m.hear(news(n, f"rank {n} is up") if n % 7 else news(n, f"engine {n} was slow", "warning"))
    m.detail = detail()
    return m


def picture(
    m: Model,
    screen: ScreenName,
    width: int = 80,
    height: int = 24,
    glyphs: Glyphs = UNICODE,
    ui: Ui | None = None,
    draft: Draft | None = None,
    verdict: Verdict | None = None,
    now: float = 100.0,
) -> Picture:
    ui = ui or Ui()
    ui.screen = screen
    if ui.trajectory < 0:
        ui.trajectory = 401
    return frame(m, ui, draft or Draft(), verdict or Verdict(), glyphs, width, height, now)


def text(p: Picture) -> str:
    return "".join("".join(part for part, _ in line).rstrip() + "\n" for line in p.lines)


class Still:
    """A source that never says anything; what it was asked to show is noted."""

    def __init__(self) -> None:
        self.shown: list[int] = []

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def show(self, trajectory: int) -> None:
        self.shown.append(trajectory)


class PretendOffice:
    """A controller that finds every move legal but those of rank 3, and notes the orders that it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[Order, int | None]] = []
        self.priced: list[Order] = []
        self.refuses = ""
        self.closed = False

    def check(self, order: Order) -> DraftAnswer:
        moves = order.moves if isinstance(order, Arrange) else (order,) if isinstance(order, MoveRanks) else ()
        if any(3 in m.ranks for m in moves):
            return DraftAnswer("", False, "rank 3 is the last one of bucket tp1's TP group", (), 4)
        return DraftAnswer("", True, "", tuple(f"ranks {m.ranks} go to {m.to}" for m in moves), 4)

    def state(self) -> LiveState:
        return LiveState(1.0, 4, 1, b"{}", (), (), {}, None, None, (), ())

    def price(self, state: LiveState, orders: tuple[Order, ...]) -> Price:
        self.priced += orders
        return Price(True, "", 0.97, 40.0, 41.5, 11.0, (), 0.2)

    def give(self, order: Order, epoch: int | None) -> OrderAnswer:
        self.given.append((order, epoch))
        return OrderAnswer("", not self.refuses, self.refuses or "move 2: engine 4 -> replica 9", 5)

    def close(self) -> None:
        self.closed = True


FRAMES = Path(__file__).parent / "frames"
