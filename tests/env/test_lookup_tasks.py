"""Questions of several hops: reproducible, answerable, and not to be answered a hop short."""

from collections import Counter

import pytest

from libra.config.worlds import LookupConfig, ToolLimits
from libra.env.drawing import is_heldout
from libra.env.lookup.corpus import known
from libra.env.lookup.tasks import draw_task, longest
from libra.env.registry import environment, vocabulary
from libra.errors import ConfigError

CONFIG = LookupConfig()


def test_the_answer_follows_from_the_corpus_hop_by_hop():
    for i in range(300):
        task = draw_task(CONFIG, 0, "train", i)
        at = task.names[0]
        for relation in task.relations:
            at = known()[at][relation]
        assert at == task.names[-1]
        assert len(set(task.names)) == len(task.names)
        assert len(set(task.relations)) == len(task.relations)


def test_a_task_depends_on_seed_split_and_ordinal_alone():
    questions = [draw_task(CONFIG, 5, "train", i).question for i in range(50)]
    assert questions == [draw_task(CONFIG, 5, "train", i).question for i in range(50)]
    assert questions != [draw_task(CONFIG, 6, "train", i).question for i in range(50)]


def test_no_question_is_in_both_splits():
    drawn = {split: {draw_task(CONFIG, 0, split, i).question for i in range(400)} for split in ("train", "heldout")}
    assert drawn["train"].isdisjoint(drawn["heldout"])
    assert all(map(is_heldout, drawn["heldout"]))
    assert len(drawn["train"]) > 200


def test_questions_have_one_to_six_hops_and_many_have_several():
    hops = Counter(len(draw_task(CONFIG, 0, "train", i).relations) for i in range(600))
    assert sorted(hops) == [1, 2, 3, 4, 5, 6]
    assert sum(n for length, n in hops.items() if length >= 3) > 200


def test_the_vocabulary_is_known_without_an_environment_and_has_every_word():
    env = environment(CONFIG)
    assert vocabulary(CONFIG) == env.vocabulary
    assert env.vocabulary.size < 500
    text = "<question> radium discoverer birthplace capital <solve> english_channel"
    assert env.decode(env.encode(text)) == text
    with pytest.raises(ValueError, match="atlantis"):
        env.encode("<find> atlantis <run>")


def test_the_tokenizer_that_is_saved_is_the_same(tmp_path):
    from tokenizers import Tokenizer

    env = environment(CONFIG)
    env.save_tokenizer(tmp_path)
    text = "<find> english_channel ocean <run>"
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids == env.encode(text)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LookupConfig(trajectory_tokens=40), "trajectory_tokens = 40"),
        (LookupConfig(max_calls=3), "max_calls = 3"),
        (LookupConfig(turn_tokens=3), "turn_tokens = 3"),
        (LookupConfig(tool=ToolLimits(output_bytes=20)), "output_bytes = 20"),
    ],
)
def test_limits_that_no_question_fits_are_refused(config, said):
    with pytest.raises(ConfigError, match=said):
        environment(config)


def test_the_longest_question_is_as_long_as_the_configuration_may_ask_for():
    assert longest() == 7
