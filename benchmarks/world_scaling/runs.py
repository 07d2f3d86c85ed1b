"""A start, demonstrations of so many worlds, imitation, PPO, and what a policy does in held-out worlds."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.curves import learned
from textenvs.evaluate.plan import jobs
from textenvs.evaluate.records import Record
from textenvs.evaluate.runner import run as play_all
from textenvs.messages import text_of
from textenvs.registry import make
from trainers.builders.policy import set_threads
from trainers.command_line import resolve
from trainers.config import SFTConfig
from trainers.models import tiny
from trainers.models.policy import end_token_ids_of, load_tokenizer
from trainers.models.policy import load as load_policy
from trainers.ppo import iterate
from trainers.rollout.demonstrations import Demonstration, Example, encode, play
from trainers.rollout.renderer import Renderer
from trainers.run import assemble
from trainers.serving.local_policy import LocalPolicy
from trainers.sft import fit
from trainers.trajectory import solved

from .scales import AXES, ENV, Scale

#: How a policy was made: of random weights or downloaded, by imitation, by PPO after that.
START, IMITATION, REINFORCEMENT = "start", "imitation", "ppo"
#: Beside a policy: what it took.
_COSTS = "costs.json"
#: Conversations that the vocabulary is made of, and the worlds that they are in; the same for all policies.
_VOCABULARY_TALKS, _VOCABULARY_WORLDS = 1000, 1000
#: As of a tiny model, but with marks in a row (`","`) and with `_` after a word: a fifth fewer tokens.
_WORDS = r" ?\p{L}+_?|\p{N}|\s|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True)
class Axis:
    """An environment to play a policy in."""

    env: str
    options: Mapping[str, Any]


class Runs:
    """Policies of a scale and their files, in a folder.

    Args:
        scale: The settings.
        folder: Where policies and demonstrations are kept.
        tasks: How many tasks a policy is played on, of each axis.
        transfer: Other environments to play it in, options by id.
    """

    def __init__(
        self, scale: Scale, folder: Path, tasks: int = 200, transfer: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.scale, self.folder, self.tasks, self.transfer = scale, folder / scale.digest, tasks, transfer or {}

    def policy(self, phase: str, worlds: int, seed: int) -> str:
        """Return a policy: a folder, or the name of a model that no policy is trained from yet; made where missing."""
        if phase == START:
            return self.start(seed)
        model = self._model(phase, worlds, seed)
        if not model.exists():
            (self.imitate if phase == IMITATION else self.reinforce)(worlds, seed)
        return str(model)

    def costs(self, phase: str, worlds: int, seed: int) -> dict[str, Any]:
        """Return what a policy took: tokens, seconds, losses."""
        file = self._model(phase, worlds, seed) / _COSTS
        costs: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return costs

    def _model(self, phase: str, worlds: int, seed: int) -> Path:
        return self.folder / f"{phase}-{worlds}-{seed}"

    def _keep(self, model: Path, write: Callable[[Path], Any], costs: Mapping[str, Any]) -> None:
        """Keep a policy and what it took, whole or not at all."""
        unfinished = model.with_name(f"{model.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        (unfinished / _COSTS).write_text(json.dumps(costs))
        unfinished.replace(model)

    # ------------------------------------------------------------------ before

    def start(self, seed: int) -> str:
        """Return the model that all policies of a seed start from: one vocabulary, and the same weights."""
        model = self.scale.model
        if isinstance(model, str):
            return model
        folder = self._model(START, 0, seed)
        if not folder.exists():
            shape: dict[str, Any] = dict(model)
            talks = _played(self.scale.training(_VOCABULARY_WORLDS, seed), _VOCABULARY_TALKS, seed)
            tokenizer = tiny.build_tokenizer(_texts(talks), shape.pop("vocab_size"), words=_WORDS)
            eos = tokenizer.eos_token_id
            rest: dict[str, Any] = {"max_context": self.scale.context, "eos_token_id": eos, "seed": seed}
            built = tiny.build_model(len(tokenizer), **shape, **rest)
            self._keep(folder, lambda unfinished: tiny.save(unfinished, built, tokenizer), {})
        return str(folder)

    def demonstrations(self, worlds: int, seed: int) -> list[Example]:
        """Play the expert in a number of worlds; return its conversations in the model's tokens.

        There are as many as the tokens that are imitated take, or :attr:`Scale.demonstrations`.
        """
        examples, tokens = list[Example](), 0
        talks = _played(self.scale.training(worlds, seed), self.scale.demonstrations, seed)
        for example in map(Encoder(self.start(seed)), talks):
            examples.append(example)
            tokens += len(example.trajectory.token_ids)
            if tokens >= self.scale.imitated:
                break
        return examples

    # ------------------------------------------------------------------ training

    def _settings(self, worlds: int, seed: int, folder: Path) -> list[str]:
        kwargs = json.dumps(self.scale.training(worlds, seed))
        return [
            *(f"env.id={ENV}", f"env.kwargs={kwargs}", f"model.device={self.scale.device}", f"trainer.seed={seed}"),
            *(f"trainer.default_local_dir={folder}", "trainer.logger=[jsonl]"),
            *(("trainer.threads=1",) if self.scale.device == "cpu" else ()),
        ]

    def imitation(self, worlds: int, seed: int, steps: int) -> SFTConfig:
        """Return the configuration of the imitation."""
        words = (f"model.path={self.start(seed)}", f"sft.steps={steps}", *self.scale.imitation)
        return resolve([*self._settings(worlds, seed, self.folder), *words], SFTConfig)[0]

    def imitate(self, worlds: int, seed: int) -> None:
        """Imitate the expert in a number of worlds, and keep the policy.

        The conversations are repeated until the imitated tokens are reached: in full batches, so by less than one more.
        """
        began = time.monotonic()
        examples = self.demonstrations(worlds, seed)
        tokens = sum(len(example.trajectory.token_ids) for example in examples)
        batch = self.imitation(worlds, seed, 1).sft.batch_size
        config = self.imitation(worlds, seed, math.ceil(self.scale.imitated / (tokens / len(examples)) / batch))
        policy = load_policy(config.model, lambda: iter(()), max_context=self.scale.context, seed=seed)
        if self.scale.device == "cpu":
            set_threads(policy, 1)
        losses: list[float] = []
        fit(
            policy,
            [predicted(example, self.scale.prediction) for example in examples],
            config.sft,
            config.model,
            config.trainer,
            seed=seed,
            on_step=lambda step, metrics: losses.append(metrics["loss"]),
        )
        loss = [round(float(np.mean(part)), 4) for part in np.array_split(losses, min(10, len(losses)))]
        tokens = round(tokens / len(examples) * batch * len(losses))
        costs = {"tokens": tokens, "demonstrations": len(examples), "loss": loss, **_since(began)}
        model = self._model(IMITATION, worlds, seed)
        self._keep(model, lambda unfinished: tiny.save(unfinished, policy.model, policy.tokenizer), costs)

    def reinforcement(self, worlds: int, seed: int, folder: Path) -> list[str]:
        """Return the overrides of PPO, which starts from the policy that imitates."""
        model = self.policy(IMITATION, worlds, seed)
        lengths = (f"rollout.max_response_length={self.scale.reply}", f"engine.max_context={self.scale.context}")
        words = (f"model.path={model}", "trainer.resume_mode=disable", *lengths)
        return [*self._settings(worlds, seed, folder), *self.scale.reinforcement, *words]

    def reinforce(self, worlds: int, seed: int) -> None:
        """Train by PPO in a number of worlds from the policy that imitates, and keep the policy."""
        logging.getLogger("trainers").setLevel(logging.WARNING)
        with tempfile.TemporaryDirectory() as temporary:
            words = self.reinforcement(worlds, seed, Path(temporary) / "run")
            began, made = time.monotonic(), Path(temporary) / "model"
            tokens, curve = asyncio.run(_trained(words, self.scale.sampled, made))
            costs = {"tokens": tokens, "curve": curve, **_since(began)}
            model = self._model(REINFORCEMENT, worlds, seed)
            self._keep(model, lambda unfinished: shutil.copytree(made, unfinished, dirs_exist_ok=True), costs)

    # ------------------------------------------------------------------ what a policy does

    def axes(self, phase: str, worlds: int, seed: int) -> dict[str, Axis]:
        """Return the environments that a policy is played in: the start only in those where none is trained."""
        names = () if phase == START else AXES
        axes = {name: Axis(ENV, self.scale.played(name, worlds, seed)) for name in names}
        return axes | {env: Axis(env, options) for env, options in self.transfer.items()}

    def score(self, model: str, axis: Axis) -> dict[str, Any]:
        """Return what a policy does on an axis.

        Returns:
            ``solved``, a digit a task (``-`` where the episode failed), greedily; the mean ``return``; and in generated
            worlds what :meth:`replies` returns.
        """
        indices, began = range(self.tasks), time.monotonic()
        records = asyncio.run(_records(self.scale, model, axis, indices))
        good = [record.total for record in records if not record.failed]
        return {
            "solved": "".join("-" if record.failed else str(int(bool(record.success))) for record in records),
            "return": round(float(np.mean(good)), 4) if good else None,
            **(self.replies(model, axis.options, indices) if axis.env == ENV else {}),
            **_since(began),
        }

    def replies(self, model: str, options: Mapping[str, Any], indices: Sequence[int]) -> dict[str, list[list[int]]]:
        """Compare a policy's likeliest tokens with the expert's conversations, each after the expert's beginning.

        Returns:
            For each task how many ``replies`` are right to the letter, and of how many; and of how many of the calls
            the ``tools`` are right.
        """
        import torch
        from transformers import AutoModelForCausalLM

        env, encoder = make(ENV, **options), Encoder(model)
        device = "cuda" if self.scale.device != "cpu" and torch.cuda.is_available() else "cpu"
        network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        network.to(device).eval()
        counts: dict[str, list[list[int]]] = {"replies": [], "tools": []}
        for index in indices:
            talk, names = _expert(env, index)
            trajectory = encoder(talk).trajectory
            tokens = trajectory.token_ids.astype(np.int64)
            with torch.no_grad():
                likeliest = network(torch.from_numpy(tokens).to(device)[None]).logits[0, :-1].argmax(-1).cpu().numpy()
            right = np.append(False, likeliest == tokens[1:])
            spans = spans_of(trajectory.action_mask)
            lengths = [encoder.name_length(tokens[span], name) for span, name in zip(spans, names, strict=True)]
            called = [right[span][:length] for span, length in zip(spans, lengths, strict=True) if length]
            counts["replies"].append([sum(bool(right[span].all()) for span in spans), len(spans)])
            counts["tools"].append([sum(bool(name.all()) for name in called), len(called)])
        return counts


class Encoder:
    """Conversations in a model's tokens."""

    def __init__(self, model: str) -> None:
        section = resolve([f"model.path={model}"])[0].model
        self._tokenizer = load_tokenizer(section, lambda: iter(()))
        self._renderer = Renderer(self._tokenizer, stop_token_ids=end_token_ids_of(section))

    def __call__(self, talk: Demonstration) -> Example:
        return encode(talk, self._renderer, self._tokenizer)

    def name_length(self, reply: NDArray[np.int64], name: str) -> int:
        """Return how many of a reply's first tokens it takes to name a tool; 0 where it does not."""
        if not name:
            return 0
        return next((n for n in range(1, len(reply) + 1) if name in self._tokenizer.decode(reply[:n])), 0)


