"""One iteration of training against TRL's GRPOTrainer: the same work and the same loss, in one process, in turns.

An iteration is 256 episodes of a Qwen2 with 3 M random weights (32 tasks, groups of 8), their advantages, one step of
AdamW on all of them, and the new weights in use for the next. Two kinds of work:

* ``single``: one turn of exactly 48 new tokens.
* ``turns``: four turns; each reply has a length of its own, from 8 to 64 tokens, and the environment answers it.

Both sides have the same model, prompts, lengths of replies, rewards (a function of the text), advantages (``R -
mean(R)`` in a group), loss (PPO's clipped ratio, mean over the batch's tokens: TRL's ``dapo``), optimizer, number of
threads and precision (float32). Neither computes old log-probabilities in a pass of its own: TRL takes those of the
update itself, this side those that the engine sampled with. Nothing is sampled to a stop token; lengths are forced.

TRL has its fastest settings: no gradient checkpointing, no reference model, ``num_iterations=1`` (it then skips old
log-probabilities), fused AdamW, SDPA, and the sizes of micro-batches and of generation batches that
``--trl-micro-batch`` and ``--trl-generation-batch`` say (``--tune`` measures several, and TRL's continuous batching and
bfloat16). For ``single`` it generates by itself. For ``turns`` it is given a ``rollout_func`` that does what its own
loop over tool calls does: one ``generate`` a turn for all its episodes, padded, with the whole conversation as its
prompt; each row ends at its own length, and the call when the longest has ended. What that loop spends besides, on
templates and on parsing replies, is left out. This side is the collector with an environment, the torch engine and the
learner, as a run has them. It reads a prompt that siblings share once (both the engine and the learner do), which TRL
does not.

First the losses are compared: four groups of this side's episodes go through TRL's own scoring, and with the same old
log-probabilities (those of the engine, with noise, so that the clipping bites) the losses and all gradients must be
equal (``--tolerance``).

Then the sides take turns. ``ratio`` is the median over the rounds of this side's seconds over TRL's, with the parts
``generate`` and ``update`` shown apart; on TRL's side, ``update`` is all that is not generation.

``memory`` is the peak of one update with a vocabulary of 150,000 tokens and one micro-batch of 32 samples, each side in
a process of its own: how far the resident set grows, from just before an iteration's update (weights and the
optimizer's moments are there, gradients are not) to its highest point (``VmHWM``, reset before; Linux). An update
before it has warmed everything up, and freed memory was given back (``malloc_trim``). Both sides are given the same
episodes, so nothing is generated.

    python benchmarks/against_trl.py [single] [turns] [memory] [--rounds 5] [--threads 2] [--json out.json]

Needs ``pip install trl``. On a machine that others use too, two threads wait for each other: measure with ``nice -n
-5``, or with one thread and ``--cpu-time``, which counts the CPU seconds of this process in place of seconds.

A smaller ``--trl-generation-batch`` is faster for ``turns`` (64: 71 s in place of 92 on one thread), since fewer rows
wait for the longest. TRL then takes the mean over the tokens of each such part, and the mean of those: not quite the
same loss. ``--trl-micro-batch 16 --trl-generation-batch 64`` shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, StoppingCriteria, TrainerCallback

from textenvs import Task, TextEnv, Turn
from textenvs.messages import Message, user
from trainers.algorithms.advantages import dr_grpo
from trainers.algorithms.aggregation import token_weights
from trainers.algorithms.batch import ActionBatch
from trainers.algorithms.policy_losses import ppo_clip
from trainers.engines.base import Engine, Generation, Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.heap import settled
from trainers.learner import Learner, OptimizerSettings
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.renderer import Renderer
from trainers.tiny import build_model, build_tokenizer
from trainers.trajectory import Status, Trajectory

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental: we know

ANSWER = "No, that is not right. Please try again."
LR, CLIP = 1e-5, 0.2
Clock = Callable[[], float]
WANTED = {"single": 0.75, "turns": 0.4, "memory": 0.5}


@dataclass(frozen=True)
class Work:
    """What an iteration is.

    Args:
        name: Of the kind of work.
        turns: Replies an episode.
        shortest: Tokens of a reply at least.
        longest: And at most.
        tasks: Groups.
        group: Episodes of each.
    """

    name: str
    turns: int
    shortest: int
    longest: int
    tasks: int = 32
    group: int = 8

    @property
    def episodes(self) -> int:
        """Of an iteration."""
        return self.tasks * self.group

    def lengths(self, number: int) -> NDArray[np.int64]:
        """``[episodes, turns]``: how many tokens each reply of this iteration has."""
        rng = np.random.default_rng((number, self.turns))
        return rng.integers(self.shortest, self.longest + 1, (self.episodes, self.turns))


WORKS = {work.name: work for work in (Work("single", 1, 48, 48), Work("turns", 4, 8, 64))}


@dataclass(frozen=True)
class Shape:
    """Of the model."""

    hidden: int = 256
    layers: int = 4
    intermediate: int = 704
    vocabulary: int | None = None  # of the tokenizer

    def build(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """Random weights, always the same."""
        return build_model(
            self.vocabulary or len(tokenizer),
            hidden=self.hidden,
            layers=self.layers,
            intermediate=self.intermediate,
            max_context=1024,
        )


TINY = Shape(hidden=32, layers=1, intermediate=64)


# ------------------ what both sides share: tasks, rewards, the loss


def question(number: int) -> str:
    """Of one task; as many tokens as any other."""
    return f"What is {number % 1000:03d} + {(37 * number + 11) % 1000:03d}?"


def score(text: str) -> float:
    """A reward that differs between siblings. What it says does not matter here."""
    return sum(map(ord, text)) % 8 / 8


class Questions:
    """An endless set of tasks."""

    name, size = "questions", None

    def __getitem__(self, index: int) -> Task:
        return Task(str(index), "benchmark", (user(question(index)),), "")


class Talk(TextEnv[Any]):
    """An environment that is not content until the last turn."""

    def __init__(self, turns: int) -> None:
        super().__init__(Questions())
        self._turns = turns

    def opening(self, task: Task) -> list[Message]:
        """The question."""
        return list(task.prompt)

    def respond(self, reply: Message) -> Turn:
        """The same answer every time."""
        if self.state.assistant_turns == self._turns:
            return Turn(reward=score(reply["content"]), terminated=True, stop="solved")
        return Turn([user(ANSWER)], reward=score(reply["content"]))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Of 290 tokens."""
    return build_tokenizer([question(0), ANSWER])


