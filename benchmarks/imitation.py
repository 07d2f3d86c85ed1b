"""Parts of benchmarks in which a model imitates a scripted expert, is trained by PPO, and plays held-out tasks.

A policy is a folder, which is there as a whole or not at all; beside the model it has a file of what it took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.curves import learned, saved
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
from trainers.rollout.demonstrations import Demonstration, Example, encode
from trainers.rollout.renderer import Renderer
from trainers.run import assemble
from trainers.serving.local_policy import LocalPolicy
from trainers.sft import fit
from trainers.trajectory import Trajectory, solved

#: How a policy was made: by imitation, by PPO after that.
IMITATION, REINFORCEMENT = "imitation", "ppo"
#: Beside a policy: what it took.
_COSTS = "costs.json"
#: Episodes that are played at the same time.
_TOGETHER = 32


@dataclass(frozen=True)
class Axis:
    """An environment to play a policy in."""

    env: str
    options: Mapping[str, Any]


# ---------------------------------------------------------------------- the command line


def numbers(text: str) -> list[int]:
    """Read integers with commas between them."""
    return [*map(int, text.split(","))]


def add_arguments(parser: argparse.ArgumentParser, name: str, *, tasks: int) -> None:
    """Add what the benchmarks have in common; ``name`` is that of their folder and of their results."""
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2], metavar="0,1,2")
    parser.add_argument("--phases", type=_phases, default=[IMITATION, REINFORCEMENT], metavar="imitation,ppo")
    parser.add_argument("--tasks", type=int, default=tasks, help="held-out tasks to play (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--folder", type=Path, default=Path("outputs", name), help="where policies are")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results", f"{name}.jsonl"))
    parser.add_argument("--report", action="store_true", help="print the results that are there")


def _phases(text: str) -> list[str]:
    phases = text.split(",")
    if unknown := [phase for phase in phases if phase not in (IMITATION, REINFORCEMENT)]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {IMITATION}, {REINFORCEMENT}")
    return phases


def rows_of(results: Path, **expected: Any) -> list[dict[str, Any]]:
    """Return the lines of results with the expected settings."""
    return [row for row in saved(results) if all(row[name] == value for name, value in expected.items())]


# ---------------------------------------------------------------------- folders


def keep(model: Path, write: Callable[[Path], Any], costs: Mapping[str, Any]) -> None:
    """Keep a policy and what it took, whole or not at all."""
    unfinished = model.with_name(f"{model.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write(unfinished)
    (unfinished / _COSTS).write_text(json.dumps(costs))
    unfinished.replace(model)


def costs_of(model: Path) -> dict[str, Any]:
    """Return what a policy took: tokens, seconds, losses; nothing where no policy is there."""
    file = model / _COSTS
    costs: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return costs


def seconds_since(began: float) -> dict[str, float]:
    """Return the seconds since a time of the monotonic clock, as a part of what a policy took."""
    return {"seconds": round(time.monotonic() - began, 1)}


# ---------------------------------------------------------------------- before training


def make_start(
    folder: Path,
    talks: Iterable[Demonstration],
    shape: Mapping[str, int],
    *,
    words: str,
    context: int,
    seed: int,
    chat_template: str = tiny.CHATML,
) -> None:
    """Keep a model of random weights with a tokenizer of its own.

    Args:
        folder: Where it is kept.
        talks: Conversations that the vocabulary is made of.
        shape: Of the model: keys of the configuration's section ``model``.
        words: A regular expression; no token goes beyond a match of it.
        context: Positions that an episode may have.
        seed: Of the weights.
        chat_template: Of the tokenizer.
    """
    rest: dict[str, Any] = dict(shape)
    size = rest.pop("vocab_size")
    tokenizer = tiny.build_tokenizer(texts_of(talks), size, chat_template=chat_template, words=words)
    eos = tokenizer.eos_token_id
    built = tiny.build_model(len(tokenizer), max_context=context, eos_token_id=eos, seed=seed, **rest)
    keep(folder, lambda unfinished: tiny.save(unfinished, built, tokenizer), {})


def texts_of(talks: Iterable[Demonstration]) -> Iterator[str]:
    """Yield the texts of messages, each with its role."""
    return (f"{message['role']}\n{text_of(message)}" for talk in talks for message in talk.messages)


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


def encoded(talks: Iterable[Demonstration], encoder: Encoder, tokens: int) -> list[Example]:
    """Return conversations in a model's tokens, no more than are needed to have so many."""
    examples, count = list[Example](), 0
    for example in map(encoder, talks):
        examples.append(example)
        count += len(example.trajectory.token_ids)
        if count >= tokens:
            break
    return examples


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


