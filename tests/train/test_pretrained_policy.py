"""A pretrained model in the trainer and in the engine, from one description: the same numbers as transformers has by itself."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_chat import chat_model

from libra.engine.engine import Engine
from libra.errors import WeightsError
from libra.train.model import Policy, build
from libra.train.packing import pack
from libra.wire.messages import Turn

EPS, THETA = 3e-3, 500.0
"""Far from the defaults, so that one who took a default would be far off."""


def reference_logprobs(directory: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([tokens])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]


@pytest.mark.parametrize("tied", [True, False])
def test_trainer_and_engine_agree_with_transformers_about_a_pretrained_model(tmp_path, tied):
    model = chat_model(tmp_path, weights=True, rms_norm_eps=EPS, rope_theta=THETA, tied_embeddings=tied)
    network = build(model, model.vocabulary, seed=0)
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    engine = Engine(model, model.vocabulary, frozenset(), 4, 256, 1.0, max_context_tokens=64)
    engine.install(0, weights)
    engine.submit(Turn(1, 1, [5, 9, 30, 7], 24, (0, 0, 0, 0)))
    done = []
    while engine.busy:
        done += engine.step()
    tokens = [5, 9, 30, 7, *done[0].tokens]
    expected = reference_logprobs(tmp_path, tokens)
    assert (torch.tensor(done[0].logprobs) - expected[3:]).abs().max() < 1e-5
    policy = Policy(network, 1.0)
    n = len(tokens) - 1
    got = policy(torch.tensor(tokens), pack([len(tokens)]), torch.arange(n), torch.tensor(tokens[1:]))
    assert (got.detach() - expected).abs().max() < 1e-5


def test_weights_that_are_not_all_there_are_refused(tmp_path):
    model = chat_model(tmp_path, weights=True)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"does not hold the model of its config.json: .*up_proj"):
        build(model, model.vocabulary, seed=0)


def test_weights_of_another_shape_are_refused(tmp_path):
    model = chat_model(tmp_path, weights=True)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    state["model.norm.weight"] = torch.ones(7)
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=str(tmp_path)):
        build(model, model.vocabulary, seed=0)


def test_what_trainers_build_is_what_config_json_says(tmp_path):
    from transformers import AutoConfig

    from libra.train.model import transformers_config

    model = chat_model(tmp_path, rms_norm_eps=EPS, rope_theta=THETA)
    ours, theirs = transformers_config(model, model.vocabulary), AutoConfig.from_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    for key in stated.keys() - {"bos_token_id", "eos_token_id", "pad_token_id", "dtype"}:
        assert getattr(ours, key) == getattr(theirs, key), key
