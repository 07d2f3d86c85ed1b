"""Demonstrations, policies by imitation and by PPO, and what they do on projects that none was trained on."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import imitation
from benchmarks.imitation import IMITATION, REINFORCEMENT, Axis, ExpertTalk
from textenvs.messages import assistant
from textenvs.registry import make
from textenvs.tools.formats import call
from textenvs.tools.toolbox import ToolResult
from trainers.command_line import resolve
from trainers.config import SFTConfig
from trainers.rollout.demonstrations import Demonstration

from .env import CORRECTIONS, careless_plan, plan, printed

ENV = "benchmarks.terminal_learning.env:SmallTerminal"
#: The seed of the projects that no policy is trained on.
HELD_OUT = 1000
#: As of a tiny model, but with marks in a row (`","`), spaces in a row, and with `_` after a word: fewer tokens.
_WORDS = r" ?\p{L}+_?|\p{N}| +(?= )|\s|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark, for a core of a CPU.

    Args:
        kinds: The kinds of faults of the template ``pipeline``.
        model: The shape of a new model, which copies from the start: names of projects that it has not seen can be
            read, but not learned by heart. Or the path of a model.
        context: Positions that an episode may have.
        reply: Tokens that a reply may have.
        demonstrations: Conversations of the expert; they are repeated.
        prediction: The weight of the tokens that are no reply's, where a reply's count 1.
        imitation: Overrides of ``trainers.sft``.
        practised: The kinds that PPO practises: those that imitation learns. In the others a reward is mostly luck.
        careless: Conversations of a careless policy that are imitated once before PPO, and the overrides for it.
        reinforcement: Overrides of ``trainers.ppo``.
        credit: Further ones, by what a reply is paid for: the whole episode's return, what follows its turn, or what
            follows it against other replies in the same state.
    """

    kinds: tuple[str, ...] = tuple(CORRECTIONS)
    model: tuple[tuple[str, int], ...] | str = (
        *(("hidden", 128), ("layers", 4), ("heads", 2), ("kv_heads", 2), ("copying", True), ("vocab_size", 2048)),
    )
    context: int = 1024
    reply: int = 80
    demonstrations: int = 600
    prediction: float = 0.3
    imitation: tuple[str, ...] = ("sft.batch_size=4", "sft.lr=2e-3", "sft.weight_decay=0.1")
    practised: tuple[str, ...] = ("off-by-one", "wrong-unit")
    careless: tuple[int, tuple[str, ...]] = (400, ("sft.batch_size=8", "sft.lr=5e-4", "sft.weight_decay=0"))
    reinforcement: tuple[str, ...] = (
        *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1", "actor.entropy_coeff=0"),
        *("data.val_size=1", "actor.lr=1e-4"),
    )
    credit: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("episode", ("algorithm.adv_estimator=grpo", "rollout.groups_per_batch=16", "rollout.n=4")),
        ("turns", ("algorithm.adv_estimator=turn_grpo", "rollout.groups_per_batch=16", "rollout.n=4")),
        ("forks", ("algorithm.adv_estimator=fork", "rollout.groups_per_batch=24", "rollout.n=1")),
    )

    @property
    def digest(self) -> str:
        """A hash of all settings: policies and results of others are not reused."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]

    def axis(self, seed: int, *, is_practice: bool = False, is_checked: bool = True) -> Axis:
        """Return the environment with the projects of a seed: of all kinds, or of those that PPO practises."""
        kinds = self.practised if is_practice else self.kinds
        return Axis(ENV, {"kinds": kinds, "seed": seed, "is_checked": is_checked})


#: By the option ``--model``: a new one of 1.3 million parameters, or SmolLM2-135M-Instruct.
MODELS = {
    "tiny": Settings(),
    "smollm2": Settings(
        model="smollm2",
        context=2048,
        prediction=0.0,
        imitation=("sft.batch_size=4", "sft.lr=2e-4", "sft.weight_decay=0"),
        careless=(200, ("sft.batch_size=4", "sft.lr=5e-5", "sft.weight_decay=0")),
        reinforcement=("actor.lr_schedule=constant", "actor.mini_batches=1", "data.val_size=1", "actor.lr=1e-6"),
    ),
}


@dataclass(frozen=True)
class Policy:
    """A policy that is trained.

    Args:
        phase: How it is made.
        seed: Of its weights, its demonstrations and its projects.
        imitated: Tokens of conversations that are imitated.
        sampled: Tokens that PPO samples after that; 0 for the careless policy that it starts from.
        credit: What a reply is paid for in PPO: a name of :attr:`Settings.credit`; empty where nothing is sampled.
    """

    phase: str
    seed: int
    imitated: int
    sampled: int = 0
    credit: str = ""

    @property
    def name(self) -> str:
        return f"{self.phase}-{self.imitated}-{self.sampled}-{self.seed}{self.credit and f'-{self.credit}'}"


class Runs:
    """Policies and their files, in a folder.

    Args:
        settings: The settings.
        folder: Where policies and demonstrations are kept.
        tasks: How many held-out projects a policy is played on.
    """

    def __init__(self, settings: Settings, folder: Path, tasks: int = 60) -> None:
        self.settings, self.folder, self.tasks = settings, folder / settings.digest, tasks

    # ------------------------------------------------------------------ before

    def talks(self, seed: int, count: int, *, is_careless: bool = False) -> list[tuple[str, ExpertTalk]]:
        """Return the expert's conversations about the first projects of a seed, each with its kind of faults.

        Args:
            seed: Of the projects.
            count: How many conversations.
            is_careless: Whether they are those of a careless policy.
        """
        file = self.folder / f"{'careless' if is_careless else 'talks'}-{seed}-{count}.jsonl"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".tmp")
            with unfinished.open("w") as lines:
                rows = _played(self.settings, seed, count, is_careless=is_careless)
                lines.writelines(f"{json.dumps(row)}\n" for row in rows)
            unfinished.replace(file)
        rows = map(json.loads, file.read_text().splitlines())
        return [(row["kind"], _talk(row["messages"], row["tools"])) for row in rows]

    def start(self, seed: int) -> str:
        """Return the model that a seed's policies start from, with a vocabulary of its demonstrations."""
        shape, context = self.settings.model, self.settings.context
        if isinstance(shape, str):
            return shape
        folder = self.folder / f"start-{seed}"
        if not folder.exists():
            talks = [talk.demonstration for _, talk in self.talks(seed, self.settings.demonstrations)]
            imitation.make_start(folder, talks, dict(shape), words=_WORDS, context=context, seed=seed)
        return str(folder)

    # ------------------------------------------------------------------ training

    def model(self, policy: Policy) -> Path:
        """Return a policy's folder; made where missing."""
        model = self.folder / policy.name
        if not model.exists():
            make = self._imitate if policy.phase == IMITATION else self._reinforce if policy.sampled else self._spoil
            make(model, policy)
        return model

    def imitation(self, seed: int, steps: int) -> SFTConfig:
        """Return the configuration of the imitation."""
        words = (f"model.path={self.start(seed)}", f"sft.steps={steps}", *self.settings.imitation)
        return resolve([*self._overrides(seed, self.folder), *words], SFTConfig)[0]

    def carelessness(self, policy: Policy, steps: int) -> SFTConfig:
        """Return the configuration of the imitation of a careless policy."""
        model = self.model(Policy(IMITATION, policy.seed, policy.imitated))
        words = (f"model.path={model}", f"sft.steps={steps}", *self.settings.careless[1])
        return resolve([*self._overrides(policy.seed, self.folder), *words], SFTConfig)[0]

    def reinforcement(self, policy: Policy, folder: Path) -> list[str]:
        """Return the overrides of PPO, which starts from the careless policy."""
        model = self.model(Policy(REINFORCEMENT, policy.seed, policy.imitated))
        lengths = (
            f"rollout.max_response_length={self.settings.reply}",
            f"engine.max_context={self.settings.context}",
        )
        words = (f"model.path={model}", "trainer.resume_mode=disable", *lengths)
        credit = dict(self.settings.credit)[policy.credit]
        place = self._overrides(policy.seed, folder, is_practice=True)
        return [*place, *self.settings.reinforcement, *credit, *words]

    def _overrides(self, seed: int, folder: Path, *, is_practice: bool = False) -> list[str]:
        axis = self.settings.axis(seed, is_practice=is_practice)
        return imitation.settings(axis, folder, device="cpu", seed=seed)

    def _imitate(self, model: Path, policy: Policy) -> None:
        began, seed = time.monotonic(), policy.seed
        encoder = imitation.Encoder(self.start(seed))
        talks = (talk.demonstration for _, talk in self.talks(seed, self.settings.demonstrations))
        imitation.imitate(
            model,
            imitation.encoded(talks, encoder, policy.imitated),
            lambda steps: self.imitation(seed, steps),
            tokens=policy.imitated,
            prediction=self.settings.prediction,
            context=self.settings.context,
            began=began,
        )

    def _spoil(self, model: Path, policy: Policy) -> None:
        began, seed = time.monotonic(), policy.seed
        encoder = imitation.Encoder(self.start(seed))
        talks = self.talks(seed, self.settings.careless[0], is_careless=True)
        examples = [encoder(talk.demonstration) for _, talk in talks]
        imitation.imitate(
            model,
            examples,
            lambda steps: self.carelessness(policy, steps),
            tokens=sum(len(example.trajectory.token_ids) for example in examples),
            prediction=0.0,
            context=self.settings.context,
            began=began,
        )

    def _reinforce(self, model: Path, policy: Policy) -> None:
        logging.getLogger("trainers").setLevel(logging.WARNING)
        imitation.reinforce(model, lambda folder: self.reinforcement(policy, folder), policy.sampled)

    # ------------------------------------------------------------------ what a policy does

    def score(self, policy: Policy) -> dict[str, Any]:
        """Return what a policy does on held-out projects.

        Returns:
            ``kinds`` of faults, by project; ``solved`` and ``return``, greedily; after the expert's beginnings which
            ``replies`` are right to the letter, a digit for each reply, and how many ``tools`` are right, of how many.
            ``practised``: what is solved of as many projects of the practised kinds, at temperature 1.
        """
        model, began = str(self.model(policy)), time.monotonic()
        kinds, talks = zip(*self.talks(HELD_OUT, self.tasks), strict=True)
        compared = [*imitation.replies(model, talks, device="cpu")]
        axis, practice = (self.settings.axis(HELD_OUT, is_practice=is_practice) for is_practice in (False, True))
        return {
            "kinds": [*kinds],
            **self._play(model, axis),
            "practised": self._play(model, practice, temperature=1.0)["solved"],
            "replies": ["".join(str(int(right)) for right in replies) for replies, _ in compared],
            "tools": [[sum(tools), len(tools)] for _, tools in compared],
            "took": imitation.costs_of(Path(model)),
            **imitation.seconds_since(began),
        }

    def _play(self, model: str, axis: Axis, *, temperature: float = 0.0) -> dict[str, Any]:
        reply, tasks = self.settings.reply, range(self.tasks)
        return imitation.play(model, axis, tasks, reply=reply, device="cpu", temperature=temperature)