# ---------------------------------------------------------------------- training


def settings(axis: Axis, folder: Path, *, device: str, seed: int) -> list[str]:
    """Return the overrides of a training, by imitation or by PPO, in an environment."""
    return [
        *(f"env.id={axis.env}", f"env.kwargs={json.dumps(axis.options)}", f"model.device={device}"),
        *(f"trainer.seed={seed}", f"trainer.default_local_dir={folder}", "trainer.logger=[jsonl]"),
        *(("trainer.threads=1",) if device == "cpu" else ()),
    ]


def imitate(
    model: Path,
    examples: Sequence[Example],
    configure: Callable[[int], SFTConfig],
    *,
    tokens: int,
    prediction: float,
    context: int,
    began: float,
) -> None:
    """Imitate conversations and keep the policy.

    Args:
        model: Where the policy is kept.
        examples: The conversations; they are repeated until the tokens are reached: in full batches, so by less than
            one more.
        configure: Returns the configuration of a training of so many steps.
        tokens: Tokens of the conversations that are imitated.
        prediction: The weight of the tokens that are no reply's.
        context: Positions that an episode may have.
        began: Since when the seconds that it took are counted, on the monotonic clock.
    """
    total = sum(len(example.trajectory.token_ids) for example in examples)
    batch = configure(1).sft.batch_size
    config = configure(math.ceil(tokens / (total / len(examples)) / batch))
    seed = config.trainer.seed
    policy = load_policy(config.model, lambda: iter(()), max_context=context, seed=seed)
    if config.model.device == "cpu":
        set_threads(policy, 1)
    losses: list[float] = []
    fit(
        policy,
        [predicted(example, prediction) for example in examples],
        config.sft,
        config.model,
        config.trainer,
        seed=seed,
        on_step=lambda step, metrics: losses.append(metrics["loss"]),
    )
    loss = [round(float(np.mean(part)), 4) for part in np.array_split(losses, min(10, len(losses)))]
    total = round(total / len(examples) * batch * len(losses))
    costs = {"tokens": total, "demonstrations": len(examples), "loss": loss, **seconds_since(began)}
    keep(model, lambda unfinished: tiny.save(unfinished, policy.model, policy.tokenizer), costs)


def reinforce(
    model: Path,
    overrides: Callable[[Path], Sequence[str]],
    tokens: int,
    measure: Callable[[Trajectory], float] = solved,
) -> None:
    """Train by PPO and keep the policy.

    Args:
        model: Where the policy is kept.
        overrides: Returns those of a run in a folder.
        tokens: Tokens that are sampled.
        measure: Of an episode; the curve is its mean.
    """
    with tempfile.TemporaryDirectory() as temporary:
        began, made = time.monotonic(), Path(temporary) / "model"
        sampled, curve = asyncio.run(_trained(overrides(Path(temporary) / "run"), tokens, made, measure))
        costs = {"tokens": sampled, "curve": curve, **seconds_since(began)}
        keep(model, lambda unfinished: shutil.copytree(made, unfinished, dirs_exist_ok=True), costs)


async def _trained(
    overrides: Sequence[str], budget: int, model: Path, measure: Callable[[Trajectory], float]
) -> tuple[int, list[list[float]]]:
    """Train until so many tokens are sampled; return how many, and ``[tokens, mean measure]`` by iteration."""
    tokens, curve = 0, list[list[float]]()
    async with assemble(resolve(overrides)[0]) as run:
        while tokens < budget:
            phases = run.reporter.phases()
            with phases("rollout"):
                batch = await run.collector.next_batch()
            metrics, _ = await iterate(run, batch, phases)
            tokens += int(metrics["perf/sampled_tokens"])
            mean = float(np.mean([measure(episode) for episode in batch.trajectories]))
            print(f"PPO: {tokens:,} of {budget:,} sampled tokens, {mean:.3f}", file=sys.stderr, flush=True)
            curve.append([tokens, round(mean, 4)])
            run.iteration += 1
        run.learner.export_hf(model, tokenizer=run.tokenizer)
    return tokens, curve


