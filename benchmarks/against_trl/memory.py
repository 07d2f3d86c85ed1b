"""The comparison of memory: the peak of one update, each side in a process of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast, TrainerCallback

from benchmarks.gpu.shapes import from_turns
from benchmarks.memory import peak
from textenvs.messages import user
from trainers.config.model import ModelSection
from trainers.learner import Learner
from trainers.rollout.renderer import Renderer
from trainers.section import ActorSection
from trainers.trajectory import Trajectory

from .trl_side import FixedRollout, make_trl, sizes
from .work import ANSWER, LR, WANTED, Shape, Work, columns, make_tokenizer, question, surrogate

ROOT = Path(__file__).resolve().parents[2]


def made_up(work: Work, vocabulary: int, tokenizer: PreTrainedTokenizerFast) -> list[Trajectory]:
    """Episodes that no policy sampled: random replies, group by group."""
    rng, renderer = np.random.default_rng(0), Renderer(tokenizer)
    answer = renderer.bridge((user(ANSWER),), after=0)
    trajectories = []
    for number, lengths in enumerate(work.lengths(0)):
        opening = renderer.render([user(question(number // work.group))])
        tokens, turn_id = list(opening), [-1] * len(opening)
        for turn, length in enumerate(lengths.tolist()):
            gap = answer if turn else []
            tokens += [*gap, *rng.integers(3, vocabulary, length).tolist()]
            turn_id += [-1] * len(gap) + [turn] * length
        logprobs = np.where(np.array(turn_id) >= 0, -np.log(vocabulary), 0.0).astype(np.float32)
        fields = {"logprobs": logprobs, "turn_rewards": rng.random(work.turns), "group_id": str(number // work.group)}
        trajectories.append(from_turns(tokens, turn_id, **fields))
    return trajectories


def memory_of(side: str, work: Work, shape: Shape, options: argparse.Namespace) -> dict[str, float]:
    """Return the peak of the second update of one side, in MiB, and its seconds."""
    tokenizer = make_tokenizer()
    model = shape.build(tokenizer) if side == "ours" else shape.for_trl(tokenizer)
    vocabulary = model.config.vocab_size
    trajectories = made_up(work, vocabulary, tokenizer)
    usage: dict[str, float] = {}
    if side == "ours":
        longest = max(len(trajectory.token_ids) for trajectory in trajectories)
        whole_batch = longest * len(trajectories)
        section = ModelSection(device=options.device, dtype="bfloat16" if shape.bfloat16 else "float32")
        learner = Learner(model, section, actor=ActorSection(lr=LR, max_tokens_per_micro_batch=whole_batch))
        del model
        for _ in range(2):
            with peak(options.device) as usage:
                began = options.clock()
                learner.update_actor(trajectories, columns(trajectories), surrogate)
                usage["seconds"] = options.clock() - began
        return usage

    class Watch(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            nonlocal usage
            self.block = peak(options.device)
            usage = self.block.__enter__()
            self.began = options.clock()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            usage["seconds"] = options.clock() - self.began
            self.block.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder:
        whole = sizes(work, work.episodes, work.episodes)
        trl_settings = {"rollout": FixedRollout(trajectories), "device": options.device, **whole}
        trainer = make_trl(model, tokenizer, work, folder, 2, **trl_settings)
        trainer.add_callback(Watch())
        trainer.train()
    return usage


def compare_memory(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure each side in a process of its own."""
    results = {}
    for side in ("ours", "trl"):
        command = [
            sys.executable,
            "-m",
            "benchmarks.against_trl",
            name,
            "--memory-of",
            side,
            f"--threads={options.threads}",
            f"--device={options.device}",
        ]
        command += ["--smoke"] if options.smoke else []
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        results[side] = json.loads(done.stdout.splitlines()[-1])
    return {
        "benchmark": name,
        "ratio": round(results["ours"]["peak"] / results["trl"]["peak"], 3),
        "wanted": WANTED[name],
        "peak_mib": {side: round(numbers["peak"]) for side, numbers in results.items()},
        "before_mib": {side: round(numbers["before"]) for side, numbers in results.items()},
        "seconds": {side: round(numbers["seconds"], 2) for side, numbers in results.items()},
    }
