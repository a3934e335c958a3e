"""The look-up's words and their ids: one token for each name of the corpus, one for each relation, and the frame.

| ids | words |
|---|---|
| 0 | `<pad>` |
| 1-8 | `<question> <solve> <find> <run> <result> <error> <answer> <end>`: the frame of a trajectory |
| 9-12 | `malformed syntax nothing failed`: what an error says |
| 13 | `<cut>`: the tool said more than was kept |
| then | relations, then names, each in the order in which the corpus first has them |

`<run>` and `<end>` stop a turn. A name of several words is one token, its words joined by `_`.
"""

from libra.env.lookup.corpus import facts, word
from libra.env.protocol import Vocabulary
from libra.env.words import WordTable

_FRAME = ("<pad>", "<question>", "<solve>", "<find>", "<run>", "<result>", "<error>", "<answer>", "<end>")
ERRORS = ("malformed", "syntax", "nothing", "failed")
RELATIONS = tuple(dict.fromkeys(f.relation for f in facts()))
NAMES = tuple(dict.fromkeys(word(name) for f in facts() for name in (f.subject, f.object)))
WORDS = (*_FRAME, *ERRORS, "<cut>", *RELATIONS, *NAMES)
TABLE = WordTable(WORDS, (*_FRAME, "<cut>"), pad="<pad>", end="<end>", owner="the look-up")

PAD, QUESTION, SOLVE, FIND, RUN, RESULT, ERROR, ANSWER, END = range(len(_FRAME))
CUT = TABLE.ids["<cut>"]
VOCABULARY = Vocabulary(size=len(WORDS), pad_id=PAD, stop_ids=(RUN, END))
encode = TABLE.encode
decode = TABLE.decode
save_tokenizer = TABLE.save_tokenizer
