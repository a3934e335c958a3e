"""Emulated jobs under torchrun: real supervisors, roles and sockets; devices that only sleep."""

import signal
from pathlib import Path

import msgspec
import pytest
from launched import REPOSITORY, Launched, kill

from libra.config import load
from libra.config.schema import Config
from libra.core import commands as c
from libra.core import events as e
from libra.core.coordinator import Core
from libra.sim.plan import plan
from libra.sim.shell import Simulation
from libra.telemetry import replay
from libra.telemetry.journal import JournalReader

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
CONFIG = "configs/emulated-8.toml"
SMALL = ["--run.steps=3", "--rollout.groups_per_batch=3", "--rollout.samples_per_group=4", "--emulation.speed=200"]


class Trained(msgspec.Struct):
    """What the journal knows of one trajectory that ended."""

    kind: str
    prompt: int
    sample: int
    sampled: int = 0
    turns: int = 0
    ended: e.EpisodeEnded | None = None


def trajectories(run_dir: Path) -> dict[int, Trained]:
    """From the journal's events and, for who is who, its commands again."""
    reader = JournalReader(run_dir / "journal")
    core = Core(msgspec.json.decode(reader.head.config, type=Config))
    found: dict[int, Trained] = {}
    for event, _ in reader:
        match event:
            case e.TurnGenerated(traj=traj) if traj in found:
                found[traj].sampled += event.tokens
                found[traj].turns += event.finish != "cut"
            case e.EpisodeEnded(traj=traj):
                found[traj].ended = event
            case _:
                pass
        for command in core.handle(event):
            if isinstance(command, c.OpenTrajectory):
                found[command.traj] = Trained(command.kind, command.prompt, command.sample)
    return found


def steps_of(run_dir: Path) -> dict[int, list[float]]:
    """Loss that each core rank reported, by step: 1 where every loss token was summed once."""
    losses: dict[int, list[float]] = {}
    for event, _ in JournalReader(run_dir / "journal"):
        if isinstance(event, e.StepDone):
            losses.setdefault(event.cmd, []).append(event.loss)
    return losses


def assert_conserved(run_dir: Path) -> None:
    """Every trajectory that ended sampled what the workload says, no more and no less, and each step summed it all."""
    prepared = plan(load(run_dir / "config.toml"))
    ended = [t for t in trajectories(run_dir).values() if t.ended is not None]
    assert ended
    for t in ended:
        batch = t.prompt // prepared.config.rollout.groups_per_batch
        truth = prepared.source.trajectory("train", t.prompt, t.sample, batch)
        assert t.ended is not None
        assert t.sampled == t.ended.loss_tokens == truth.sampled_tokens
        assert t.turns == len(truth.turns)
    assert {loss for step in steps_of(run_dir).values() for loss in step} == {1.0}


def test_an_emulated_job_runs_to_its_end_and_is_the_simulated_one(tmp_path: Path) -> None:
    with Launched(tmp_path, None, *SMALL, config=CONFIG) as run:
        assert run.wait() == 0, run.words()
        run.assert_nobody_left()
    summary = run.summary()
    assert summary["ok"]
    assert summary["steps"] == 3
    assert summary["lost"] == summary["failed"] == 0
    assert summary["lag_max"] <= 2
    report = replay.check(run.run_dir)
    assert report.ok, report.problem
    assert_conserved(run.run_dir)
    simulated: dict[int, e.EpisodeEnded] = {}

    def watch(event: e.AnyEvent, commands: object) -> None:
        if isinstance(event, e.EpisodeEnded):
            simulated[event.traj] = event

    Simulation(plan(load(run.run_dir / "config.toml")), watch).run()
    live = {id: t.ended for id, t in trajectories(run.run_dir).items() if t.ended is not None}
    assert live.keys() == simulated.keys()
    for id, event in live.items():
        assert (event.reward, event.loss_tokens) == (simulated[id].reward, simulated[id].loss_tokens)
        assert event.total_tokens == simulated[id].total_tokens


def test_no_emulated_process_imports_torch(tmp_path: Path) -> None:
    with Launched(tmp_path, None, *SMALL, "--run.steps=100000", config=CONFIG) as run:
        run.until_batch(1)
        for pid in [*run.find("libra.launch"), *run.find("libra.rank.role")]:
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), run.role_of(pid)
        kill(run.process.pid, signal.SIGINT)
        assert run.wait() == 130
        run.assert_nobody_left()


@pytest.mark.parametrize(("first", "unit"), [(3, 0), (7, 4)], ids=["tp1", "the leader of tp2"])
def test_an_emulated_engine_killed_in_a_turn_is_replaced_and_nothing_is_lost(
    tmp_path: Path, first: int, unit: int
) -> None:
    options = [*SMALL, "--run.steps=12", "--emulation.speed=60"]
    with Launched(tmp_path, None, *options, config=CONFIG) as run:
        run.until_batch(1)
        victim = run.find("libra.rank.role", f"rank-{first}.rollout")[0]
        kill(victim, signal.SIGKILL)
        run.until(
            "the engine's second start", lambda: run.find("libra.rank.role", f"rank-{first}.rollout-{unit}.1.log")
        )
        assert run.wait() == 0, run.words()
        run.assert_nobody_left()
    assert run.summary()["steps"] == 12
    assert run.summary()["lost"] == 0
    assert "is down: its process was killed by signal 9" in run.reports()
    assert replay.check(run.run_dir).ok
    assert_conserved(run.run_dir)


def test_the_configurations_of_emulated_jobs_can_be_run_and_simulated() -> None:
    for name in ("emulated-8", "emulated-48"):
        config = load(REPOSITORY / f"configs/{name}.toml")
        assert config.emulated
        assert plan(config).config.in_run_seconds == plan(config).config
