"""How much memory a run's processes take, by formula, before anything is loaded. Called by the preflight.

P parameters, n core ranks (or members of a replica), L layers, h hidden, f ffn, k = kv heads x head size, V rows of the
embedding, T tokens of a micro-batch, C bytes of the computed type; stored parameters, gradients and moments have 4 (float32):

| a core rank | bytes |
|---|---|
| parameters, gradients, two moments, two published versions | 4 P/n x (1 + 1 + 2 + 2) |
| with checkpoints: parameters and moments, copied for the writer | 4 P/n x 3 |
| gathered for computing: the root group and two groups of layers | C x (embedding + 2 groups) |
| what else the passes held at their peak, as measured (fitted, not derived) | 4 P/n |
| one group's gradient, whole, before it is cut | 4 x the larger of both |
| activations of T tokens in every layer | C x T x L x (14 h + 4 k + 4 f) |
| ... with recompute: inputs of all layers, the rest of one | C x T x (L h + 14 h + 4 k + 4 f) |
| logits, their softmax and its gradient, of T tokens, or of one chunk with recompute | 4 x 3 x T x V |

| an engine | bytes |
|---|---|
| weights, and two sets of pulled ones | 4 P x (1 + 2) |
| keys and values | 4 x 2 L k x kv_tokens x 3 |

A process that has done its imports holds `BASE_BYTES` before all that. `just bench memory` holds it against what is measured
for the tiny model and for SmolLM2-135M; not counted: the controller, tools, page cache.
"""

from collections.abc import Iterator
from pathlib import Path

from libra.config.schema import BucketConfig, Config, ModelConfig

BASE_BYTES = 350_000_000
"""Resident in a role process after its imports (torch, transformers), before it holds a model."""
GROUP_BYTES = 4 << 20
"""As `libra.train.sharded.FSDP_GROUP_BYTES`: layers are gathered in groups of at least so much."""
LOGIT_CHUNK_TOKENS = 256
"""As `libra.train.model.LOGIT_CHUNK_TOKENS`."""
KV_ROOM = 3
"""Rows of unlike length waste room, up to the bound of 2; and while the cache grows the old one lies beside the new."""
MEMORY_SHARE = 0.95
"""Of what the machine has free, for a run."""


def parameters(model: ModelConfig, words: int) -> int:
    """Parameters of the model, tied ones once."""
    width, kv = model.hidden, model.kv_heads * (model.hidden // model.heads)
    attention = 2 * width * width + 2 * width * kv + (width + 2 * kv if model.architecture == "qwen2" else 0)
    layer = attention + 3 * width * model.ffn + 2 * width
    embedding = (model.vocabulary or words) * width
    return model.layers * layer + width + embedding * (1 if model.tied_embeddings else 2)


def trainer_bytes(config: Config, words: int = 128) -> int:
    """A core rank, at its fullest. `words`: token ids, where `[model]` does not say."""
    model, trainer, ranks = config.model, config.trainer, config.allocation.trainer
    total, rows = parameters(model, words), model.vocabulary or words
    computed = 2 if trainer.compute == "bfloat16" else 4
    embedding = rows * model.hidden * (1 if model.tied_embeddings else 2)
    layer = (total - embedding) // model.layers
    group = min(total, max(layer, GROUP_BYTES // 4))
    state = 4 * total * (7 + 3 * (config.checkpoint.every > 0)) // ranks
    gathered = computed * (embedding + 2 * group) + 4 * max(embedding, group)
    tokens = max(trainer.micro_batch_tokens, 1)
    kv = model.kv_heads * (model.hidden // model.heads)
    inside = 14 * model.hidden + 4 * kv + 4 * model.ffn
    kept = model.layers * model.hidden + inside if trainer.recompute else model.layers * inside
    chunk = min(tokens, LOGIT_CHUNK_TOKENS) if trainer.recompute else tokens
    return BASE_BYTES + state + gathered + computed * tokens * kept + 12 * chunk * rows


def engine_bytes(config: Config, bucket: BucketConfig, words: int = 128) -> int:
    """An engine of this shape with its KV room full."""
    model = config.model
    kv = 8 * model.layers * model.kv_heads * (model.hidden // model.heads)
    return BASE_BYTES + 12 * parameters(model, words) + int(kv * bucket.kv_tokens * KV_ROOM)


def problems(config: Config, available_bytes: int | None) -> Iterator[str]:
    """One line where the roles of one machine do not fit into what it has free; None: not known."""
    if available_bytes is None:
        return
    ranks = config.allocation.trainer + config.allocation.gradient
    trainers = trainer_bytes(config) * ranks
    engines = sum(engine_bytes(config, bucket) * bucket.engines for bucket in config.bucket)
    if trainers + engines > MEMORY_SHARE * available_bytes:
        yield (
            f"memory: {ranks} training ranks take about {trainers >> 20} MiB and the engines {engines >> 20} MiB, together "
            f"more than {MEMORY_SHARE:.0%} of the {available_bytes >> 20} MiB that are free; "
            "expected less: set trainer.recompute = true, lower trainer.micro_batch_tokens or bucket.kv_tokens, or start "
            "fewer ranks"
        )


def available_bytes(file: Path = Path("/proc/meminfo")) -> int | None:
    """What the kernel could give to new processes without swapping; None where it does not say."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