def surrogate(logprobs: Tensor, entropy: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped ratio as a weighted sum of tokens; see ``Learner.update_actor``."""
    losses = ppo_clip(logprobs, batch["old"], batch["advantage"], clip_low=CLIP, clip_high=CLIP)
    return (batch["weight"] * losses.loss).sum(), {}


def columns(trajectories: Sequence[Trajectory]) -> dict[str, NDArray[Any]]:
    """Numbers of all action tokens: advantages, weights of a mean over tokens, log-probabilities as sampled."""
    batch = ActionBatch.from_trajectories(trajectories)
    return {
        "advantage": dr_grpo(batch).advantages,
        "weight": token_weights("token-mean", batch.token_offsets),
        "old": np.concatenate([t.logprobs[t.action_mask] for t in trajectories]),
    }


# ------------------ this side


class Forced:
    """An engine whose replies have the lengths that they are given."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rows: Iterator[NDArray[np.int64]] = iter(())
        self._left: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def force(self, lengths: NDArray[np.int64]) -> None:
        """``[episodes, turns]``: the episodes to come get a row each, as they begin."""
        self._rows, self._left = iter(lengths), {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Generation:
        """As many tokens as this session's next reply is to have."""
        if session not in self._left:
            self._left[session] = next(self._rows).tolist()[::-1]
        forced = replace(sampling, max_new_tokens=self._left[session].pop(), ignore_stop=True)
        return await self.engine.generate(token_ids, forced, session)


class Ours:
    """The collector, the torch engine and the learner; one iteration at a time.

    Args:
        model: Where to start; copied.
        tokenizer: Its tokenizer.
        work: What an iteration is.
        threads: For the engine and the learner.
        micro_batch: Tokens of a micro-batch at most.
        running: Episodes in flight at most.
        clock: For seconds.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        work: Work,
        threads: int,
        micro_batch: int,
        running: int,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._work, self._loop = work, asyncio.new_event_loop()
        settings = OptimizerSettings(lr=LR, weight_decay=0.0, grad_clip=1.0)
        self.learner = Learner(model, optimizer=settings, max_tokens_per_micro_batch=micro_batch)
        context = work.turns * (work.longest + 64) + 64
        self._engine = TorchEngine(model, max_slots=min(running, work.episodes), max_context=context, threads=threads)
        self._forced = Forced(self._engine)
        self._backend = Backend(EnvSpec(lambda: Talk(work.turns)))
        self._collector = Collector(
            self._forced,
            Renderer(tokenizer),
            self._backend,
            tasks=lambda group: group % work.tasks,
            group_size=work.group,
            groups_per_batch=work.tasks,
            max_running=min(running, work.episodes),
        )

    def collect(self, lengths: NDArray[np.int64]) -> list[Trajectory]:
        """The episodes of one iteration."""
        self._forced.force(lengths)
        trajectories = self._loop.run_until_complete(self._collector.next_batch()).trajectories
        assert sum(int(t.action_mask.sum()) for t in trajectories) == lengths.sum()
        return trajectories

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        """One step, and the new weights to the engine."""
        self.learner.update_actor(trajectories, columns(trajectories), surrogate)
        weights = self.learner.weights()
        self._loop.run_until_complete(self._collector.update_weights(weights, self._engine.version + 1))

    def iterate(self, number: int) -> dict[str, float]:
        """Seconds of its parts."""
        began = self._clock()
        trajectories = self.collect(self._work.lengths(number))
        collected = self._clock()
        self.learn(trajectories)
        return {"generate": collected - began, "update": self._clock() - collected}

    def close(self) -> None:
        """End it all."""
        for part in (self._collector, self._backend, self._engine):
            self._loop.run_until_complete(part.close())
        self._loop.close()


# ------------------ TRL's side


class AtLengths(StoppingCriteria):
    """Ends every row at a length of its own, as a stop token would."""

    def __init__(self, prompt: int, lengths: NDArray[np.int64]) -> None:
        self._ends = torch.from_numpy(prompt + lengths)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which rows are done, bool ``[B]``."""
        return input_ids.shape[1] >= self._ends


class Rollout:
    """A ``rollout_func`` of TRL's: turn by turn, all episodes in one ``generate``.

    Args:
        work: What an iteration is.
        answer: The tokens from the end of a reply to the next generation point.
    """

    def __init__(self, work: Work, answer: list[int]) -> None:
        self._work, self._answer = work, answer
        self.begin(0)

    def begin(self, number: int) -> None:
        """An iteration."""
        self._lengths, self._done = self._work.lengths(number), 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """As TRL's documentation of ``rollout_func`` has it; ``earned`` goes to the reward function."""
        lengths, pad = self._lengths[self._done : self._done + len(prompts)], trainer.processing_class.pad_token_id
        self._done += len(prompts)
        opening = trainer.processing_class.apply_chat_template(prompts, add_generation_prompt=True)["input_ids"]
        completions: list[list[int]] = [[] for _ in prompts]
        masks: list[list[int]] = [[] for _ in prompts]
        earned = np.zeros(len(prompts))
        config = GenerationConfig(do_sample=True, top_k=0, pad_token_id=pad, max_new_tokens=self._work.longest)
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        for turn in range(self._work.turns):
            contexts = [first + rest for first, rest in zip(opening, completions, strict=True)]
            width = max(map(len, contexts))
            ids = torch.tensor([[pad] * (width - len(row)) + row for row in contexts])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in contexts])
            ends = AtLengths(width, lengths[:, turn])
            with torch.inference_mode():
                made = model.generate(ids, attention_mask=mask, generation_config=config, stopping_criteria=[ends])
            replies = [row[:n] for row, n in zip(made[:, width:].tolist(), lengths[:, turn], strict=True)]
            texts = trainer.processing_class.batch_decode(replies, skip_special_tokens=True)
            earned += [score(text) for text in texts]
            for completion, tokens, reply in zip(completions, masks, replies, strict=True):
                answer = self._answer if turn + 1 < self._work.turns else []
                completion += reply + answer
                tokens += [1] * len(reply) + [0] * len(answer)
        model.train()
        return {
            "prompt_ids": opening,
            "completion_ids": completions,
            "logprobs": None,
            "env_mask": masks,
            "earned": earned.tolist(),
        }


