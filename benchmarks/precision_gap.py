"""Measure an engine's log-probabilities against the learner's in each precision, and the corrections.

    python -m benchmarks.precision_gap [--model FOLDER] [--episodes 64] [--tokens 64] [--out FILE]

The torch engine samples replies; a learner with the same weights computes their log-probabilities. With bfloat16 on
both sides, every layer rounds, and batches of other shapes round differently. The first table has, for each pair of
precisions, the gap ``|log p_learner - log p_engine|`` of tokens, the ratio ``p_learner / p_engine`` that PPO would
start from, and the share of tokens outside PPO's default clip range and of episodes outside GSPO's (of the mean
log-ratio).

One row is of the learner alone, in bfloat16, on the whole batch and on shuffled halves of it, as mini-batches are: what
is recomputed before the first step is not what the step computes.

The second table is of bfloat16 on both sides, for each value of ``actor.old_logprobs``: the same share of tokens at the
first optimizer step, the share of tokens whose gradient is clipped away there, the cosine of the update's gradient to
the one in float32 with exact importance weights and no clipping, and the seconds of the extra forward pass as a share
of an update's.

Advantages are drawn: one normal number an episode. ``--model tiny`` is random weights: quick, and no measure of real
ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.gpu.shapes import from_tokens
from trainers.algorithms.losses import PPO, GSPOToken, PolicyLoss
from trainers.algorithms.off_policy import importance_weights
from trainers.config.engine import TorchEngineSection
from trainers.config.model import ModelSection
from trainers.engines.base import Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.learner import Learner
from trainers.learner.fsdp import whole
from trainers.models import tiny
from trainers.section import ActorSection
from trainers.trajectory import Trajectory

DType = Literal["float32", "bfloat16"]

CLIP = (0.2, 0.28)  #: below and above 1: the defaults of actor.clip_ratio_low and _high
GSPO_CLIP = (3e-4, 4e-4)
LOSSES: dict[str, PolicyLoss] = {
    "ppo": PPO(clip_ratio_low=CLIP[0], clip_ratio_high=CLIP[1]),
    "gspo": GSPOToken(clip_ratio_low=GSPO_CLIP[0], clip_ratio_high=GSPO_CLIP[1]),
}
PAIRS: Sequence[tuple[DType, DType]] = (
    ("float32", "float32"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
)  #: engine, learner


def load(path: str) -> tuple[Any, list[list[int]]]:
    """Return a model in float32, and prompts as token ids."""
    questions = [f"What is {a} times {b}? Think step by step." for a in range(12, 20) for b in (7, 13)]
    if path == "tiny":
        tokenizer: Any = tiny.build_tokenizer(questions)
        model: Any = tiny.build_model(len(tokenizer))
    else:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    chats = [[{"role": "user", "content": question}] for question in questions]
    return model, [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


async def sample(model: Any, prompts: list[list[int]], episodes: int, tokens: int, dtype: str) -> list[Trajectory]:
    """Sample replies at temperature 1, of ``tokens`` tokens each."""
    engine = TorchEngine(
        model,
        TorchEngineSection(max_slots=episodes, max_context=max(map(len, prompts)) + tokens),
        dtype=getattr(torch, dtype),
    )
    try:
        requests = [prompts[i % len(prompts)] for i in range(episodes)]
        replies = await asyncio.gather(
            *(
                engine.generate(prompt, Sampling(max_new_tokens=tokens, ignore_stop=True, seed=i))
                for i, prompt in enumerate(requests)
            )
        )
    finally:
        await engine.close()
    return [
        trajectory(prompt, reply.token_ids, reply.logprobs, str(i))
        for i, (prompt, reply) in enumerate(zip(requests, replies, strict=True))
    ]


def trajectory(prompt: list[int], ids: Any, logprobs: Any, name: str) -> Trajectory:
    padded = np.concatenate([np.zeros(len(prompt)), logprobs]).astype(np.float32)
    turn = from_tokens(np.concatenate([prompt, ids]).astype(np.int32), len(prompt))
    return replace(turn, logprobs=padded, episode_id=name)


def make_learner(model: Any, dtype: DType) -> Learner:
    """Build a learner with steps so small that the weights stay as they are."""
    return Learner(model, ModelSection(dtype=dtype), actor=ActorSection(lr=1e-12, grad_clip=1e9))


def shares(log_ratio: np.ndarray, offsets: np.ndarray) -> dict[str, float]:
    """Return the shares of tokens whose ratio, and episodes whose mean log-ratio, is outside the clip ranges."""
    means = np.add.reduceat(log_ratio, offsets[:-1]) / np.diff(offsets)
    return {
        "tokens_outside": float(outside(np.exp(log_ratio), CLIP).mean()),
        "episodes_outside_gspo": float(outside(np.exp(means), GSPO_CLIP).mean()),
    }


def in_other_batches(learner: Learner, batch: list[Trajectory]) -> dict[str, float]:
    """Return the gap between the learner's log-probabilities of the batch and of its shuffled halves (mini-batches)."""
    order = np.random.default_rng(1).permutation(len(batch))
    whole_batch = learner.logprobs(batch)
    apart: list[np.ndarray] = [np.zeros(0)] * len(batch)
    for half in np.array_split(order, 2):
        for index, values in zip(half, learner.logprobs([batch[i] for i in half]), strict=True):
            apart[index] = values
    offsets = np.cumsum([0] + [len(values) for values in apart])
    log_ratio = (np.concatenate(apart) - np.concatenate(whole_batch)).astype(np.float64)
    gap = np.abs(log_ratio)
    return {"mean_gap": float(gap.mean()), "max_gap": float(gap.max()), **shares(log_ratio, offsets)}


