"""The calculator with its real workers, under every fault."""

import anyio
import pytest

from libra.config.worlds import CalculatorConfig, ToolFault, ToolLimits
from libra.env.calculator.tasks import draw_task
from libra.env.faults import draw_fault
from libra.env.protocol import Ended
from libra.env.registry import environment, vocabulary
from libra.errors import EnvError

pytestmark = pytest.mark.process


async def solve(env, config, ordinal, attempt=0):
    """Plays the right calls of a held-out task; (the last answer, all observations)."""
    task = draw_task(config, 0, "heldout", ordinal)
    session = env.open("heldout", 0, ordinal, (ordinal, 0, attempt))
    await session.prompt()
    seen = []
    for value, operator, operand in zip(task.reached, task.operators, task.values[1:], strict=False):
        answer = await session.act(env.encode(f"<call> {value} {operator} {operand} <run>"))
        if isinstance(answer, Ended):
            return answer, seen
        seen.append(answer)
    return await session.act(env.encode(f"<answer> {task.answer} <end>")), seen


@pytest.fixture
def play():
    """Solves `n` tasks side by side in a running environment: a list of (end | EnvError, observations)."""

    def run(n, kind="none", rate=1.0, attempt=0, **limits):
        config = CalculatorConfig(fault=ToolFault(kind=kind, rate=rate), tool=ToolLimits(**limits))
        env = environment(config)
        played: list = [None] * n

        async def one(i):
            try:
                played[i] = await solve(env, config, i, attempt)
            except EnvError as error:
                played[i] = (error, [])

        async def main():
            with anyio.fail_after(60):
                async with env.running(), anyio.create_task_group() as tasks:
                    for i in range(n):
                        tasks.start_soon(one, i)

        anyio.run(main)
        return played

    return run


def test_right_play_is_rewarded(play):
    played = play(40)
    assert all(end == Ended(1.0, "right") for end, _ in played)
    assert all(o.status == "ok" and o.seconds > 0 for _, seen in played for o in seen)


def test_hanging_tools_fail_trajectories_and_others_go_on(play):
    played = play(8, "hang", rate=0.3, deadline_s=1.0)
    failed = [end for end, _ in played if isinstance(end, EnvError)]
    assert 0 < len(failed) < 8
    assert all(end.reward == 1.0 for end, _ in played if isinstance(end, Ended))


def test_crashing_tools_fail_trajectories_and_others_go_on(play):
    played = play(12, "crash", rate=0.3)
    assert 0 < sum(isinstance(end, EnvError) for end, _ in played) < 12
    assert all(end.reward == 1.0 for end, _ in played if isinstance(end, Ended))


def test_a_flood_is_survived_with_a_right_result(play):
    played = play(2, "flood", output_bytes=100, deadline_s=30.0)
    assert all(end.reward == 1.0 for end, _ in played)
    assert all(o.truncated and o.status == "ok" for _, seen in played for o in seen)


def test_a_tool_that_always_fails_gives_no_reward_and_no_failure(play):
    played = play(12, "fail", rate=0.0)
    assert all(isinstance(end, Ended) and end.reward == 0.0 for end, _ in played)
    assert all(o.status == "error" for _, seen in played for o in seen)


def test_acting_without_running_tools_says_how_to():
    env = environment(CalculatorConfig())
    session = env.open("train", 0, 0, (0, 0, 0))
    with pytest.raises(RuntimeError, match="running"):
        anyio.run(session.act, env.encode("<call> 1 + 1 <run>"))


def test_faults_depend_on_the_attempt_and_the_call_alone():
    fault = ToolFault(kind="crash", rate=0.25)
    drawn = [draw_fault(fault, 0, (prompt, 0, 0), call) for prompt in range(400) for call in range(5)]
    assert drawn == [draw_fault(fault, 0, (prompt, 0, 0), call) for prompt in range(400) for call in range(5)]
    assert drawn != [draw_fault(fault, 0, (prompt, 0, 1), call) for prompt in range(400) for call in range(5)]
    assert 0.21 < drawn.count("crash") / 2000 < 0.29


def test_the_registry_gives_the_vocabulary_without_an_environment():
    assert vocabulary(CalculatorConfig()) == environment(CalculatorConfig()).vocabulary
