"""Rows of datasets in the schemas of other libraries: which episode to play, and how it opens.

The episode travels as JSON text, so that every row has the same columns whatever an environment's options are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from ..data.files import write_rows
from ..env import TextEnv
from ..messages import Messages, has_images, text_of
from ..task import Task
from .session import EpisodeSpec, SpecError, refusal_of, several_conversations, several_roles


@dataclass(frozen=True)
class Opening:
    """An episode's start. ``task`` has the ground truth, which no policy may see."""

    spec: EpisodeSpec
    messages: Messages
    task: Task

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The messages as a column that every chat template takes: roles and texts; else raises ``SpecError``."""
        for message in self.messages:
            if extra := [*(set(message) - {"role", "content"}), *(["an image"] if has_images(message) else [])]:
                raise SpecError(
                    f"{self.spec.env} opens with a message that has {sorted(extra)}: a prompt column cannot"
                )
        return [{"role": role, "content": text} for role, text in _said(self.messages)]

    @property
    def ground_truth(self) -> str:
        truth = self.task.ground_truth
        return truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False, default=str)

    @property
    def episode(self) -> str:
        return json.dumps(self.spec.to_row(), ensure_ascii=False)


def _said(messages: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    # A content may be null: rows of Arrow have every key.
    return [(message["role"], text_of({"content": message.get("content") or ""})) for message in messages]


def same_messages(prompt: Iterable[Mapping[str, Any]], opening: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a prompt equals the opening in roles and texts; keys that Arrow fills with null do not count."""
    return _said(prompt) == _said(opening)


def openings(
    specs: Iterable[EpisodeSpec], problem: Callable[[TextEnv[Any]], str | None] = lambda env: None
) -> Iterator[Opening]:
    """Start each episode, and say how; consecutive episodes of one environment share it.

    ``problem`` says why a library cannot play an environment, if it cannot: ``SpecError``.
    """
    for _, group in groupby(specs, key=lambda spec: (spec.env, spec.env_kwargs)):
        first = next(group)
        with closing(first.make()) as env:
            if reason := problem(env):
                raise SpecError(refusal_of(first.env, reason))
            for spec in chain([first], group):
                messages, _ = env.reset(seed=spec.seed, options=spec.options)
                yield Opening(spec, messages, env.task)


def _verl(opening: Opening, number: int, split: str) -> dict[str, Any]:
    return {
        "data_source": opening.spec.env,
        "prompt": opening.prompt,
        "ability": opening.task.ability,
        "reward_model": {"style": "rule", "ground_truth": opening.ground_truth},
        "extra_info": {"split": split, "index": number, "textenv": opening.episode},
        "agent_name": "textenv",
    }


def _skyrl(opening: Opening, number: int, split: str) -> dict[str, Any]:
    return {
        "data_source": opening.spec.env,
        "prompt": opening.prompt,
        "env_class": opening.spec.env,
        "reward_spec": {"method": "rule", "ground_truth": opening.ground_truth},
        "extra_info": {"split": split, "index": number},
        "textenv": opening.episode,
    }


#: What a row is made with, by the library that is to read it.
SCHEMAS: Mapping[str, Callable[[Opening, int, str], dict[str, Any]]] = {"verl": _verl, "skyrl": _skyrl}


#: Why a library cannot play an environment. verl trains several contexts, with some of its estimators.
_PROBLEMS: Mapping[str, Callable[[TextEnv[Any]], str | None]] = {
    "verl": several_roles,
    "skyrl": several_conversations,
}


def episode_rows(schema: str, specs: Iterable[EpisodeSpec], *, split: str = "train") -> Iterator[dict[str, Any]]:
    """Yield a row of one of :data:`SCHEMAS` for each episode.

    ``SpecError``: a prompt column cannot hold it, or the library cannot train in several contexts or roles.
    """
    if schema not in SCHEMAS:
        raise SpecError(f"unknown schema {schema!r}; known are {', '.join(SCHEMAS)}")
    for number, opening in enumerate(openings(specs, _PROBLEMS[schema])):
        yield SCHEMAS[schema](opening, number, split)


def write_episodes(schema: str, specs: Iterable[EpisodeSpec], path: str | Path, *, split: str = "train") -> Path:
    """Write :func:`episode_rows` as Parquet; the file appears whole or not at all."""
    rows = list(episode_rows(schema, specs, split=split))
    if not rows:
        raise SpecError(f"{path}: no episode to write")
    return write_rows(rows, path)