class Given:
    """A ``rollout_func`` that generates nothing: the same episodes every time."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self._trajectories = trajectories

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """What was sampled elsewhere."""
        out: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "earned": [], "logprobs": None}
        for trajectory in self._trajectories:
            start = int(np.argmax(trajectory.action_mask))
            out["prompt_ids"].append(trajectory.token_ids[:start].tolist())
            out["completion_ids"].append(trajectory.token_ids[start:].tolist())
            out["env_mask"].append(trajectory.action_mask[start:].astype(int).tolist())
            out["earned"].append(trajectory.total_reward)
        return out


def reward(completions: list[Any], earned: list[float] | None = None, **_: Any) -> list[float]:
    """What the rollout says, else the score of the only reply."""
    return earned if earned is not None else [score(completion[0]["content"]) for completion in completions]


def make_trl(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    work: Work,
    folder: str,
    steps: int,
    micro_batch: int,
    generation_batch: int,
    rollout: Any = None,
    clock: Clock = time.perf_counter,
    **settings: Any,
) -> Any:
    """A GRPOTrainer whose ``generate_s`` is the time that it took to generate, all its life.

    Args:
        model: It becomes the trainer's.
        tokenizer: Changed: its end of sequence becomes a token that the model does not have, so none is ever sampled.
        work: What an iteration is.
        folder: For what it writes.
        steps: Iterations.
        micro_batch: Episodes of a micro-batch.
        generation_batch: Episodes that are generated together.
        rollout: Its ``rollout_func``.
        clock: For ``generate_s``.
        settings: More of ``GRPOConfig``'s.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    class Timed(GRPOTrainer):  # type: ignore[misc]
        generate_s = 0.0

        def _generate(self, prompts: Any) -> Any:
            began = clock()
            made = super()._generate(prompts)
            self.generate_s += clock() - began
            return made

    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    chosen = {
        "output_dir": folder,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": work.episodes // micro_batch,
        "steps_per_generation": generation_batch // micro_batch,
        "num_generations": work.group,
        "max_completion_length": work.longest,
        "max_steps": steps,
        "loss_type": "dapo",
        "scale_rewards": "none",
        "epsilon": CLIP,
        "beta": 0.0,
        "num_iterations": 1,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "optim": "adamw_torch_fused",
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "shuffle_dataset": False,
        "logging_steps": 10**9,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return Timed(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(**{**chosen, **settings}),
        train_dataset=Dataset.from_dict({"prompt": [[user(question(number))] for number in range(work.tasks)]}),
        processing_class=tokenizer,
        rollout_func=rollout,
    )


def sizes(work: Work, micro_batch: int, generation_batch: int) -> dict[str, int]:
    """Sizes that TRL takes: no larger than the work, whole groups, whole micro-batches.

    Raises:
        SystemExit: The sizes do not divide each other.
    """
    generation_batch = min(generation_batch, work.episodes)
    micro_batch = min(micro_batch, generation_batch)
    if work.episodes % generation_batch or generation_batch % micro_batch or generation_batch % work.group:
        raise SystemExit(
            f"{work.episodes} episodes in groups of {work.group} cannot be generated {generation_batch} at a time and "
            f"learned from {micro_batch} at a time: choose powers of 2"
        )
    return {"micro_batch": micro_batch, "generation_batch": generation_batch}


class Between(TrainerCallback):
    """Times TRL's steps, and calls something after each."""

    def __init__(self, trainer: Any, after: Callable[[dict[str, float]], None], clock: Clock) -> None:
        self._trainer, self._after, self._clock = trainer, after, clock
        self._began = self._generated = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """A step begins with its generation."""
        self._began, self._generated = self._clock(), self._trainer.generate_s

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer has taken its step."""
        seconds, generate = self._clock() - self._began, self._trainer.generate_s - self._generated
        self._after({"generate": generate, "update": seconds - generate})


# ------------------ is it the same loss?


def compare_losses(trainer: Any, model: PreTrainedModel, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The losses of both sides and how far their gradients are apart, on the same episodes and old log-probabilities.

    Args:
        trainer: TRL's, not started; its model has the weights of ``model``.
        model: For this side.
        trajectories: Episodes, group by group.
    """
    given = columns(trajectories)
    noise = np.random.default_rng(0).normal(0.0, 0.2, len(given["old"]))  # so that the clipping bites
    given["old"] = (given["old"] + noise).astype(np.float32)

    gradients: dict[str, Tensor] = {}
    learner = Learner(model, optimizer=OptimizerSettings(lr=0.0, weight_decay=0.0, grad_clip=None))
    for name, parameter in learner.actor.lm.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradients.update({name: p.grad.clone()}))
    ours = learner.update_actor(trajectories, given, surrogate)["loss"]

    usual, trainer.rollout_func = trainer.rollout_func, Given(trajectories)
    trainer.model.train()
    inputs = trainer._generate_and_score_completions([{"prompt": [user("")]} for _ in trajectories])
    old, offset = torch.zeros(inputs["completion_ids"].shape), 0
    for row, trajectory in zip(old, trajectories, strict=True):
        where = np.flatnonzero(trajectory.action_mask)
        row[torch.from_numpy(where - where[0])] = torch.from_numpy(given["old"][offset : offset + len(where)])
        offset += len(where)
    inputs["old_per_token_logps"] = old
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation  # as training sets it
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    theirs = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    apart = sum(float((gradients[name] - grad).square().sum()) for name, grad in theirs.items()) ** 0.5
    size = sum(float(grad.square().sum()) for grad in theirs.values()) ** 0.5
    trainer.model.zero_grad(set_to_none=True)
    trainer.rollout_func = usual
    trainer._metrics["train"].clear()
    return {
        "ours": ours,
        "trl": float(loss.detach()),
        "apart": abs(ours - float(loss.detach())),
        "gradients_apart": apart / size,
    }


