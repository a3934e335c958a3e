"""Episodes with the look-up: what is rewarded, what is an error, and what demonstrations show."""

from itertools import groupby

import anyio
import pytest

from libra.config.schema import WarmStartConfig
from libra.config.worlds import LookupConfig
from libra.env.drawing import is_heldout
from libra.env.lookup import tool
from libra.env.lookup.corpus import build, known
from libra.env.lookup.session import LookupSession
from libra.env.lookup.tasks import Task
from libra.env.lookup.tokens import decode, encode
from libra.env.protocol import Ended
from libra.env.registry import environment
from libra.env.tools.pool import ToolReply
from libra.errors import EnvError

CONFIG = LookupConfig()
WARM = WarmStartConfig()
QUESTION = "radium discoverer birthplace capital"
WAY = ("<find> radium discoverer <run>", "<find> curie birthplace <run>", "<find> poland capital <run>")


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    """The search, called in this process."""
    path = tmp_path_factory.mktemp("lookup") / "facts.db"
    build(path)
    database = tool.open_database(path)

    async def call(number, argument):
        ok, output = tool.search(database, argument)
        return ToolReply("ok" if ok else "error", output.encode(), False, 0.0)

    return call


def task_of(question):
    """Follows a question anew."""
    start, *relations = question.split()
    names = [next(name for name in known() if encode(name.lower().replace(" ", "_")) == encode(start))]
    for relation in relations:
        names.append(known()[names[-1]][relation])
    return Task(tuple(names), tuple(relations))


@pytest.fixture
def play(look):
    def run(*turns, question=QUESTION, config=CONFIG, tool=look):
        async def episode():
            session = LookupSession(task_of(question), config, tool)
            answers = [await session.act(encode(turn)) for turn in turns]
            await session.aclose()
            return answers

        return anyio.run(episode)

    return run


def test_the_right_answer_after_looking_is_worth_one(play):
    first, second, third, end = play(*WAY, "<answer> warsaw <end>")
    assert decode(first.tokens) == "<result> radium discoverer curie"
    assert (first.tool, first.status, first.formed) == ("lookup", "ok", True)
    assert decode(second.tokens) == "<result> curie birthplace poland"
    assert decode(third.tokens) == "<result> poland capital warsaw"
    assert end == Ended(1.0, "right")


def test_an_answer_by_heart_is_worth_nothing(play):
    assert play("<answer> warsaw <end>")[-1] == Ended(0.0, "right, but without having looked")
    assert play("<find> <run>", "<answer> warsaw <end>")[-1] == Ended(0.0, "right, but without having looked")


@pytest.mark.parametrize(
    ("answer", "why", "formed"),
    [
        ("<answer> curie <end>", "wrong", True),
        ("<answer> capital <end>", "wrong", True),
        ("<answer> <end>", "not an answer", False),
        ("warsaw <end>", "not an answer", False),
        ("<answer> warsaw warsaw <end>", "not an answer", False),
    ],
)
def test_any_other_end_is_worth_nothing(play, answer, why, formed):
    assert play(WAY[0], answer)[-1] == Ended(0.0, why, formed)


@pytest.mark.parametrize(
    ("turn", "error", "formed"),
    [
        ("<find> <run>", "malformed", False),
        ("<find> <find> radium <run>", "syntax", False),
        ("<find> radium capital <run>", "nothing", True),
        ("radium discoverer <run>", "malformed", False),
        ("<find> radium discoverer", "malformed", False),
    ],
)
def test_an_error_says_why_and_the_policy_may_try_again(play, turn, error, formed):
    seen, again = play(turn, WAY[0])
    assert (decode(seen.tokens), seen.status, seen.formed) == (f"<error> {error}", "error", formed)
    assert again.status == "ok"


def test_episodes_end_at_their_limits(play):
    assert play(*["<find> <run>"] * 9)[-1] == Ended(0.0, "more than 3 errors", False)
    assert play(*[WAY[0]] * 9, config=LookupConfig(max_calls=6))[-1] == Ended(0.0, "more than 6 calls")
    assert play(*[WAY[0]] * 12)[-1].why in ("more than 9 calls", "out of the 90 tokens of a trajectory")


def test_a_record_of_another_corpus_is_a_failure_and_no_answer(play):
    async def other(number, argument):
        return ToolReply("ok", b"Atlantis | capital | Poseidonis", False, 0.0)

    with pytest.raises(EnvError, match="Atlantis"):
        play(WAY[0], tool=other)


# --- demonstrations


@pytest.fixture
def imitate(look):
    """Says demonstrations' turns in sessions, checks what the sessions give back; (reward, errors) of each."""

    async def one(tokens, mask):
        runs = [(said, [t for t, _ in part]) for said, part in groupby(zip(tokens, mask, strict=True), lambda x: x[1])]
        (_, prompt), *rest = runs
        session = LookupSession(task_of(decode(prompt[1:-1])), CONFIG, look)
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
        assert answer.why in ("right", "wrong")
        return answer.reward, errors

    async def all_of(shown):
        return [await one(tokens, mask) for tokens, mask in shown]

    return lambda shown: anyio.run(all_of, shown)


def test_a_perfect_imitation_earns_about_three_tenths(imitate):
    shown = environment(CONFIG).demonstrations(0, 2000, WARM.give_up, WARM.malformed)
    assert 0.27 <= sum(reward for reward, _ in imitate(shown)) / len(shown) <= 0.34


def test_without_giving_up_every_demonstration_is_right_even_with_many_mistakes(imitate):
    shown = environment(CONFIG).demonstrations(1, 400, 0.0, 0.5)
    played = imitate(shown)
    assert all(reward == 1.0 for reward, _ in played)
    assert max(errors for _, errors in played) == CONFIG.max_errors
    assert max(len(tokens) for tokens, _ in shown) <= CONFIG.trajectory_tokens


def test_demonstrations_are_reproducible_and_never_show_a_held_out_question():
    env = environment(CONFIG)
    shown = env.demonstrations(0, 200, 0.7, 0.03)
    assert shown == env.demonstrations(0, 200, 0.7, 0.03)
    assert shown != env.demonstrations(1, 200, 0.7, 0.03)
    questions = [env.decode(tokens).split(" <solve>")[0].removeprefix("<question> ") for tokens, _ in shown]
    assert not any(map(is_heldout, questions))
