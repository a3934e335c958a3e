import subprocess
import sys
from collections import Counter

import pytest

from libra.config.worlds import CalculatorConfig, ToolLimits
from libra.env.calculator.tasks import draw_task
from libra.env.registry import environment
from libra.errors import ConfigError

CONFIG = CalculatorConfig()


def test_questions_are_answerable_step_by_step_and_no_step_is_idle(task_of):
    for i in range(500):
        task = draw_task(CONFIG, 3, "train", i)
        assert task == task_of(task.question)
        assert all(0 <= value <= 99 for value in task.reached)
        assert all(1 <= value <= 49 for value in task.values)
        assert len(set(task.values)) == len(task.values)
        assert all(a != b for a, b in zip(task.reached, task.reached[1:], strict=False))


def test_lengths_follow_the_stop_probability():
    lengths = Counter(len(draw_task(CONFIG, 0, "train", i).operators) for i in range(2000))
    assert set(lengths) == set(range(1, 11))
    assert 0.35 < lengths[1] / 2000 < 0.45
    assert 0.20 < lengths[2] / 2000 < 0.28


def test_the_splits_share_no_question_whatever_the_seeds():
    config = CalculatorConfig(max_operations=1, max_operand=9)  # few questions, so that overlap would show
    train = {draw_task(config, seed, "train", i).question for seed in (0, 1) for i in range(400)}
    heldout = {draw_task(config, seed, "heldout", i).question for seed in (0, 2) for i in range(400)}
    assert len(train) > 50
    assert len(heldout) > 10
    assert not train & heldout


def test_seed_split_and_ordinal_each_matter():
    base = draw_task(CONFIG, 0, "train", 0)
    assert base == draw_task(CONFIG, 0, "train", 0)
    others = {draw_task(CONFIG, 1, "train", 0), draw_task(CONFIG, 0, "heldout", 0), draw_task(CONFIG, 0, "train", 1)}
    assert base not in others


@pytest.mark.process
def test_tasks_are_the_same_in_another_process():
    program = (
        "from libra.config.schema import CalculatorConfig as C\n"
        "from libra.env.calculator.tasks import draw_task\n"
        "print(*(draw_task(C(), 5, 'heldout', i).question for i in range(20)), sep='\\n')"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.splitlines() == [draw_task(CONFIG, 5, "heldout", i).question for i in range(20)]


def test_guessing_at_once_is_right_in_under_one_percent():
    tasks = [draw_task(CONFIG, 9, "train", i) for i in range(2000)]
    assert sum(task.answer == task.values[0] for task in tasks) / 2000 < 0.01


def test_a_contradictory_configuration_is_refused_with_all_its_faults():
    with pytest.raises(ConfigError) as caught:
        environment(
            CalculatorConfig(
                max_operand=5, trajectory_tokens=30, max_calls=4, turn_tokens=3, tool=ToolLimits(output_bytes=2)
            )
        )
    assert len(caught.value.problems) == 5
