"""The torch engine against ``model.generate``: tokens/s on the same requests, in one process.

Requests have prompts of 20 to 60 tokens and ask for 8 to 64 new ones, and stop tokens are ignored, so both sides make
the same number of wanted tokens. ``generate`` gets left-padded batches, cut in several ways: all requests at once, in
the order of arrival by 16, 32 and 64, and, as no real run could, sorted by the number of tokens they will make (it
runs each batch to its longest request; tokens beyond a request's own number do not count). The sides take turns, and
``ratio`` is the median over the rounds of the engine's tokens/s over that of the best way without foresight;
``ratio_with_foresight`` is against the best of all. On a machine that others use too, ``--cpu-time`` counts the CPU
seconds of this process in place of seconds.

With ``--siblings N`` each prompt comes N times, as a group's does. ``gib_above_weights`` is the resident memory at its
highest while the engine works, above that of the engine and its weights before; ``prompt_tokens_computed`` counts those
of one round. ``135M`` is SmolLM2's shape (random weights) with a context of 4,096, in bfloat16 on both sides.

    python benchmarks/engine_vs_generate.py [--rounds 5] [--threads 1] [--cpu-time]
    python benchmarks/engine_vs_generate.py --models 135M --requests 64 --siblings 8 --threads 2 --rounds 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.memory import peak
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.models.tiny import build_model

MODELS: dict[str, dict[str, Any]] = {
    "0.80M": {"vocab_size": 512, "hidden": 128, "layers": 3, "intermediate": 512, "max_context": 128},
    "0.65M": {"vocab_size": 512, "hidden": 128, "layers": 3, "intermediate": 384, "max_context": 128},
    "135M": {
        **{"family": "llama", "vocab_size": 49_152, "hidden": 576, "layers": 30, "intermediate": 1536},
        **{"heads": 9, "kv_heads": 3, "max_context": 4096},
    },
}
DTYPES = {"135M": torch.bfloat16}
Clock = Callable[[], float]


@dataclass(frozen=True)
class Work:
    """One request: a prompt and how many tokens to make."""

    prompt: list[int]
    new: int


def make_work(count: int, vocabulary: int, siblings: int) -> list[Work]:
    """Make requests of mixed lengths."""
    rng = np.random.default_rng(count)
    prompts = [rng.integers(3, vocabulary, rng.integers(20, 61)).tolist() for _ in range(-(-count // siblings))]
    return [Work(prompts[i // siblings], int(rng.integers(8, 65))) for i in range(count)]


async def run_engine(engine: TorchEngine, work: list[Work], clock: Clock) -> float:
    """Seconds for all requests at once, with no keys and values of an earlier round."""
    begin = clock()
    made = await asyncio.gather(
        *(
            engine.generate(w.prompt, Sampling(max_new_tokens=w.new, ignore_stop=True), str(number))
            for number, w in enumerate(work)
        )
    )
    elapsed = clock() - begin
    for number in range(len(work)):
        await engine.release(str(number))
    assert [len(generation.token_ids) for generation in made] == [w.new for w in work]
    return elapsed


@torch.inference_mode()
def run_generate(model: PreTrainedModel, work: list[Work], size: int, foresight: bool, clock: Clock) -> float:
    """Seconds for all requests in padded batches; with ``foresight``, sorted by the tokens they will make."""
    begin = clock()
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
    return clock() - begin


async def compare(
    name: str, count: int, rounds: int, threads: int, clock: Clock, siblings: int = 1
) -> dict[str, object]:
    """Both sides in turns; medians of tokens/s and of the ratios."""
    shape = MODELS[name]
    model = build_model(**shape).to(DTYPES.get(name, torch.float32))  # type: ignore[arg-type]
    work = make_work(count, shape["vocab_size"], siblings)
    tokens = sum(w.new for w in work)
    sizes = [size for size in (16, 32, 64) if size < count]
    ways = {"all at once": (count, False)}
    ways |= {f"batches of {size}": (size, False) for size in sizes}
    ways |= {f"batches of {size}, sorted with foresight": (size, True) for size in sizes}
    engine = TorchEngine(model, TorchEngineSection(max_slots=count, max_context=shape["max_context"], threads=threads))
    seconds: dict[str, list[float]] = {"engine": [], **{way: [] for way in ways}}
    with peak() as memory:
        await run_engine(engine, work, clock)
    prefilled = engine.stats()["prefill_tokens"]
    for round_ in range(rounds + 1):  # the first warms up
        round_seconds = {"engine": await run_engine(engine, work, clock)}
        round_seconds |= {way: run_generate(model, work, *how, clock) for way, how in ways.items()}
        if round_:
            for side, value in round_seconds.items():
                seconds[side].append(value)
    await engine.close()

    def ratio(sides: list[str]) -> float:
        best = min(sides, key=lambda side: statistics.median(seconds[side]))
        return round(statistics.median(g / e for g, e in zip(seconds[best], seconds["engine"], strict=True)), 2)

    return {
        "model": name,
        "requests": count,
        "new_tokens": tokens,
        "threads": threads,
        "gib_above_weights": round(memory["peak"] / 1024, 3),
        "prompt_tokens": sum(len(w.prompt) for w in work),
        "prompt_tokens_computed": round(prefilled),
        "tokens_per_s": {side: round(tokens / statistics.median(values)) for side, values in seconds.items()},
        "ratio": ratio([way for way, (_, foresight) in ways.items() if not foresight]),
        "ratio_with_foresight": ratio(list(ways)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="for both sides")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds (for a shared machine)")
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--models", nargs="+", default=["0.80M", "0.65M"], choices=list(MODELS))
    parser.add_argument("--siblings", type=int, default=1, help="requests with the same prompt")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    for name in args.models:
        for count in args.requests:
            result = asyncio.run(compare(name, count, args.rounds, args.threads, clock, args.siblings))
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
