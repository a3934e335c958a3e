import anyio
import pytest

from libra.config.worlds import CalculatorConfig
from libra.env.calculator.session import CalculatorSession
from libra.env.calculator.tokens import decode, encode
from libra.env.protocol import Ended, Observation
from libra.env.tools.pool import ToolReply
from libra.errors import EnvError

QUESTION = "43 - 12 + 7"


@pytest.fixture
def play(task_of, tool_here):
    """Plays turns (texts) against a session and gives what each was answered."""

    def run(*turns, question=QUESTION, config=None, tool=tool_here):
        async def episode():
            session = CalculatorSession(task_of(question), config or CalculatorConfig(), tool)
            context = await session.prompt()
            answers = []
            for turn in turns:
                budget = session.turn_budget(len(context))
                sampled = encode(turn)[:budget]
                answers.append(await session.act(sampled))
                context += sampled
                if isinstance(answers[-1], Ended):
                    break
                context += answers[-1].tokens
                assert len(context) <= (config or CalculatorConfig()).trajectory_tokens
            await session.aclose()
            return answers

        return anyio.run(episode)

    return run


def test_the_prompt_is_the_question_and_no_more(task_of, tool_here):
    session = CalculatorSession(task_of(QUESTION), CalculatorConfig(), tool_here)
    assert decode(anyio.run(session.prompt)) == "<question> 43 - 12 + 7 <solve>"


def test_the_right_answer_after_calls_is_worth_one(play):
    first, second, end = play("<call> 43 - 12 <run>", "<call> 31 + 7 <run>", "<answer> 38 <end>")
    assert (decode(first.tokens), first.tool, first.status, first.truncated) == (
        "<result> 31",
        "calculator",
        "ok",
        False,
    )
    assert decode(second.tokens) == "<result> 38"
    assert end == Ended(1.0, "right")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("<answer> 37 <end>", "wrong"),
        ("<answer> <end>", "not an answer"),
        ("<answer> + <end>", "not an answer"),
        ("38 <end>", "not an answer"),
        ("<answer> 38 38 <end>", "not an answer"),
    ],
)
def test_any_other_end_is_worth_nothing(play, answer, why):
    assert play("<call> 43 - 12 <run>", answer)[-1] == Ended(0.0, why, formed=why != "not an answer")


def test_the_right_answer_without_a_successful_call_is_worth_nothing(play):
    assert play("<answer> 38 <end>")[-1].reward == 0.0
    assert play("<call> 43 <run>", "<answer> 38 <end>")[-1].reward == 0.0


@pytest.mark.parametrize(
    ("turn", "error", "tool"),
    [
        ("<call> 43 - <run>", "malformed", "calculator"),
        ("<call> - 43 12 <run>", "malformed", "calculator"),
        ("<call> <run>", "malformed", "calculator"),
        ("<call> <result> - 12 <run>", "malformed", "calculator"),
        ("<call> 12 - 43 <run>", "range", "calculator"),
        ("<call> 43 * 12 <run>", "range", "calculator"),
        ("43 - 12 <run>", "malformed", "none"),
        ("<call> 43 - 12 43 - 12 43 - 12 43 - 12", "malformed", "none"),
    ],
)
def test_a_wrong_call_is_an_error_that_can_be_recovered_from(play, turn, error, tool):
    seen, *_, end = play(turn, "<call> 43 - 12 <run>", "<call> 31 + 7 <run>", "<answer> 38 <end>")
    assert isinstance(seen, Observation)
    assert (decode(seen.tokens), seen.status, seen.tool) == (f"<error> {error}", "error", tool)
    assert end.reward == 1.0


def test_the_call_after_the_last_allowed_one_ends_the_episode(play):
    config = CalculatorConfig(max_calls=2)
    *_, last = play(*["<call> 1 + 1 <run>"] * 3, config=config)
    assert last == Ended(0.0, "more than 2 calls")
    assert play(*["<call> 1 + 1 <run>"] * 2, "<answer> 38 <end>", config=config)[-1].reward == 1.0


def test_the_error_after_the_last_allowed_one_ends_the_episode(play):
    answers = play(*["<call> 1 <run>"] * 9)
    assert len(answers) == 4
    assert answers[-1] == Ended(0.0, "more than 3 errors", formed=False)


def test_ten_operations_and_two_wrong_calls_fit_exactly(play):
    question = "1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11"
    calls, value = [], 1
    for operand in range(2, 12):
        calls.append(f"<call> {value} + {operand} <run>")
        value += operand
    end = play("<call> 1 <run>", "<call> 1 + <run>", *calls, "<answer> 66 <end>", question=question)[-1]
    assert end.reward == 1.0
    five = ["<call> 1 + 1 + <run>"] * 2  # two tokens more than the shortest wrong calls, still within the limit
    assert play(*five, *calls, "<answer> 66 <end>", question=question)[-1].reward == 0.0


def test_a_trajectory_without_room_ends_instead_of_growing(play):
    answers = play(*["<call> 1 + 1 <run>"] * 9, config=CalculatorConfig(trajectory_tokens=30))
    assert answers[-1] == Ended(0.0, "out of the 30 tokens of a trajectory", formed=False)


def test_the_budget_is_a_turn_or_what_is_left(task_of, tool_here):
    session = CalculatorSession(task_of(QUESTION), CalculatorConfig(), tool_here)
    assert [session.turn_budget(n) for n in (7, 98, 99, 109, 110, 200)] == [12, 12, 11, 1, 0, 0]
    assert anyio.run(session.act, []) == Ended(0.0, "no room for another turn", formed=None)


def test_cut_output_is_said_and_its_first_line_counts(play):
    async def flooding(number, argument):
        return ToolReply("ok", b"31\nxxxx", True, 0.1)

    seen = play("<call> 43 - 12 <run>", tool=flooding)[0]
    assert (decode(seen.tokens), seen.status, seen.truncated) == ("<result> 31 <cut>", "ok", True)


def test_a_result_that_is_no_value_is_a_failure_not_an_answer(play):
    async def broken(number, argument):
        return ToolReply("ok", b"1e9", False, 0.0)

    with pytest.raises(EnvError, match="1e9"):
        play("<call> 43 - 12 <run>", tool=broken)


def test_a_tool_that_always_fails_leaves_no_reward(play):
    async def failing(number, argument):
        return ToolReply("error", b"failed on order", False, 0.0)

    seen, _, end = play("<call> 43 - 12 <run>", "<call> 31 + 7 <run>", "<answer> 38 <end>", tool=failing)
    assert decode(seen.tokens) == "<error> failed"
    assert end.reward == 0.0
