"""The torch engine against ``model.generate``: tokens/s on the same requests, in one process.

Requests have prompts of 20 to 60 tokens and ask for 8 to 64 new ones, and stop tokens are ignored, so both sides make
the same number of wanted tokens. ``generate`` gets left-padded batches, cut in several ways: all requests at once, in
the order of arrival by 16, 32 and 64, and, as no real run could, sorted by the number of tokens they will make (it
runs each batch to its longest request; tokens beyond a request's own number do not count). The machine may be noisy:
the sides take turns, and ``ratio`` is the median over the rounds of the engine's tokens/s over the best of those ways
in that round, without the sorted ones; ``ratio_with_foresight`` counts them too.

    python benchmarks/engine_vs_generate.py [--rounds 5] [--threads 1] [--json out.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from trainers.engines.base import Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.tiny import build_model

MODELS = {"0.85M": {"hidden": 128, "layers": 3, "intermediate": 512}, "0.65M": {"hidden": 128, "layers": 3}}
MODELS["0.65M"]["intermediate"] = 336
VOCABULARY = 512


@dataclass(frozen=True)
class Work:
    """One request: a prompt and how many tokens to make."""

    prompt: list[int]
    new: int


def make_work(count: int, seed: int) -> list[Work]:
    """Requests of mixed lengths."""
    rng = np.random.default_rng(seed)
    return [
        Work(rng.integers(3, VOCABULARY, rng.integers(20, 61)).tolist(), int(rng.integers(8, 65))) for _ in range(count)
    ]


async def run_engine(engine: TorchEngine, work: list[Work]) -> float:
    """Seconds for all requests at once."""
    begin = time.perf_counter()
    made = await asyncio.gather(
        *(engine.generate(w.prompt, Sampling(max_new_tokens=w.new, ignore_stop=True)) for w in work)
    )
    elapsed = time.perf_counter() - begin
    assert [len(generation.token_ids) for generation in made] == [w.new for w in work]
    return elapsed


@torch.inference_mode()
def run_generate(model: PreTrainedModel, work: list[Work], size: int, foresight: bool) -> float:
    """Seconds for all requests in padded batches; with ``foresight``, sorted by the tokens they will make."""
    begin = time.perf_counter()
    ordered = sorted(work, key=lambda w: w.new) if foresight else work
    for at in range(0, len(ordered), size):
        part = ordered[at : at + size]
        width, new = max(len(w.prompt) for w in part), max(w.new for w in part)
        ids = torch.tensor([[0] * (width - len(w.prompt)) + w.prompt for w in part])
        mask = torch.tensor([[0] * (width - len(w.prompt)) + [1] * len(w.prompt) for w in part])
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, min_new_tokens=new, max_new_tokens=new, pad_token_id=0
        )
        assert out.shape[1] == width + new
    return time.perf_counter() - begin


async def compare(name: str, count: int, rounds: int, threads: int) -> dict[str, object]:
    """Both sides in turns; medians of tokens/s and of the ratios."""
    model = build_model(VOCABULARY, **MODELS[name])
    work = make_work(count, seed=count)
    tokens = sum(w.new for w in work)
    sizes = [size for size in (16, 32, 64) if size < count]
    ways = {"all at once": (count, False)}
    ways |= {f"batches of {size}": (size, False) for size in sizes}
    ways |= {f"batches of {size}, sorted with foresight": (size, True) for size in sizes}
    engine = TorchEngine(model, max_slots=count, max_context=128, threads=threads)
    seconds: dict[str, list[float]] = {"engine": [], **{way: [] for way in ways}}
    for round_ in range(rounds + 1):  # the first warms up
        taken = {"engine": await run_engine(engine, work)}
        taken |= {way: run_generate(model, work, *how) for way, how in ways.items()}
        if round_:
            for side, value in taken.items():
                seconds[side].append(value)
    await engine.close()

    def ratio(sides: list[str]) -> float:
        best = [min(values) for values in zip(*(seconds[side] for side in sides), strict=True)]
        return round(statistics.median(g / e for g, e in zip(best, seconds["engine"], strict=True)), 2)

    return {
        "model": name,
        "requests": count,
        "new_tokens": tokens,
        "threads": threads,
        "tokens_per_s": {side: round(tokens / statistics.median(values)) for side, values in seconds.items()},
        "ratio": ratio([way for way, (_, foresight) in ways.items() if not foresight]),
        "ratio_with_foresight": ratio(list(ways)),
    }


def main() -> None:
    """Print one line per model and number of requests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="for both sides")
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", type=Path, help="also write the results here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    for name in args.models:
        for count in args.requests:
            results.append(asyncio.run(compare(name, count, args.rounds, args.threads)))
            print(json.dumps(results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