# ------------------ the comparison of time


def compare(work: Work, shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides in turns; medians of the seconds and of the ratios."""
    tokenizer = make_tokenizer()
    model = shape.build(tokenizer)
    ours = Ours(model, tokenizer, work, options.threads, options.micro_batch, options.running, options.clock)
    answer = Renderer(tokenizer).bridge((user(ANSWER),), after=0)
    rollout = None if work.turns == 1 else Rollout(work, answer)
    seconds: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
    with tempfile.TemporaryDirectory() as folder, settled():
        trainer = make_trl(
            shape.build(tokenizer),
            make_tokenizer(),
            work,
            folder,
            options.rounds + 1,
            **sizes(work, options.trl_micro_batch, options.trl_generation_batch),
            rollout=rollout,
            clock=options.clock,
        )
        first = ours.collect(work.lengths(0))
        loss = compare_losses(trainer, model, first[: 4 * work.group])
        for name in ("apart", "gradients_apart"):
            if not loss[name] < options.tolerance:
                raise SystemExit(f"{work.name}: the losses are not the same: {loss}")
        ours.learn(first)

        def after(taken: dict[str, float]) -> None:
            number = len(seconds["trl"]) + 1
            seconds["trl"].append(taken)
            seconds["ours"].append(ours.iterate(number))
            if rollout is not None:
                rollout.begin(number + 1)

        if rollout is not None:
            rollout.begin(1)
        trainer.add_callback(Between(trainer, after, options.clock))
        trainer.train()
    ours.close()
    return summary(work.name, {side: rounds[1:] for side, rounds in seconds.items()}) | {  # the first warms up
        "threads": options.threads,
        "trl": sizes(work, options.trl_micro_batch, options.trl_generation_batch),
        "episodes": work.episodes,
        "new_tokens": int(work.lengths(1).sum()),
        "loss": loss,
    }


def summary(name: str, seconds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Medians over the rounds.

    Args:
        name: Of the work.
        seconds: Of the parts of each round, for ``ours`` and ``trl``.
    """

    def ratio(parts: Sequence[str]) -> list[float]:
        pairs = zip(seconds["ours"], seconds["trl"], strict=True)
        return [sum(mine[part] for part in parts) / sum(theirs[part] for part in parts) for mine, theirs in pairs]

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


def tune(work: Work, shape: Shape, options: argparse.Namespace) -> list[dict[str, Any]]:
    """TRL alone, with several settings: the medians of its seconds."""
    results = []
    ways: list[dict[str, Any]] = [{"micro_batch": size} for size in (8, 16, 32, 64, 128, 256) if size <= work.episodes]
    ways += [{"generation_batch": size} for size in (32, 64, 128, 256) if size <= work.episodes]
    ways += [{"bf16": True}, {"attention": "eager"}]
    if work.turns == 1:
        ways += [{"use_transformers_continuous_batching": True}]
    answer = Renderer(make_tokenizer()).bridge((user(ANSWER),), after=0)
    for way in ways:
        settings = {"micro_batch": options.trl_micro_batch, "generation_batch": options.trl_generation_batch, **way}
        tokenizer = make_tokenizer()
        model = shape.build(tokenizer)
        model.set_attn_implementation(settings.pop("attention", "sdpa"))
        taken: list[dict[str, float]] = []
        settings |= sizes(work, settings["micro_batch"], settings["generation_batch"])
        rollout = None if work.turns == 1 else Rollout(work, answer)
        with tempfile.TemporaryDirectory() as folder, settled():
            trainer = make_trl(
                model, tokenizer, work, folder, options.rounds + 1, rollout=rollout, clock=options.clock, **settings
            )

            def after(parts: dict[str, float], taken: Any = taken, rollout: Any = rollout) -> None:
                taken.append(parts)
                if rollout is not None:
                    rollout.begin(len(taken))

            trainer.add_callback(Between(trainer, after, options.clock))
            trainer.train()
        parts = {part: round(statistics.median(one[part] for one in taken[1:]), 3) for part in ("generate", "update")}
        results.append({"benchmark": f"tune {work.name}", **way, **parts, "sum": round(sum(parts.values()), 3)})
        print(json.dumps(results[-1]), flush=True)
    return results


# ------------------ the comparison of memory


def made_up(work: Work, vocabulary: int, tokenizer: PreTrainedTokenizerFast) -> list[Trajectory]:
    """Episodes that nobody sampled: random replies, group by group."""
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
        sampled = np.array(turn_id) >= 0
        trajectories.append(
            Trajectory(
                token_ids=np.array(tokens, np.int32),
                action_mask=sampled,
                logprobs=np.where(sampled, -np.log(vocabulary), 0.0).astype(np.float32),
                weight_version=np.where(sampled, 0, -1).astype(np.int32),
                turn_id=np.array(turn_id, np.int32),
                turn_rewards=rng.random(work.turns),
                terminated=True,
                truncated=False,
                status=Status.COMPLETED,
                group_id=str(number // work.group),
            )
        )
    return trajectories


@contextmanager
def peak() -> Iterator[dict[str, float]]:
    """How many MiB the resident set of this process grew in the block, at its highest."""

    def status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    if sys.platform != "linux":
        raise SystemExit("memory: the peak of the resident set is read from /proc, which only Linux has")
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    found = {"before": status("VmRSS")}
    yield found
    found["peak"] = status("VmHWM") - found["before"]


def memory_of(side: str, work: Work, shape: Shape, options: argparse.Namespace) -> dict[str, float]:
    """The peak of the second update of one side, in MiB, and its seconds."""
    tokenizer = make_tokenizer()
    model = shape.build(tokenizer)
    vocabulary = model.config.vocab_size
    trajectories = made_up(work, vocabulary, tokenizer)
    found: dict[str, float] = {}
    if side == "ours":
        settings = OptimizerSettings(lr=LR, weight_decay=0.0, grad_clip=1.0)
        longest = max(len(trajectory.token_ids) for trajectory in trajectories)
        learner = Learner(model, optimizer=settings, max_tokens_per_micro_batch=longest * len(trajectories))
        del model
        for _ in range(2):
            with peak() as found:
                began = time.perf_counter()
                learner.update_actor(trajectories, columns(trajectories), surrogate)
                found["seconds"] = time.perf_counter() - began
        return found

    class Watch(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            nonlocal found
            self.block = peak()
            found = self.block.__enter__()
            self.began = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            found["seconds"] = time.perf_counter() - self.began
            self.block.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder:
        whole = sizes(work, work.episodes, work.episodes)
        trainer = make_trl(model, tokenizer, work, folder, 2, rollout=Given(trajectories), **whole)
        trainer.add_callback(Watch())
        trainer.train()
    return found


def compare_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Each side in a process of its own."""
    found = {}
    for side in ("ours", "trl"):
        command = [sys.executable, __file__, "--memory-of", side, "--threads", str(options.threads)]
        command += ["--smoke"] if options.smoke else []
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[side] = json.loads(done.stdout.splitlines()[-1])
    return {
        "benchmark": "memory",
        "ratio": round(found["ours"]["peak"] / found["trl"]["peak"], 3),
        "wanted": WANTED["memory"],
        "peak_mib": {side: round(numbers["peak"]) for side, numbers in found.items()},
        "before_mib": {side: round(numbers["before"]) for side, numbers in found.items()},
        "seconds": {side: round(numbers["seconds"], 2) for side, numbers in found.items()},
    }


def main() -> None:
    """Print one line for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", choices=[*WANTED, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="for both sides")
    parser.add_argument("--micro-batch", type=int, default=4096, help="tokens of one of ours")
    parser.add_argument("--trl-micro-batch", type=int, default=32, help="episodes of one of TRL's")
    parser.add_argument("--trl-generation-batch", type=int, default=256, help="episodes that TRL generates together")
    parser.add_argument("--running", type=int, default=256, help="episodes that ours has in flight")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="how far losses and gradients may be apart")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds (one thread, on a shared machine)")
    parser.add_argument("--tune", action="store_true", help="TRL alone, with several settings")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and little work: does it run?")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--memory-of", choices=["ours", "trl"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cpu_time and options.threads > 1:
        parser.error("--cpu-time adds up all threads, those that only wait included: use it with --threads 1")
    options.clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(options.threads)
    small = {"tasks": 2, "group": 2} if options.smoke else {}
    if options.memory_of:
        work = replace(WORKS["single"], **{"tasks": 4, **small})
        shape = replace(TINY, vocabulary=2000) if options.smoke else Shape(vocabulary=150_000)
        print(json.dumps(memory_of(options.memory_of, work, shape, options)))
        return
    results: list[dict[str, Any]] = []
    for what in options.what or list(WANTED):
        if what == "memory":
            results.append(compare_memory(options))
        elif options.tune:
            results += tune(replace(WORKS[what], **small), TINY if options.smoke else Shape(), options)
            continue
        else:
            results.append(compare(replace(WORKS[what], **small), TINY if options.smoke else Shape(), options))
        print(json.dumps(results[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
