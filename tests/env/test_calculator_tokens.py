import pytest

from libra.env.calculator import tokens


def test_every_word_survives_the_round_trip():
    text = " ".join(tokens.WORDS)
    assert tokens.decode(tokens.encode(text)) == text
    assert tokens.encode(text) == list(range(tokens.VOCABULARY.size))


def test_an_unknown_word_is_refused_by_name():
    with pytest.raises(ValueError, match="'100'"):
        tokens.encode("<call> 100 + 1 <run>")


def test_only_values_have_a_value():
    assert tokens.id_value(tokens.value_id(42)) == 42
    assert tokens.id_value(tokens.encode("+")[0]) is None


def test_the_saved_tokenizer_has_the_same_ids_and_texts(tmp_path):
    library = pytest.importorskip("tokenizers")
    tokens.save_tokenizer(tmp_path)
    saved = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "<question> 43 - 12 + 7 * 2 <solve> <call> 43 - 12 <run> <result> 31 <cut> <answer> 31 <end>"
    assert saved.get_vocab_size() == tokens.VOCABULARY.size
    assert saved.encode(text).ids == tokens.encode(text)
    assert saved.decode(tokens.encode(text), skip_special_tokens=False) == text


def test_the_ids_of_the_frame_are_those_of_the_table():
    words = "<pad> <question> <solve> <call> <run> <result> <error> <answer> <end>"
    assert tokens.encode(words) == list(range(9))
    assert tokens.decode(tokens.VOCABULARY.stop_ids) == "<run> <end>"