def predicted(example: Example, weight: float) -> Example:
    """Return a demonstration of which all tokens are learned, and those that are no reply's with a ``weight``.

    A small model has to learn to copy names and ids, and most of those that a conversation repeats are not in replies.
    """
    if not weight:
        return example
    trajectory = example.trajectory
    weights = np.full(len(trajectory.token_ids), weight, np.float32)
    weights[trajectory.actions] = example.weights
    return learned(trajectory, weights)


def spans_of(actions: NDArray[np.bool_]) -> list[slice]:
    """Return the places of replies, by ``actions``, bool ``[tokens]``: there are tokens of others between them."""
    edges = np.flatnonzero(np.diff(actions, prepend=False, append=False))
    return [slice(start, end) for start, end in edges.reshape(-1, 2).tolist()]


def _played(options: Mapping[str, Any], count: int, seed: int) -> Iterator[Demonstration]:
    """Yield conversations of the expert about tasks that a seed draws."""
    with closing(make(ENV, **options)) as env:
        yield from play(env, count, seed=seed)


def _expert(env: Any, index: int) -> tuple[Demonstration, list[str]]:
    """Return the expert's conversation about a task, and the tool that each reply names, empty where none."""
    env.reset(seed=0, options={"task_index": index})
    names = []
    while not env.state.done:
        reply = env.demonstration(np.random.default_rng(0))
        calls = env.format.parse(reply).calls
        names.append(calls[0]["function"]["name"] if calls else "")
        env.step(reply)
    messages = env.state.messages
    while messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    return Demonstration(messages, (1.0,) * len(names)), names


