# `just` lists the recipes. Each one makes the environment (.venv) by itself; once made, that costs nothing.

set shell := ["bash", "-euc"]

bin := ".venv/bin"
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

# Lint, types, floors, and every test that is not long
test *ARGS: lint
    @{{ bin }}/python -m pytest -m "not long and not gpu" {{ ARGS }}

# The core's and other pure tests only: no torch, no processes
test-fast *ARGS: setup
    @{{ bin }}/python -m pytest -m "not process and not long and not gpu" \
        --ignore tests/engine --ignore tests/train --ignore tests/weights {{ ARGS }}

# The tests that take minutes
test-long *ARGS: setup
    @{{ bin }}/python -m pytest -m long {{ ARGS }}

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
