"""The comparison of time: both sides in turns."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from textenvs.messages import user
from trainers.cli import tuned_gc
from trainers.rollout.renderer import Renderer

from .losses import compare_losses
from .trainer_side import Ours
from .trl_side import Between, Rollout, make_trl, sizes, vllm_settings
from .work import ANSWER, WANTED, Clock, Shape, Work, make_tokenizer


def clock_of(device: str) -> Clock:
    """Return a clock of seconds that waits for all work of the device."""
    if device == "cpu":
        return time.perf_counter

    def synchronized() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronized


def compare(work: Work, shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Run both sides in turns; return medians of the seconds and of the ratios."""
    tokenizer = make_tokenizer()
    model = shape.build(tokenizer)
    sizes_of_ours = (options.threads, options.micro_batch, options.running)
    own_side = Ours(model, tokenizer, work, *sizes_of_ours, options.clock, options.device, shape.bfloat16)
    answer = Renderer(tokenizer).bridge((user(ANSWER),), after=0)
    rollout = None if work.turns == 1 else Rollout(work, answer, vllm=options.trl_vllm)
    seconds: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
    with tempfile.TemporaryDirectory() as folder, tuned_gc():
        trl_model = shape.for_trl(tokenizer)
        trainer = make_trl(
            trl_model,
            make_tokenizer(),
            work,
            folder,
            options.rounds + 1,
            **sizes(work, options.trl_micro_batch, options.trl_generation_batch),
            **(vllm_settings(trl_model, tokenizer, folder) if options.trl_vllm else {}),
            rollout=rollout,
            clock=options.clock,
            device=options.device,
        )
        first = own_side.collect(work.lengths(0))
        # In bfloat16 the sides round differently in every layer: the gradients are near, and not equal.
        loss = compare_losses(trainer, model, first[: 4 * work.group], "bfloat16" if shape.bfloat16 else "float32")
        tolerance = 0.2 if shape.bfloat16 else options.tolerance
        for name in ("apart", "gradients_apart"):
            if not loss[name] < tolerance:
                raise SystemExit(f"{work.name}: the losses are not the same: {loss}")
        own_side.learn(first)

        def after(parts_s: dict[str, float]) -> None:
            number = len(seconds["trl"]) + 1
            seconds["trl"].append(parts_s)
            seconds["ours"].append(own_side.iterate(number))
            if rollout is not None:
                rollout.begin(number + 1)

        if rollout is not None:
            rollout.begin(1)
        trainer.add_callback(Between(trainer, after, options.clock))
        trainer.train()
    own_side.close()
    return summary(work.name, {side: rounds[1:] for side, rounds in seconds.items()}) | {  # the first warms up
        "device": options.device,
        "threads": options.threads,
        "trl": sizes(work, options.trl_micro_batch, options.trl_generation_batch),
        "episodes": work.episodes,
        "new_tokens": int(work.lengths(1).sum()),
        "loss": loss,
    }


def summary(name: str, seconds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Return medians over the rounds.

    Args:
        name: Of the work.
        seconds: Of the parts of each round, for ``ours`` and ``trl``.
    """

    def ratio(parts: Sequence[str]) -> list[float]:
        pairs = zip(seconds["ours"], seconds["trl"], strict=True)
        return [sum(own[part] for part in parts) / sum(trl[part] for part in parts) for own, trl in pairs]

    parts = ("generate", "update")
    whole = ratio(parts)
    return {
        "benchmark": name,
        "ratio": round(statistics.median(whole), 3),
        "wanted": WANTED[name],
        "ratios": [round(one, 3) for one in whole],
        "ratio_generate": round(statistics.median(ratio(["generate"])), 3),
        "ratio_update": round(statistics.median(ratio(["update"])), 3),
        "seconds": {
            side: {part: round(statistics.median(one[part] for one in rounds), 3) for part in parts}
            for side, rounds in seconds.items()
        },
    }


def tune(work: Work, shape: Shape, options: argparse.Namespace) -> None:
    """Run TRL alone, with several settings; print the medians of its seconds."""
    ways: list[dict[str, Any]] = [{"micro_batch": size} for size in (8, 16, 32, 64, 128, 256) if size <= work.episodes]
    ways += [{"generation_batch": size} for size in (32, 64, 128, 256) if size <= work.episodes]
    ways += [{"bf16": True}, {"attention": "eager"}]
    if work.turns == 1:
        ways += [{"use_transformers_continuous_batching": True}]
    answer = Renderer(make_tokenizer()).bridge((user(ANSWER),), after=0)
    for way in ways:
        settings = {"micro_batch": options.trl_micro_batch, "generation_batch": options.trl_generation_batch, **way}
        tokenizer = make_tokenizer()
        model = shape.for_trl(tokenizer)
        model.set_attn_implementation(settings.pop("attention", "sdpa"))
        rounds: list[dict[str, float]] = []
        settings |= sizes(work, settings["micro_batch"], settings["generation_batch"])
        rollout = None if work.turns == 1 else Rollout(work, answer)
        with tempfile.TemporaryDirectory() as folder, tuned_gc():
            arguments = {"rollout": rollout, "clock": options.clock, "device": options.device, **settings}
            trainer = make_trl(model, tokenizer, work, folder, options.rounds + 1, **arguments)

            def after(parts: dict[str, float], rounds: Any = rounds, rollout: Any = rollout) -> None:
                rounds.append(parts)
                if rollout is not None:
                    rollout.begin(len(rounds))

            trainer.add_callback(Between(trainer, after, options.clock))
            trainer.train()
        parts = {part: round(statistics.median(one[part] for one in rounds[1:]), 3) for part in ("generate", "update")}
        result = {"benchmark": f"tune {work.name}", **way, **parts, "sum": round(sum(parts.values()), 3)}
        print(json.dumps(result), flush=True)
