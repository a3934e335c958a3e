"""A vocabulary of whole words: one token a word, separated by single spaces. For environments made for tiny models.

The table is the truth; `save_tokenizer` writes the same as a real tokenizer for others. The library `tokenizers` is
imported there alone: sessions only look up.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class WordTable:
    def __init__(self, words: Sequence[str], special: Sequence[str], pad: str, end: str, owner: str) -> None:
        """Ids are places in `words`; `special` ones are never part of a text; `owner` says in errors whose words these are."""
        self.words = tuple(words)
        self.ids = {word: i for i, word in enumerate(self.words)}
        self._special = tuple(special)
        self._pad = pad
        self._end = end
        self._owner = owner

    def encode(self, text: str) -> list[int]:
        """Ids of words separated by spaces; ValueError names a word that is none of ours."""
        try:
            return [self.ids[word] for word in text.split()]
        except KeyError as error:
            raise ValueError(f"{error} is no word of {self._owner}; see its tokens.py") from None

    def decode(self, tokens: Iterable[int]) -> str:
        """The words of these ids, separated by spaces."""
        return " ".join([self.words[token] for token in tokens])

    def tokenizer(self) -> "Tokenizer":
        """The table as a `tokenizers.Tokenizer`: same ids, same texts. An unknown word is an error, never a silent `<unk>`."""
        from tokenizers import AddedToken, Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit

        made = Tokenizer(WordLevel(dict(self.ids)))  # type: ignore[call-arg]
        made.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
        made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in self._special])
        return made

    def save_tokenizer(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json into a model's directory."""
        directory.mkdir(parents=True, exist_ok=True)
        self.tokenizer().save(str(directory / "tokenizer.json"))
        described = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": self._pad,
            "eos_token": self._end,
            "clean_up_tokenization_spaces": False,
        }
        text = json.dumps(described, indent=2) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
