"""Tokens a second of the embedded engine beside transformers' plain batched `generate`: same model, lengths and thread.

    python -m tests.bench.engine [--prompt 24] [--new 64] [--repeats 5]

One JSON line a batch size, the two alternating so that both see the same machine; then the engine alone on agentic
traffic (short turns, tool observations, prefixes reused), for which `generate` has no counterpart.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from libra.config.schema import ModelConfig
from libra.engine.engine import Engine
from libra.wire.messages import Turn

MODEL = ModelConfig()
VOCAB = 110


def reference() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=MODEL.hidden,
        num_hidden_layers=MODEL.layers,
        num_attention_heads=MODEL.heads,
        num_key_value_heads=MODEL.kv_heads,
        intermediate_size=MODEL.ffn,
        tie_word_embeddings=True,
        initializer_range=MODEL.initializer_range,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def engine_of(model: PreTrainedModel, batch: int, stop_ids: frozenset[int] = frozenset()) -> Engine:
    engine = Engine(MODEL, VOCAB, stop_ids, batch, 65_536, 1.0, MODEL.max_positions)
    engine.install(0, {name: parameter.detach() for name, parameter in model.named_parameters()})
    return engine


def engine_rate(engine: Engine, prompts: list[list[int]], new: int, ordinal: int) -> float:
    began = time.perf_counter()
    for traj, prompt in enumerate(prompts):
        engine.submit(Turn(0, traj, prompt, new, (ordinal, traj, 0, 0)))
    while engine.busy:
        engine.step()
    rate = len(prompts) * new / (time.perf_counter() - began)
    engine.forget(range(len(prompts)))
    return rate


def generate_rate(model: PreTrainedModel, prompts: list[list[int]], new: int) -> float:
    ids = torch.tensor(prompts)
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=new, min_new_tokens=new
        )
    assert out.shape[1] == len(prompts[0]) + new, "generate stopped early: the rates would not be comparable"
    return ids.shape[0] * new / (time.perf_counter() - began)


def agentic_rate(engine: Engine, trajs: int, turns: int, seconds: float) -> float:
    """Turns of up to 8 tokens with observations of 4, `trajs` at a time, for about `seconds`."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, VOCAB, (trajs, 24), generator=generator).tolist()
    contexts, left, fresh = dict(enumerate(prompts)), dict.fromkeys(range(trajs), turns), trajs
    for traj, context in contexts.items():
        engine.submit(Turn(0, traj, context, 8, (0, traj, 0, 0)))
    sampled, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for done in engine.step():
            traj, sampled = done.traj, sampled + len(done.tokens)
            context = [*contexts.pop(traj), *done.tokens, 2, 3, 4, 5]
            remaining = left.pop(traj) - 1
            if not remaining:
                engine.forget([traj])
                traj, context, remaining = fresh, prompts[fresh % trajs], turns
                fresh += 1
            contexts[traj], left[traj] = context, remaining
            engine.submit(Turn(0, traj, context, 8, (0, traj, 0, 0)))
    return sampled / (time.perf_counter() - began)


def spread(values: list[float]) -> dict[str, float]:
    return {name: round(f(values), 2) for name, f in (("min", min), ("median", statistics.median), ("max", max))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--prompt", type=int, default=24, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens sampled after each prompt")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = reference()
    for batch in args.batches:
        prompts = torch.randint(1, VOCAB, (batch, args.prompt)).tolist()
        engine = engine_of(model, batch)
        engine_rate(engine, prompts, 4, 0)
        generate_rate(model, prompts, 4)
        ours, theirs = [], []
        for i in range(args.repeats):
            ours.append(engine_rate(engine, prompts, args.new, i + 1))
            theirs.append(generate_rate(model, prompts, args.new))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        line = {"batch": batch, "prompt_tokens": args.prompt, "new_tokens": args.new, "repeats": args.repeats}
        line |= {"engine_tokens_per_s": spread(ours), "generate_tokens_per_s": spread(theirs), "ratio": spread(ratios)}
        print(json.dumps(line), flush=True)
    for trajs in args.batches:
        engine = engine_of(model, 128, frozenset({0, 1}))
        rate = agentic_rate(engine, trajs, turns=5, seconds=2.0)
        stats = engine.stats()
        line = {"agentic_trajectories": trajs, "tokens_per_s": round(rate), "steps": stats.decode_steps}
        line |= {"prefilled_tokens": stats.prefilled_tokens, "reused_tokens": stats.reused_tokens}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
