"""Environments of GEM (the package gem-llm) as text environments."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ...env import EnvironmentFailure
from ...global_rng import RandomState, contained
from ...messages import Message, Messages, user
from .base import Answer, Seeded


class Gem(Seeded):
    """An environment of GEM's registry: its texts, and its reward on every turn.

    What it says is a user's message, with the ``suffix`` of GEM's info (what comes next) below it. GEM sets
    ``terminated`` and ``truncated`` together where a game ends because its turns are used up, and at the end of every
    single-turn task: the end is judged and rewarded then, and counts as ``terminated`` here. ``truncated`` alone stays
    ``truncated``.

    GEM draws from the process's global generators; every episode has a state of them to itself, so equal seeds and
    replies give equal episodes, in forks, too.

    Args:
        game: An id of GEM, for example ``game:GuessTheNumber-v0-easy`` or ``rg:leg_counting``.
        options: Arguments of the environment, as in JSON, over those of the id.
        **more: As in :class:`.base.Seeded`.

    Raises:
        ValueError: GEM has no such environment, or it cannot be made with the options.
        ImportError: gem-llm, or what this environment of it needs, is not installed.
    """

    def __init__(
        self, game: str = "game:GuessTheNumber-v0-easy", *, options: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        try:
            self.options = json.loads(json.dumps(dict(options or {})))
        except (TypeError, ValueError) as error:
            raise ValueError(f"options must be a mapping as in JSON, not {options!r}: {error}") from error
        self.game = game
        super().__init__(f"gem/{game}", **more)
        _import_gem()
        try:
            self.begin(0).close()
        except EnvironmentFailure as failure:
            kind = ImportError if isinstance(failure.__cause__, ImportError) else ValueError
            raise kind(f"GEM's {game!r} cannot be started with options={self.options}: {failure.reason}") from failure

    def begin(self, seed: int) -> _Game:
        return _Game(self, seed)


class _Game:
    """A running game, and the state of the global generators that is its own."""

    def __init__(self, env: Gem, seed: int) -> None:
        self._env, self._random = env, RandomState.seeded(seed)
        self._game: Any = None
        try:
            with self._contained():
                self._game = _import_gem().make(env.game, **env.options)
                observation, info = self._game.reset(seed=seed)
        except EnvironmentFailure:
            with suppress(Exception):  # the first one tells more
                self.close()
            raise
        self.opening: Messages = (user(_text(observation, info)),)

    def reply(self, message: Message) -> Answer:
        from gem.utils.constants import TERMINAL_STATE

        with self._contained():
            observation, reward, terminated, truncated, info = self._game.step(self._env.text(message))
            number = float(reward)
        done = bool(terminated or truncated)
        said = "" if observation == TERMINAL_STATE else _text(observation, {} if done else info)
        return Answer(
            messages=(user(said),) if said or not done else (),
            reward=number,
            terminated=bool(terminated),
            stop="done" if terminated else None,
            cut="truncated" if truncated and not terminated else None,
        )

    def close(self) -> None:
        close = getattr(self._game, "close", None)
        if callable(close):
            close()

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """With its own random state; what it raises fails the episode."""
        try:
            with contained(self._random):
                yield
        except Exception as error:
            raise EnvironmentFailure("tool_failed", f"{self._env.game}: {type(error).__name__}: {error}") from error


def _text(observation: Any, info: Mapping[str, Any]) -> str:
    """What a player reads: the observation, and what GEM's wrappers would put below it."""
    parts = (str(observation).strip(), str(info.get("suffix") or "").strip())
    return "\n\n".join(part for part in parts if part)


def _import_gem() -> Any:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with contained(RandomState.seeded(0)):
            import gem
    except ImportError as error:
        raise ImportError("this needs GEM, on Python 3.11: pip install gem-llm") from error
    finally:  # importing it configures the process's logging
        root.handlers[:] = handlers
        root.setLevel(level)
    return gem
