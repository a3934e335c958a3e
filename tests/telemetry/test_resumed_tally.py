"""A run that went on counts, and is read, as one run."""

from pathlib import Path

import msgspec

from libra.config.schema import CheckpointConfig, Config, EvalConfig, RolloutConfig, RunConfig
from libra.core import commands as c
from libra.telemetry.metrics import MetricsWriter, read_metrics
from libra.telemetry.saved_tally import SavedTally
from libra.telemetry.summary import Tally
from tests.core.virtual_shell import VirtualShell

CONFIG = Config(
    run=RunConfig(steps=6),
    rollout=RolloutConfig(groups_per_batch=3, samples_per_group=4),
    eval=EvalConfig(tasks=4, every=2),
    checkpoint=CheckpointConfig(every=1),
)


class Counted(VirtualShell):
    """Follows itself with a tally, and takes what a checkpoint would hold of it."""

    def __init__(self, tally: Tally, *args: object, **kwargs: object) -> None:
        self.tally = tally
        self.tallies: dict[int, bytes] = {}
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        handle = self.core.handle

        def told(event):  # type: ignore[no-untyped-def]
            commands = handle(event)
            tally.event(event)
            for command in commands:
                tally.command(command)
            return commands

        self.core.handle = told  # type: ignore[method-assign]

    def carry_out(self, command: c.Command) -> None:
        if isinstance(command, c.SaveCheckpoint):
            self.tallies[command.step] = msgspec.msgpack.encode(self.tally.saved())
        super().carry_out(command)


def test_the_summary_of_a_resumed_run_tells_of_the_whole_run() -> None:
    first = Counted(Tally.of(CONFIG), CONFIG, 1)
    first.run()
    step = 3
    tally = Tally.of(CONFIG)
    tally.resume(msgspec.msgpack.decode(first.tallies[step], type=SavedTally))
    then = Counted(tally, CONFIG, 2, saved=first.checkpoints[step])
    then.run()
    whole, before = tally.summary(), first.tally.summary()
    assert whole.ok
    assert (whole.steps, whole.resumed) == (6, 1)
    assert before.resumed == 0
    assert whole.cut_off > 0
    assert whole.lost == 0
    own = sum(isinstance(x, c.BatchConsumed) for x in then.commands)
    assert own == 6 - step
    assert whole.reward_heldout_start == before.reward_heldout_start
    assert whole.tokens_sampled > 0
    ended = {id for x in then.commands if isinstance(x, c.BatchConsumed) for id in [x.batch]}
    assert ended == {3, 4, 5}
    assert [p.batch for p in whole.evaluations] == sorted({p.batch for p in whole.evaluations})
    assert whole.checkpoints >= before.checkpoints - 3


def test_what_was_done_again_is_read_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m") as metrics:
        for batch in range(5):
            metrics.command(float(batch), consumed(batch, reward=0.0))
        metrics.command(5.0, c.Evaluated(0, "eval_start", 0, 4, 0, 0.1))
        metrics.command(5.0, c.Evaluated(0, "eval", 2, 4, 0, 0.2, batch=2))
        metrics.command(5.0, c.Evaluated(0, "eval", 4, 4, 0, 0.3, batch=4))
        metrics.resume(2.5, 3, 3, "incarnation")
        for batch in range(3, 6):
            metrics.command(float(batch), consumed(batch, reward=1.0))
    rows = read_metrics(tmp_path / "m")
    assert [(r["batch"], r["reward"]) for r in rows if r["kind"] == "batch"] == [
        (0, 0.0), (1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0), (5, 1.0),
    ]  # fmt: skip
    assert [r["reward"] for r in rows if r["kind"] == "eval"] == [0.1, 0.2]
    assert sum(r["kind"] == "resume" for r in rows) == 1


def consumed(batch: int, reward: float) -> c.BatchConsumed:
    return c.BatchConsumed(0, batch, batch + 1, True, reward, 1, 1, 4, 9, 0, 0.0, 0.0, 1.0)
