"""The calculator's words and their ids: 116 tokens, one word each, separated by single spaces.

| ids | words |
|---|---|
| 0 | `<pad>` |
| 1-8 | `<question> <solve> <call> <run> <result> <error> <answer> <end>`: the frame of a trajectory |
| 9-11 | `+ - *` |
| 12-14 | `malformed range failed`: what an error says |
| 15 | `<cut>`: the tool said more than was kept |
| 16-115 | the values `0` to `99` |

`<run>` and `<end>` stop a turn. The table is the truth; `save_tokenizer` writes the same as a real tokenizer for others.
The library `tokenizers` is imported there alone: sessions only look up.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from libra.env.calculator.tool import HIGHEST
from libra.env.protocol import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FRAME = ("<pad>", "<question>", "<solve>", "<call>", "<run>", "<result>", "<error>", "<answer>", "<end>")
OPERATORS = ("+", "-", "*")
ERRORS = ("malformed", "range", "failed")
WORDS = (*_FRAME, *OPERATORS, *ERRORS, "<cut>", *map(str, range(HIGHEST + 1)))
_IDS = {word: i for i, word in enumerate(WORDS)}

PAD, QUESTION, SOLVE, CALL, RUN, RESULT, ERROR, ANSWER, END = range(len(_FRAME))
CUT = _IDS["<cut>"]
VOCABULARY = Vocabulary(size=len(WORDS), pad_id=PAD, stop_ids=(RUN, END))


def encode(text: str) -> list[int]:
    """Ids of words separated by spaces; ValueError names a word that is none of ours."""
    try:
        return [_IDS[word] for word in text.split()]
    except KeyError as error:
        raise ValueError(f"{error} is no word of the calculator; see libra/env/calculator/tokens.py") from None


def decode(tokens: Iterable[int]) -> str:
    """The words of these ids, separated by spaces."""
    return " ".join([WORDS[token] for token in tokens])


def value_id(value: int) -> int:
    """The token of a value from 0 to HIGHEST."""
    return _IDS["0"] + value


def id_value(token: int) -> int | None:
    """The value that a token stands for, None if it is no value."""
    value = token - _IDS["0"]
    return value if value >= 0 else None


def tokenizer() -> "Tokenizer":
    """The table as a `tokenizers.Tokenizer`: same ids, same texts. An unknown word is an error, never a silent `<unk>`."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made = Tokenizer(WordLevel(dict(_IDS)))  # type: ignore[call-arg]
    made.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in (*_FRAME, "<cut>")])
    return made


def save_tokenizer(directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into a model's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(directory / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": WORDS[PAD],
        "eos_token": WORDS[END],
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
