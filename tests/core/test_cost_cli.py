"""`libra cost`: every question answers in JSON with finite figures; a wrong one is a message and exit code 2."""

import json
from math import isfinite

import pytest

from libra.cli.cost import main

PARTS = ["--hardware", "a800-sxm4-80gb", "--model", "qwen3-14b"]


@pytest.mark.parametrize("question", ["decode", "prefill", "train", "move", "memory"])
def test_every_question_answers_in_json(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([question, *PARTS, "--tp", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["model"] == "qwen3-14b"
    figures = [v for v in answer.values() if isinstance(v, float)]
    assert figures
    assert all(isfinite(v) and v >= 0 for v in figures)


def test_a_table_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", *PARTS, "--tp", "4"]) == 0
    assert "capacity_tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["decode", *PARTS, "--tp", "3"], "inside a node"),
        (["decode", *PARTS, "--kv-tokens", "1000000"], "room of 42114"),
        (["decode", "--hardware", "a80", "--model", "qwen3-14b"], "a800-sxm4-80gb"),
        (["train", *PARTS, "--devices", "6", "--tp", "4"], "expected a divisor of devices = 6"),
        (["prefill", *PARTS, "--new", "0"], "new >= 1"),
    ],
)
def test_a_wrong_question_is_told_what_would_fit(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err
