"""How long an update of a real SGLang server's weights takes, by each way that they can travel.

    python -m benchmarks.weight_update --python .venv-sglang/bin/python

A server is started on the CPU with a randomly initialised Qwen2 of 0.5 GB in float32. Each transport brings it new
weights a few times; what is printed is the median of the whole update, from the pause to the first new token allowed,
with the checksums of both sides compared, and the share of that which is not checksums.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from trainers.engines.sglang import SGLangEngine, SGLangOptions
from trainers.tiny import build_model

SHAPE = {"hidden": 1024, "layers": 6, "heads": 16, "kv_heads": 4, "intermediate": 4096}
VOCAB = 30_000


async def measure(folder: Path, model: torch.nn.Module, python: str, transport: str, ranks: int, times: int) -> dict:
    """Updates of a server of its own; seconds."""
    took: dict[bool, list[float]] = {True: [], False: []}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    size = sum(value.nbytes for value in model.parameters())
    for verify in took:
        options = SGLangOptions(python=python, transport=transport, tensor_parallel=ranks, verify=verify)  # type: ignore[arg-type]
        engine = SGLangEngine(folder, options, max_context=256, max_slots=4, threads=1)
        try:
            await engine.ready()
            for version in range(1, times + 2):
                for value in weights.values():
                    value.mul_(1.01)
                began = time.perf_counter()
                await engine.update_weights(weights, version)
                took[verify].append(time.perf_counter() - began)
        finally:
            await engine.close()
    # The first update of a server makes the process group, and reserves memory.
    verified, plain = (statistics.median(took[verify][1:]) for verify in (True, False))
    return {
        "transport": transport,
        "ranks": ranks,
        "gigabytes": round(size / 1e9, 2),
        "seconds": round(verified, 2),
        "seconds_without_checksums": round(plain, 2),
    }


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=".venv-sglang/bin/python", help="a Python that has SGLang")
    parser.add_argument("--transports", nargs="+", default=["tensor", "disk", "distributed"])
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel ranks of the server")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = build_model(VOCAB, family="qwen2", max_context=512, **SHAPE)
    with tempfile.TemporaryDirectory(prefix="weight-update-") as folder:
        model.save_pretrained(folder)
        for transport in given.transports:
            print(
                json.dumps(
                    asyncio.run(measure(Path(folder), model, given.python, transport, given.ranks, given.times))
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
