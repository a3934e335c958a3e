"""A model's own words: its tokenizer and its chat template, from its directory. Called by chat sessions and by the registry.

A conversation grows at its end only, and only given text is tokenised:

    <|im_start|>system ... <|im_start|>assistant\\n      `opening`: the prompt, up to the first sampled token
    <tool_call>[...]</tool_call><|im_end|>              sampled: these very ids stay in the context
    \\n<|im_start|>tool\\n31<|im_end|>\\n<|im_start|>assistant\\n      `continuation`: what the template puts after a turn

What the template puts after a turn is found by rendering the turn as a mark, and reading on behind the mark.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from tokenizers import Tokenizer

from libra.config.schema import ModelConfig
from libra.env.protocol import Vocabulary
from libra.errors import ConfigError

Message = Mapping[str, str]
"""{"role": ..., "content": ...}."""
Schema = Mapping[str, Any]
"""A tool as JSON schema: {"type": "function", "function": {"name", "description", "parameters"}}."""
_MARK = "\ue000mark\ue000"
"""Private characters, which no template writes by itself."""
_PROBE: Schema = {"type": "function", "function": {"name": _MARK, "description": "", "parameters": {}}}


class Files(Struct, frozen=True):
    """What a model's directory says of its words."""

    tokenizer: Tokenizer
    template: str
    names: dict[str, str]
    """bos_token and the like."""
    stop_ids: tuple[int, ...]
    pad_id: int


class ChatWords:
    """Tokenizer and template of one model. ConfigError where its directory has none that can be used."""

    def __init__(self, model: ModelConfig) -> None:
        self._files = files = read(model.pretrained)
        self._template = _compiled(files.template)
        self.vocabulary = Vocabulary(size=model.vocabulary, pad_id=files.pad_id, stop_ids=files.stop_ids)
        if files.tokenizer.get_vocab_size() > model.vocabulary:
            raise ConfigError(
                model.pretrained,
                [
                    f"tokenizer.json: {files.tokenizer.get_vocab_size()} tokens, but vocab_size = {model.vocabulary} in "
                    "config.json; expected at most as many: save tokenizer and model together"
                ],
            )
        self._specials = sorted(token.content for token in files.tokenizer.get_added_tokens_decoder().values())
        opened = [{"role": "user", "content": "?"}]
        self.takes_tools = _MARK in self._render(opened, (_PROBE,))
        """Whether the template writes the tools' schemas itself; else they belong in the system message."""
        if not (after := self.continuation(opened)) or after[0] not in files.stop_ids:
            raise ConfigError(
                model.pretrained,
                [
                    f"chat template: an assistant's turn is followed by {files.tokenizer.decode(after[:1], False)!r}, expected "
                    f"one of the tokens that end a turn, {list(files.stop_ids)} (eos_token_id)"
                ],
            )

    def opening(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        """All given tokens up to the first sampled one."""
        return self.encode(self._render(messages, tools))

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        """What the template puts between an assistant's turn and the next one where `messages` lie between: from the token that
        ends a turn, that one included, to the head of the next turn."""
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        return self.encode(self._render([*before, *messages], ()).rpartition(_MARK)[2])

    def plain(self, text: str) -> str:
        """`text` as nothing but text: what a tool says cannot end a turn or begin one."""
        for special in self._specials:
            text = text.replace(special, f"{special[:1]} {special[1:]}")
        return text

    def encode(self, text: str) -> list[int]:
        """Ids of a given text; special tokens are read as such."""
        return self._files.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int], specials: bool = True) -> str:
        """For people and tools only."""
        return self._files.tokenizer.decode(list(tokens), skip_special_tokens=not specials)

    def _render(self, messages: Sequence[Message], tools: Sequence[Schema]) -> str:
        offered = {"tools": list(tools)} if tools else {}
        return self._template.render(messages=messages, add_generation_prompt=True, **offered, **self._files.names)


@lru_cache(maxsize=4)
def read(directory: str) -> Files:
    """ConfigError with what is missing or cannot be read."""
    path = Path(directory)
    try:
        stated = _json(path / "tokenizer_config.json")
        generation = _json(path / "generation_config.json") or _json(path / "config.json")
        beside = path / "chat_template.jinja"
        template = beside.read_text(encoding="utf-8") if beside.is_file() else stated.get("chat_template")
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as e:  # tokenizers raises nothing narrower
        raise ConfigError(directory, [f"the tokenizer cannot be read: {type(e).__name__}: {e}"]) from e
    if not isinstance(template, str):
        raise ConfigError(
            directory,
            ["no chat template, neither chat_template.jinja nor in tokenizer_config.json; choose an instruct model"],
        )
    names = {key: _text(value) for key, value in stated.items() if key.endswith("_token") and value}
    ends = generation.get("eos_token_id")
    stop_ids: list[int] = [ends] if isinstance(ends, int) else list(ends or ())
    if (end := tokenizer.token_to_id(names.get("eos_token", ""))) is not None:
        stop_ids.append(end)
    if not stop_ids:
        raise ConfigError(
            directory, ["no eos_token_id in generation_config.json, no eos_token in tokenizer_config.json"]
        )
    pad = tokenizer.token_to_id(names.get("pad_token", ""))
    return Files(tokenizer, template, names, tuple(sorted(set(stop_ids))), stop_ids[0] if pad is None else pad)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _text(token: str | Mapping[str, Any]) -> str:
    """Older files describe a token by a table."""
    return token if isinstance(token, str) else str(token["content"])


def _compiled(template: str) -> Any:
    """As transformers compiles it: templates are code of others, so in a sandbox."""
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def as_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.globals["raise_exception"] = refuse
    sandbox.filters["tojson"] = as_json
    return sandbox.from_string(template)
