"""A start, demonstrations of so many worlds, imitation, PPO, and what a policy does in held-out worlds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from benchmarks import imitation
from benchmarks.imitation import IMITATION, REINFORCEMENT, Axis
from textenvs.registry import make
from trainers.command_line import resolve
from trainers.config import SFTConfig
from trainers.rollout.demonstrations import Demonstration, Example, play

from .scales import AXES, ENV, Scale

#: Positions of a policy that is played in another environment: the opening of some has 4,500 of its tokens.
POSITIONS = 12_288
#: How a policy was made that nothing was trained on here: of random weights, or downloaded.
START = "start"
#: Conversations that the vocabulary is made of, and the worlds that they are in; the same for all policies.
_VOCABULARY_TALKS, _VOCABULARY_WORLDS = 1000, 1000
#: As of a tiny model, but with marks in a row (`","`) and with `_` after a word: a fifth fewer tokens.
_WORDS = r" ?\p{L}+_?|\p{N}|\s|[^\s\p{L}\p{N}]+"


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
        return imitation.costs_of(self._model(phase, worlds, seed))

    def _model(self, phase: str, worlds: int, seed: int) -> Path:
        return self.folder / f"{phase}-{worlds}-{seed}"

    # ------------------------------------------------------------------ before

    def start(self, seed: int) -> str:
        """Return the model that all policies of a seed start from: one vocabulary, and the same weights."""
        model = self.scale.model
        if isinstance(model, str):
            return model
        folder = self._model(START, 0, seed)
        if not folder.exists():
            talks = _played(self.scale.training(_VOCABULARY_WORLDS, seed), _VOCABULARY_TALKS, seed)
            imitation.make_start(folder, talks, model, words=_WORDS, context=self.scale.context, seed=seed)
        return str(folder)

    def demonstrations(self, worlds: int, seed: int) -> list[Example]:
        """Play the expert in a number of worlds; return its conversations in the model's tokens.

        There are as many as the tokens that are imitated take, or :attr:`Scale.demonstrations`.
        """
        talks = _played(self.scale.training(worlds, seed), self.scale.demonstrations, seed)
        return imitation.encoded(talks, imitation.Encoder(self.start(seed)), self.scale.imitated)

    # ------------------------------------------------------------------ training

    def _settings(self, worlds: int, seed: int, folder: Path) -> list[str]:
        axis = Axis(ENV, self.scale.training(worlds, seed))
        return imitation.settings(axis, folder, device=self.scale.device, seed=seed)

    def imitation(self, worlds: int, seed: int, steps: int) -> SFTConfig:
        """Return the configuration of the imitation."""
        words = (f"model.path={self.start(seed)}", f"sft.steps={steps}", *self.scale.imitation)
        return resolve([*self._settings(worlds, seed, self.folder), *words], SFTConfig)[0]

    def imitate(self, worlds: int, seed: int) -> None:
        """Imitate the expert in a number of worlds, and keep the policy."""
        began = time.monotonic()
        imitation.imitate(
            self._model(IMITATION, worlds, seed),
            self.demonstrations(worlds, seed),
            lambda steps: self.imitation(worlds, seed, steps),
            tokens=self.scale.imitated,
            prediction=self.scale.prediction,
            context=self.scale.context,
            began=began,
        )

    def reinforcement(self, worlds: int, seed: int, folder: Path) -> list[str]:
        """Return the overrides of PPO, which starts from the policy that imitates."""
        model = self.policy(IMITATION, worlds, seed)
        lengths = (f"rollout.max_response_length={self.scale.reply}", f"engine.max_context={self.scale.context}")
        words = (f"model.path={model}", "trainer.resume_mode=disable", *lengths)
        return [*self._settings(worlds, seed, folder), *self.scale.reinforcement, *words]

    def reinforce(self, worlds: int, seed: int) -> None:
        """Train by PPO in a number of worlds from the policy that imitates, and keep the policy."""
        logging.getLogger("trainers").setLevel(logging.WARNING)
        model = self._model(REINFORCEMENT, worlds, seed)
        imitation.reinforce(model, lambda folder: self.reinforcement(worlds, seed, folder), self.scale.sampled)

    # ------------------------------------------------------------------ what a policy does

    def axes(self, phase: str, worlds: int, seed: int) -> dict[str, Axis]:
        """Return the environments that a policy is played in: the start only in those where none is trained."""
        names = () if phase == START else AXES
        axes = {name: Axis(ENV, self.scale.played(name, worlds, seed)) for name in names}
        return axes | {env: Axis(env, options) for env, options in self.transfer.items()}

    def score(self, model: str, axis: Axis) -> dict[str, Any]:
        """Return what a policy does on an axis.

        Elsewhere than in generated worlds a policy that was made here gets more positions (:data:`POSITIONS`).

        Returns:
            ``solved``, a digit a task (``-`` where the episode failed), greedily; the mean ``return``; and what
            :meth:`replies` returns.
        """
        indices, began = range(self.tasks), time.monotonic()
        short = axis.env != ENV and Path(model).is_dir()
        with imitation.lengthened(model, POSITIONS) if short else nullcontext(model) as played:
            return {
                **imitation.play(played, axis, indices, reply=self.scale.reply, device=self.scale.device),
                **self.replies(played, axis, indices),
                **imitation.seconds_since(began),
            }

    def replies(self, model: str, axis: Axis, indices: Sequence[int]) -> dict[str, list[list[int]]]:
        """Compare a policy's likeliest tokens with the expert's conversations, each after the expert's beginning.

        Returns:
            For each task how many ``replies`` are right to the letter, and of how many; and of how many of the calls
            the ``tools`` are right.
        """
        env = make(axis.env, **axis.options)
        talks = (imitation.expert_talk(env, index) for index in indices)
        counts: dict[str, list[list[int]]] = {"replies": [], "tools": []}
        for replies, tools in imitation.replies(model, talks, device=self.scale.device):
            counts["replies"].append([sum(replies), len(replies)])
            counts["tools"].append([sum(tools), len(tools)])
        return counts


def _played(options: Mapping[str, Any], count: int, seed: int) -> Iterator[Demonstration]:
    """Yield conversations of the expert about tasks that a seed draws."""
    with closing(make(ENV, **options)) as env:
        yield from play(env, count, seed=seed)