def outside(ratio: np.ndarray, clip: tuple[float, float]) -> np.ndarray:
    """Return where a ratio is outside ``[1 - low, 1 + high]``."""
    return np.asarray((ratio < 1 - clip[0]) | (ratio > 1 + clip[1]))


def gradient(
    learner: Learner, batch: list[Trajectory], inputs: Mapping[str, np.ndarray], loss: Callable[..., Any]
) -> tuple[torch.Tensor, dict[str, float], float]:
    """Return the gradient of one update, flat in float32; the sums that the loss noted; the seconds of the update."""
    parts: list[torch.Tensor] = []

    def keep(*_: Any) -> None:
        for parameter in learner.actor.parameters():
            assert parameter.grad is not None
            parts.append(whole(parameter.grad).detach().float().flatten().clone())

    hook = learner.actor_optimizer._adamw.register_step_pre_hook(keep)
    began = time.perf_counter()
    metrics = learner.update_actor(batch, inputs, loss)
    seconds = time.perf_counter() - began
    hook.remove()
    return torch.cat(parts), metrics, seconds


def loss_of(kind: str, count: int) -> Callable[..., Any]:
    """Return a loss: ``exact`` weighs by the given importance and does not clip; ``ppo`` and ``gspo`` are a run's."""

    def loss(logprobs: torch.Tensor, entropy: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> Any:
        old, advantages, weight = batch["old"].float(), batch["advantage"].float(), batch["importance"].float()
        log_ratio = (logprobs - old).detach()
        if kind == "exact":
            values, clipped = -weight * advantages * logprobs, torch.zeros_like(log_ratio)
        else:
            result = LOSSES[kind].token_loss(logprobs, old, advantages, batch["trajectory"], importance=weight)
            values, clipped = result.loss, result.stats["clipped"]
        off = (log_ratio.exp() < 1 - CLIP[0]) | (log_ratio.exp() > 1 + CLIP[1])
        return values.sum() / count, {
            "clipped": clipped.float().sum() / count,
            "outside": off.float().sum() / count,
            "moved": log_ratio.abs().sum() / count,
        }

    return loss


def cosine(one: torch.Tensor, two: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), two.double(), dim=0))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(argv)
    model, prompts = load(arguments.model)
    results: list[dict[str, Any]] = []

    def say(row: dict[str, Any]) -> None:
        results.append(row)
        print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)

    batches = {
        dtype: asyncio.run(sample(model, prompts, arguments.episodes, arguments.tokens, dtype))
        for dtype in ("float32", "bfloat16")
    }
    learners: dict[DType, Learner] = {}
    for engine, learner in PAIRS:
        if learner not in learners:
            learners.clear()  # one in memory at a time
            learners[learner] = make_learner(model, learner)
        batch = batches[engine]
        offsets = np.cumsum([0] + [int(t.action_mask.sum()) for t in batch])
        learned = np.concatenate(learners[learner].logprobs(batch)).astype(np.float64)
        sampled = np.concatenate([t.logprobs[t.action_mask] for t in batch]).astype(np.float64)
        gap, ratio = np.abs(learned - sampled), np.exp(learned - sampled)
        say(
            {
                "engine": engine,
                "learner": learner,
                "tokens": len(gap),
                "mean_gap": float(gap.mean()),
                "p99_gap": float(np.quantile(gap, 0.99)),
                "max_gap": float(gap.max()),
                "ratio_min": float(ratio.min()),
                "ratio_max": float(ratio.max()),
                **shares(learned - sampled, offsets),
            }
        )
        if (engine, learner) == ("bfloat16", "float32"):
            advantage = np.repeat(np.random.default_rng(0).standard_normal(len(batch)), np.diff(offsets))
            columns = {"old": sampled, "advantage": advantage, "importance": ratio}
            exact, _, _ = gradient(learners[learner], batch, columns, loss_of("exact", len(learned)))

    batch, learner_16 = batches["bfloat16"], learners["bfloat16"]
    began = time.perf_counter()
    recomputed = np.concatenate(learner_16.logprobs(batch)).astype(np.float64)
    forward_s = time.perf_counter() - began
    say({"learner": "bfloat16, in other micro-batches", **in_other_batches(learner_16, batch)})
    ones = np.ones(len(sampled))
    for kind in ("ppo", "gspo"):
        mode: Literal["token_tis", "sequence_tis"] = "token_tis" if kind == "ppo" else "sequence_tis"
        tis = importance_weights(mode, recomputed, sampled, offsets, 2.0)
        assert tis is not None
        for name, old, weight in (
            ("rollout", sampled, ones),
            ("recompute", recomputed, ones),
            (f"recompute+{mode}", recomputed, tis),
        ):
            columns = {"old": old, "advantage": advantage, "importance": weight}
            got, metrics, seconds = gradient(learner_16, batch, columns, loss_of(kind, len(sampled)))
            say(
                {
                    "loss": kind,
                    "old_logprobs": name,
                    "mean_log_ratio": metrics["moved"],
                    "tokens_outside": metrics["outside"],
                    "clipped": metrics["clipped"],
                    "weight_max": float(weight.max()),
                    "cosine": cosine(got, exact),
                    "extra_time": 0.0 if name == "rollout" else forward_s / seconds,
                }
            )
    plain, _, _ = gradient(
        learner_16,
        batch,
        {"old": sampled, "advantage": advantage, "importance": np.exp(recomputed - sampled)},
        loss_of("exact", len(sampled)),
    )
    say({"loss": "exact, in bfloat16", "cosine": cosine(plain, exact)})
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
