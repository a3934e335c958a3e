"""The calculator's words and their ids: 116 tokens, one word each, separated by single spaces.

| ids | words |
|---|---|
| 0 | `<pad>` |
| 1-8 | `<question> <solve> <call> <run> <result> <error> <answer> <end>`: the frame of a trajectory |
| 9-11 | `+ - *` |
| 12-14 | `malformed range failed`: what an error says |
| 15 | `<cut>`: the tool said more than was kept |
| 16-115 | the values `0` to `99` |

`<run>` and `<end>` stop a turn.
"""

from libra.env.calculator.tool import HIGHEST
from libra.env.protocol import Vocabulary
from libra.env.words import WordTable

_FRAME = ("<pad>", "<question>", "<solve>", "<call>", "<run>", "<result>", "<error>", "<answer>", "<end>")
OPERATORS = ("+", "-", "*")
ERRORS = ("malformed", "range", "failed")
WORDS = (*_FRAME, *OPERATORS, *ERRORS, "<cut>", *map(str, range(HIGHEST + 1)))
TABLE = WordTable(WORDS, (*_FRAME, "<cut>"), pad="<pad>", end="<end>", owner="the calculator")
_IDS = TABLE.ids

PAD, QUESTION, SOLVE, CALL, RUN, RESULT, ERROR, ANSWER, END = range(len(_FRAME))
CUT = _IDS["<cut>"]
VOCABULARY = Vocabulary(size=len(WORDS), pad_id=PAD, stop_ids=(RUN, END))
encode = TABLE.encode
decode = TABLE.decode
tokenizer = TABLE.tokenizer
save_tokenizer = TABLE.save_tokenizer


def value_id(value: int) -> int:
    """The token of a value from 0 to HIGHEST."""
    return _IDS["0"] + value


def id_value(token: int) -> int | None:
    """The value that a token stands for, None if it is no value."""
    value = token - _IDS["0"]
    return value if value >= 0 else None
