from itertools import groupby

import anyio
import pytest

from libra.config.schema import WarmStartConfig
from libra.config.worlds import CalculatorConfig
from libra.env.calculator.session import CalculatorSession
from libra.env.calculator.tokens import decode
from libra.env.drawing import is_heldout
from libra.env.protocol import Ended
from libra.env.registry import environment

CONFIG = CalculatorConfig()
WARM = WarmStartConfig()


@pytest.fixture
def imitate(task_of, tool_here):
    """Says demonstrations' turns in sessions, checks what the sessions give back; (reward, errors) of each."""

    async def one(tokens, mask):
        runs = [(said, [t for t, _ in part]) for said, part in groupby(zip(tokens, mask, strict=True), lambda x: x[1])]
        (_, prompt), *rest = runs
        session = CalculatorSession(task_of(decode(prompt[1:-1])), CONFIG, tool_here)
        context, errors = await session.prompt(), 0
        assert context == prompt
        for said, part in rest:
            if said:
                assert len(part) <= session.turn_budget(len(context))
                answer = await session.act(part)
                errors += not isinstance(answer, Ended) and answer.status == "error"
            else:
                assert answer.tokens == part
            context += part
        assert isinstance(answer, Ended)
        assert answer.why in ("right", "wrong", "right, but without a successful call")
        return answer.reward, errors

    async def all_of(shown):
        return [await one(tokens, mask) for tokens, mask in shown]

    return lambda shown: anyio.run(all_of, shown)


def test_a_perfect_imitation_earns_about_three_tenths(imitate):
    shown = environment(CONFIG).demonstrations(0, 4000, WARM.give_up, WARM.malformed)
    mean = sum(reward for reward, _ in imitate(shown)) / len(shown)
    assert 0.28 <= mean <= 0.33


def test_without_giving_up_every_demonstration_is_right_even_with_many_mistakes(imitate):
    shown = environment(CONFIG).demonstrations(1, 600, 0.0, 0.5)
    played = imitate(shown)
    assert all(reward == 1.0 for reward, _ in played)
    assert max(errors for _, errors in played) == CONFIG.max_errors
    assert max(len(tokens) for tokens, _ in shown) <= CONFIG.trajectory_tokens


def test_the_share_of_malformed_calls_is_what_was_asked_for(imitate):
    shown = environment(CONFIG).demonstrations(2, 2000, 0.0, 0.1)
    errors = sum(errors for _, errors in imitate(shown))
    calls = sum(decode(tokens).split().count("<call>") for tokens, _ in shown)
    assert 0.08 < errors / calls < 0.12


def test_demonstrations_are_reproducible_and_never_show_a_held_out_question():
    env = environment(CONFIG)
    shown = env.demonstrations(0, 300, 0.7, 0.03)
    assert shown == env.demonstrations(0, 300, 0.7, 0.03)
    assert shown != env.demonstrations(1, 300, 0.7, 0.03)
    assert shown[:10] == env.demonstrations(0, 10, 0.7, 0.03)
    questions = [env.decode(tokens).split(" <solve>")[0].removeprefix("<question> ") for tokens, _ in shown]
    assert not any(map(is_heldout, questions))
