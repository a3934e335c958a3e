"""The calculator spoken in a chat template: calls, answers, errors and their forms, on ids from end to end."""

from functools import partial

import anyio
import pytest
from small_chat import END, WITH_TOOLS, chat_model

from libra.config.schema import ModelConfig
from libra.config.worlds import CalculatorConfig, ToolLimits
from libra.env.calculator.tool import run
from libra.env.chat.calls import ToolCall, find_calls
from libra.env.chat.session import ChatSession, Limits
from libra.env.protocol import Ended, Observation
from libra.env.registry import environment
from libra.env.tools.pool import ToolReply
from libra.errors import ConfigError

CONFIG = CalculatorConfig(max_operations=1, turn_tokens=200, trajectory_tokens=2000, max_calls=2, max_errors=1)


def call(expression: str, name: str = "calculator") -> str:
    return f'<tool_call>[{{"name": "{name}", "arguments": {{"expression": "{expression}"}}}}]</tool_call>'


async def reply(number: int, tool: str, argument: str) -> ToolReply:
    ok, said = run(argument)
    return ToolReply("ok" if ok else "error", said.encode(), False, 0.0)


class Table:
    """One episode with the tool in this process."""

    def __init__(self, model: ModelConfig, config: CalculatorConfig = CONFIG) -> None:
        self.env = environment(config, model)
        session = self.env.open("train", 3, 0, (0, 0, 0))
        assert isinstance(session, ChatSession)
        session._call_tool = reply
        self.session = session
        self.tokens = anyio.run(session.prompt)
        question = self.env.decode(self.tokens).rpartition("What is ")[2].partition("?")[0]
        self.question = question
        self.answer = int(run(question)[1])

    def say(self, text: str, end: bool = True) -> Observation | Ended:
        sampled = self.env.encode(text) + [END] * end
        self.tokens += sampled
        seen = anyio.run(partial(self.session.act, sampled))
        if isinstance(seen, Observation):
            self.tokens += seen.tokens
        return seen


@pytest.fixture
def table(tmp_path):
    return Table(chat_model(tmp_path))


def test_a_call_and_the_right_answer_earn_the_reward(table):
    seen = table.say(call(table.question))
    assert isinstance(seen, Observation)
    assert (seen.status, seen.tool, seen.formed) == ("ok", "calculator", True)
    assert table.env.decode(seen.tokens) == f"\n<|im_start|>tool\n{table.answer}<|im_end|>\n<|im_start|>assistant\n"
    assert table.say(f"The answer is {table.answer}.") == Ended(1.0, "right")


@pytest.mark.parametrize(
    ("text", "why", "formed"),
    [
        ("The answer is 12345.", "not an answer", False),
        ("I like numbers.", "not an answer", False),
        ("The answer is -1", "wrong", True),
    ],
)
def test_other_answers_earn_nothing_and_have_their_form(table, text, why, formed):
    assert table.say(text) == Ended(0.0, why, formed)


def test_guessing_right_without_a_call_earns_nothing(table):
    assert table.say(f"The answer is {table.answer}") == Ended(0.0, "right, but without a successful call")


def test_a_turn_that_runs_into_its_budget_is_an_error_and_is_closed_for_the_model(table):
    seen = table.say(call("1 + 1"), end=False)
    assert isinstance(seen, Observation)
    assert (seen.status, seen.formed, seen.tokens[0]) == ("error", False, END)


@pytest.mark.parametrize(
    "text",
    [
        call("1 + 1", name="browser"),
        call("1 + 1") + call("2 + 2"),
        "<tool_call>[{]</tool_call>",
        "<tool_call>1 + 1",
        '<tool_call>[{"name": "calculator", "arguments": {"expression": 7}}]</tool_call>',
    ],
)
def test_a_malformed_call_is_told_so_and_a_second_one_ends_the_episode(table, text):
    seen = table.say(text)
    assert isinstance(seen, Observation)
    assert (seen.status, seen.tool, seen.formed) == ("error", "none", False)
    assert table.say(text) == Ended(0.0, "more than 1 errors", False)


def test_what_the_tool_refuses_is_of_legal_form(table):
    seen = table.say(call("1 ? 1"))
    assert isinstance(seen, Observation)
    assert (seen.status, seen.tool, seen.formed) == ("error", "calculator", True)
    assert "error: malformed" in table.env.decode(seen.tokens)


def test_calls_are_counted(table):
    for _ in range(2):
        assert isinstance(table.say(call("1 + 1")), Observation)
    assert table.say(call("1 + 1")) == Ended(0.0, "more than 2 calls")


def test_an_episode_ends_where_no_turn_fits_any_more(tmp_path):
    model = chat_model(tmp_path)
    table = Table(model, CalculatorConfig(max_operations=1, turn_tokens=200, trajectory_tokens=2000))
    table.session._limits = Limits(60, len(table.tokens) + 60, 12, 3)
    ended = table.say(call("1 + 1"))
    assert isinstance(ended, Ended)
    assert ended.why.startswith("out of the")
    assert anyio.run(partial(table.session.act, [])) == Ended(0.0, "no room for another turn", None)


def test_a_template_that_takes_tools_describes_them_itself(tmp_path):
    table = Table(chat_model(tmp_path, WITH_TOOLS))
    text = table.env.decode(table.tokens)
    assert text.startswith('<|im_start|>system\n{"type": "function"')
    assert "<tools>" not in text


def test_limits_that_leave_no_room_are_refused_with_the_prompts_length(tmp_path):
    with pytest.raises(ConfigError, match=r"env.trajectory_tokens = 110: the prompt takes \d+ tokens of this model"):
        environment(CalculatorConfig(), chat_model(tmp_path))


def test_the_exported_tokenizer_is_the_models_own(tmp_path):
    env = environment(CONFIG, chat_model(tmp_path / "m"))
    env.save_tokenizer(tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


@pytest.mark.process
def test_the_tool_is_the_same_process_as_the_small_models(tmp_path):
    config = CalculatorConfig(max_operations=1, turn_tokens=200, trajectory_tokens=2000, tool=ToolLimits(workers=1))
    env = environment(config, chat_model(tmp_path))

    async def episode() -> Observation | Ended:
        async with env.running():
            session = env.open("train", 0, 0, (0, 0, 0))
            await session.prompt()
            return await session.act([*env.encode(call("43 - 12")), END])

    seen = anyio.run(episode)
    assert isinstance(seen, Observation)
    assert "tool\n31<|im_end|>" in env.decode(seen.tokens)


def test_both_forms_of_calls_are_read():
    one = ToolCall("calculator", {"expression": "1 + 1"})
    assert find_calls(call("1 + 1")) == [one]
    assert find_calls(
        'so:\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'
    ) == [one]
    assert find_calls("The answer is 2.") == []
    assert find_calls("<tool_call>[]</tool_call>") is None