def _played(settings: Settings, seed: int, count: int, *, is_careless: bool) -> Iterator[Mapping[str, Any]]:
    """Yield conversations about the first projects of a seed; no command is run for them."""
    axis, rng = settings.axis(seed, is_checked=False), Random(seed)
    env: Any = make(axis.env, **axis.options)
    with closing(env):
        for index in range(count):
            env.reset(seed=0, options={"task_index": index})
            right = (env.assignment.faults[0].kind, len(plan(env.assignment)))
            talk = recited(env, *(careless_plan(env.assignment, settings.kinds, rng) if is_careless else right))
            yield {"kind": right[0], "messages": talk.demonstration.messages, "tools": talk.tools}


def recited(env: Any, kind: str, count: int) -> ExpertTalk:
    """Return a conversation about the running task as :func:`benchmarks.imitation.expert_talk` plays it.

    The outputs of commands are computed, because a sandbox for each command takes most of the time of playing.

    Args:
        env: The environment, at the beginning of the task.
        kind: The kind of faults that is corrected: another one than the task's leaves its fault.
        count: After how many commands it ends.
    """
    messages = [*env.state.messages]
    commands = plan(env.assignment, kind)[:count]
    for number, (command, output) in enumerate(zip(commands, printed(env.assignment, kind), strict=False)):
        reply = env.format.write("", [call("run", command=command)])
        [made] = env.format.parse(reply, first=number).calls
        messages += [assistant(reply), *env.format.answers([ToolResult(made, output)])]
    messages.append(assistant(env.format.write("", [call("finish")])))
    return _talk(messages, (*("run" for _ in commands), "finish"))


def _talk(messages: Sequence[Any], tools: Sequence[str]) -> ExpertTalk:
    return ExpertTalk(Demonstration(tuple(messages), (1.0,) * len(tools)), tuple(tools))
