"""`one-step-off` where engines finish a batch before the trainer has published the one before."""

from simulated_parts import CONFIGS

from libra.config import load
from libra.sim.shell import simulate


def test_one_step_off_goes_on_when_rollouts_are_faster_than_the_trainer() -> None:
    """The next batch is admitted at the step's end, before its weights are held: engines must still fetch them for it."""
    overrides = [
        "--run.mode=one-step-off",
        "--run.steps=3",
        "--rollout.groups_per_batch=8",
        "--env.kind=search",
        "--scheduler.policy=causal",
    ]
    report = simulate(load(CONFIGS / "sim-drift.toml", overrides))
    assert report.ok
    assert report.steps == 3
    assert report.lag_max == 1