# ---------------------------------------------------------------------- what a policy does


def play(
    model: str, axis: Axis, indices: Sequence[int], *, reply: int, device: str, temperature: float = 0.0
) -> dict[str, Any]:
    """Play tasks, greedily by default.

    Returns:
        ``solved``, a digit a task (``-`` where the episode failed), and the mean ``return``.
    """
    records = recorded(model, axis, indices, reply=reply, device=device, temperature=temperature)
    good = [record.total for record in records if not record.failed]
    return {
        "solved": "".join("-" if record.failed else str(int(bool(record.success))) for record in records),
        "return": round(float(np.mean(good)), 4) if good else None,
    }


@contextmanager
def lengthened(model: str, positions: int) -> Iterator[str]:
    """Lend a policy that reads up to ``positions`` tokens: a copy of its folder, longer than what it was trained on.

    Its positions are rotations, so each has one; what the policy does with them is to be seen.
    """
    config = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / Path(model).name
        shutil.copytree(model, copy)
        config["max_position_embeddings"] = max(positions, config["max_position_embeddings"])
        (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield str(copy)


def recorded(
    model: str, axis: Axis, indices: Sequence[int], *, reply: int, device: str, temperature: float = 0.0
) -> list[Record]:
    """Play tasks, greedily by default; return their records, in the order of the tasks."""
    return asyncio.run(_records(model, axis, indices, reply, device, temperature))


async def _records(
    model: str, axis: Axis, indices: Sequence[int], reply: int, device: str, temperature: float
) -> list[Record]:
    policy = LocalPolicy(
        model, temperature=temperature, max_response_length=reply, concurrency=_TOGETHER, device=device
    )
    records: list[Record] = []
    try:
        await play_all(
            jobs(indices, 1, 0),
            lambda: make(axis.env, **axis.options),
            policy,
            on_record=records.append,
            concurrency=_TOGETHER,
        )
    finally:
        await policy.aclose()
    return sorted(records, key=lambda record: record.place)


def replies(model: str, talks: Iterable[ExpertTalk], *, device: str) -> Iterator[tuple[list[bool], list[bool]]]:
    """Compare a policy's likeliest tokens with the expert's conversations, each after the expert's beginning.

    Yields:
        For each conversation whether its replies are right to the letter, and whether the tools of its calls are right.
    """
    import torch
    from transformers import AutoModelForCausalLM

    encoder = Encoder(model)
    place = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.to(place).eval()
    for talk in talks:
        trajectory = encoder(talk.demonstration).trajectory
        tokens = trajectory.token_ids.astype(np.int64)
        with torch.no_grad():
            likeliest = network(torch.from_numpy(tokens).to(place)[None]).logits[0, :-1].argmax(-1).cpu().numpy()
        right = np.append(False, likeliest == tokens[1:])
        spans = spans_of(trajectory.action_mask)
        lengths = [encoder.name_length(tokens[span], name) for span, name in zip(spans, talk.tools, strict=True)]
        named = [right[span][:length] for span, length in zip(spans, lengths, strict=True) if length]
        yield [bool(right[span].all()) for span in spans], [bool(name.all()) for name in named]


def spans_of(actions: NDArray[np.bool_]) -> list[slice]:
    """Return the places of replies, by ``actions``, bool ``[tokens]``: there are tokens of others between them."""
    edges = np.flatnonzero(np.diff(actions, prepend=False, append=False))
    return [slice(start, end) for start, end in edges.reshape(-1, 2).tolist()]


@dataclass(frozen=True)
class ExpertTalk:
    """The expert's conversation about a task, and the tool that each of its replies names, empty where none."""

    demonstration: Demonstration
    tools: tuple[str, ...]


def expert_talk(env: Any, index: int) -> ExpertTalk:
    """Play a task with the expert."""
    env.reset(seed=0, options={"task_index": index})
    names, tools = [], getattr(env, "format", None)  # of environments with tools
    while not env.state.done:
        reply = env.demonstration(np.random.default_rng(0))
        calls = tools.parse(reply).calls if tools else ()
        names.append(calls[0]["function"]["name"] if calls else "")
        env.step(reply)
    messages = env.state.messages
    while messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    return ExpertTalk(Demonstration(messages, (1.0,) * len(names)), tuple(names))
