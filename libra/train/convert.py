"""From a GGUF file to a directory that everybody reads: config.json, model.safetensors in float32, tokenizer, chat template.

`python -m libra.train.convert MODEL.gguf DIRECTORY` is started by `libra fetch`, in a process of its own because it imports
torch. It writes into DIRECTORY as it stands; whoever calls it renames. What it wrote is loaded once more and compared, bit for
bit, before it says that all is well. Needs the extra `llm` (gguf, accelerate).
"""

import logging
import sys
from pathlib import Path
from typing import Any

import torch

from libra.errors import LibraError, WeightsError


def convert(gguf: Path, directory: Path) -> int:
    """Writes the directory; returns the number of parameters. WeightsError where what was written is not what was read."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    source: Any = {"gguf_file": gguf.name, "local_files_only": True}
    folder = str(gguf.parent)
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **source)
    config = AutoConfig.from_pretrained(folder, **source)
    # A model that was read as quantised refuses to be saved: its numbers move into a fresh one.
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(read.state_dict())
    fresh.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)  # safetensors writes for its owner only
    AutoTokenizer.from_pretrained(folder, **source).save_pretrained(directory)
    again = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True).state_dict()
    wrong = [name for name, tensor in read.state_dict().items() if not torch.equal(tensor, again[name])]
    if wrong:
        raise WeightsError(f"{directory}: {len(wrong)} tensors differ from {gguf}, {wrong[0]} the first")
    return sum(p.numel() for p in fresh.parameters())


def main() -> int:
    try:
        print(convert(Path(sys.argv[1]), Path(sys.argv[2])))
    except (ImportError, LibraError) as e:
        print(f"{type(e).__name__}: {e}; the extra is installed with: pip install 'libra-rl[llm]'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