def _texts(talks: Iterator[Demonstration]) -> Iterator[str]:
    return (f"{message['role']}\n{text_of(message)}" for talk in talks for message in talk.messages)


def _since(began: float) -> dict[str, float]:
    return {"seconds": round(time.monotonic() - began, 1)}


async def _trained(overrides: Sequence[str], budget: int, model: Path) -> tuple[int, list[list[float]]]:
    """Train until so many tokens are sampled; return how many, and ``[tokens, share solved]`` by iteration."""
    tokens, curve = 0, list[list[float]]()
    async with assemble(resolve(overrides)[0]) as run:
        while tokens < budget:
            phases = run.reporter.phases()
            with phases("rollout"):
                batch = await run.collector.next_batch()
            metrics, _ = await iterate(run, batch, phases)
            tokens += int(metrics["perf/sampled_tokens"])
            curve.append([tokens, round(float(np.mean([solved(episode) for episode in batch.trajectories])), 4)])
            print(
                f"PPO: {tokens:,} of {budget:,} sampled tokens, {curve[-1][1]:.1%} solved", file=sys.stderr, flush=True
            )
            run.iteration += 1
        run.learner.export_hf(model, tokenizer=run.tokenizer)
    return tokens, curve


async def _records(scale: Scale, model: str, axis: Axis, indices: Sequence[int]) -> list[Record]:
    length, together = scale.reply, 32
    policy = LocalPolicy(model, temperature=0.0, max_response_length=length, concurrency=together, device=scale.device)
    records: list[Record] = []
    try:
        await play_all(
            jobs(indices, 1, 0),
            lambda: make(axis.env, **axis.options),
            policy,
            on_record=records.append,
            concurrency=together,
        )
    finally:
        await policy.aclose()
    return sorted(records, key=lambda record: record.place)
