"""A policy that imitates a careless writer, policies by PPO after that, and what they do in lives of no training."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import imitation
from benchmarks.imitation import IMITATION, Axis
from textenvs.registry import make
from trainers.command_line import resolve
from trainers.config import SFTConfig
from trainers.rollout.demonstrations import Demonstration, play
from trainers.trajectory import Trajectory

ENV = "benchmarks.sessions_learning.env:SmallSessions"
#: The seed of the lives that no policy is trained on.
HELD_OUT = 1000
#: How a policy was made that is a script.
SCRIPT = "script"
#: A code is four tokens of two characters, and what it is the code of one.
_WORDS = r"unknown| was |[A-Z][a-z]*| [a-z0-9](?![a-z0-9])| \d\d(?![a-z0-9])|[a-z0-9]{2}|[\s\S]"
#: Nothing stands between a question and its answer, so that the heads that copy begin where the question ends.
_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
)
#: Conversations that the vocabulary is made of.
_VOCABULARY = 4_000
#: Of a life: numbers that the results keep.
MEASURES = (
    *("score", "return", "leaks", "regret", "regret_to_expert", "written"),
    *("right", "most", "least", "before", "promise"),
)


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark, for a core of a CPU.

    Args:
        writer: Who writes the notebooks that are imitated: one of :data:`benchmarks.sessions_learning.env.WRITERS`.
        model: The shape of the model, which copies from the start.
        context: Positions that a session may have.
        reply: Tokens that a reply may have.
        imitated: Tokens of conversations that are imitated.
        demonstrations: How many conversations are played for that, at most; they are repeated.
        imitation: Overrides of ``trainers.sft``.
        sampled: Tokens that PPO samples.
        reinforcement: Overrides of ``trainers.ppo``.
    """

    writer: str = "any"
    model: tuple[tuple[str, int], ...] = (
        *(("hidden", 64), ("layers", 3), ("heads", 2), ("kv_heads", 2), ("intermediate", 256)),
        *(("copying", True), ("vocab_size", 2048)),
    )
    context: int = 192
    reply: int = 20
    imitated: int = 2_000_000
    demonstrations: int = 16_000
    imitation: tuple[str, ...] = ("sft.batch_size=10", "sft.lr=2e-3", "sft.weight_decay=0.1")
    sampled: int = 500_000
    reinforcement: tuple[str, ...] = (
        *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1", "actor.entropy_coeff=0"),
        *("algorithm.adv_estimator=turn_grpo", "rollout.groups_per_batch=32", "rollout.n=4", "data.val_size=1"),
        *("actor.lr=5e-4", "rollout.temperature=0.6"),
    )

    @property
    def digest(self) -> str:
        """A hash of all settings: policies and results of others are not reused."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Policy:
    """A policy that is played.

    Args:
        phase: How it is made.
        seed: Of its weights, its demonstrations and its lives; of a script, of what it draws.
        writer: Who writes a script's notebooks, or those that are imitated.
        discount: Of the rewards of later turns, in PPO: with 0, a notebook only costs the forgotten codes in it.
    """

    phase: str
    seed: int
    writer: str
    discount: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.phase}-{self.writer}-{self.discount:g}-{self.seed}"


class Runs:
    """Policies and their files, in a folder.

    Args:
        settings: The settings.
        folder: Where policies are kept.
        tasks: How many held-out lives a policy is played in.
    """

    def __init__(self, settings: Settings, folder: Path, tasks: int = 200) -> None:
        self.settings, self.folder, self.tasks = settings, folder / settings.digest, tasks

    # ------------------------------------------------------------------ training

    def start(self, seed: int) -> str:
        """Return the model that a seed's policies start from, with a vocabulary of its demonstrations."""
        folder, settings = self.folder / f"start-{seed}", self.settings
        if not folder.exists():
            shape, context = dict(settings.model), settings.context
            talks = self._talks(seed, _VOCABULARY)
            own = {"words": _WORDS, "chat_template": _TEMPLATE}
            imitation.make_start(folder, talks, shape, context=context, seed=seed, **own)
        return str(folder)

    def model(self, policy: Policy) -> Path:
        """Return a policy's folder; made where missing."""
        model = self.folder / policy.name
        if not model.exists():
            (self._imitate if policy.phase == IMITATION else self._reinforce)(model, policy)
        return model

    def imitation(self, seed: int, steps: int) -> SFTConfig:
        """Return the configuration of the imitation."""
        words = (f"model.path={self.start(seed)}", f"sft.steps={steps}", *self.settings.imitation)
        return resolve([*self._overrides(seed, self.folder), *words], SFTConfig)[0]

    def reinforcement(self, policy: Policy, folder: Path) -> list[str]:
        """Return the overrides of PPO, which starts from the policy that imitates."""
        model = self.model(Policy(IMITATION, policy.seed, policy.writer))
        lengths = (
            f"rollout.max_response_length={self.settings.reply}",
            f"engine.max_context={self.settings.context}",
        )
        words = (f"model.path={model}", "trainer.resume_mode=disable", *lengths, f"algorithm.gamma={policy.discount}")
        return [*self._overrides(policy.seed, folder), *self.settings.reinforcement, *words]

    def _overrides(self, seed: int, folder: Path) -> list[str]:
        return imitation.settings(Axis(ENV, {"seed": seed}), folder, device="cpu", seed=seed)

    def _talks(self, seed: int, count: int) -> Iterator[Demonstration]:
        with closing(make(ENV, seed=seed, writer=self.settings.writer)) as env:
            yield from play(env, count, seed=seed)

    def _imitate(self, model: Path, policy: Policy) -> None:
        began, seed = time.monotonic(), policy.seed
        talks = self._talks(seed, self.settings.demonstrations)
        imitation.imitate(
            model,
            imitation.encoded(talks, imitation.Encoder(self.start(seed)), self.settings.imitated),
            lambda steps: self.imitation(seed, steps),
            tokens=self.settings.imitated,
            prediction=0.0,
            context=self.settings.context,
            began=began,
        )

    def _reinforce(self, model: Path, policy: Policy) -> None:
        logging.getLogger("trainers").setLevel(logging.WARNING)
        imitation.reinforce(
            model, lambda folder: self.reinforcement(policy, folder), self.settings.sampled, measure=regret_of
        )

    # ------------------------------------------------------------------ what a policy does

    def score(self, policy: Policy) -> dict[str, Any]:
        """Return what a policy does in held-out lives, greedily: ``lives``, by measure a number a life; and costs."""
        began, indices = time.monotonic(), range(self.tasks)
        if policy.phase == SCRIPT:
            return {"lives": _columns([*played(policy, indices)]), **imitation.seconds_since(began)}
        model = str(self.model(policy))
        axis = Axis(ENV, {"seed": HELD_OUT})
        records = imitation.recorded(model, axis, indices, reply=self.settings.reply, device="cpu")
        if failures := [record.failure for record in records if record.failed]:
            raise RuntimeError(f"{len(failures)} episodes failed; the first: {failures[0]}")
        return {
            "lives": _columns([{**record.metrics, "return": record.total} for record in records]),
            "took": imitation.costs_of(Path(model)),
            **imitation.seconds_since(began),
        }


def regret_of(episode: Trajectory) -> float:
    """Return how much less of a life's questions an episode answers right than the expert is expected to."""
    return episode.metrics["regret_to_expert"]


def played(policy: Policy, indices: Sequence[int]) -> Iterator[Mapping[str, float]]:
    """Yield what a script does in held-out lives: the metrics at the end, and the return."""
    rng = np.random.default_rng(policy.seed)
    with closing(make(ENV, seed=HELD_OUT, writer=policy.writer)) as env:
        for index in indices:
            env.reset(seed=0, options={"task_index": index})
            total, info = 0.0, dict[str, Any]()
            while not env.state.done:
                _, reward, _, _, info = env.step(env.demonstration(rng))
                total += reward
            yield {**info["metrics"], "return": total}


def _columns(lives: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {measure: [round(life[measure], 4) for life in lives] for measure in MEASURES}
