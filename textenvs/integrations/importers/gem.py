"""Environments of GEM (the package gem-llm) as text environments."""

from __future__ import annotations

import difflib
import functools
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...env import EnvironmentFailure
from ...global_rng import RandomState, contained
from ...messages import Message, text_of, user, visible_text
from ...task import Split
from .base import Answer, Imported, Seeds


class Gem(Imported["_Game"]):
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
        send_thinking: Whether GEM gets the raw reply; without, ``<think>`` blocks are left out.
        split: ``"train"`` or ``"test"``.
        seed: Which endless sequence of seeds. (Episodes are seeded by ``reset``.)
        max_assistant_turns: Truncate after so many replies; ``None`` leaves it to the game.
        system_prompt: A system message put before the game's.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: GEM has no such environment (the message names the nearest), or it cannot be made with the options.
        ImportError: gem-llm, or what this environment of it needs, is not installed.
    """

    def __init__(
        self,
        game: str = "game:GuessTheNumber-v0-easy",
        *,
        options: Mapping[str, Any] | None = None,
        send_thinking: bool = False,
        split: Split = "train",
        seed: int = 0,
        max_assistant_turns: int | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        known = _registered()
        if game not in known:
            near = difflib.get_close_matches(str(game), known, n=3, cutoff=0.4)
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise ValueError(f"GEM has no environment {game!r}.{meant} gem.print_envs() shows all")
        try:
            self.options = json.loads(json.dumps(dict(options or {})))
        except (TypeError, ValueError) as error:
            raise ValueError(f"options must be a mapping as in JSON, not {options!r}: {error}") from error
        self.game = game
        self.send_thinking = send_thinking
        super().__init__(
            Seeds(f"gem/{game}", seed, split),
            max_assistant_turns=max_assistant_turns,
            system_prompt=system_prompt,
            render_mode=render_mode,
        )
        try:
            self.begin(0).close()
        except EnvironmentFailure as failure:
            if isinstance(failure.__cause__, ImportError):
                raise ImportError(f"GEM's {game!r} cannot be imported: {failure.__cause__}") from failure
            raise ValueError(
                f"GEM's {game!r} cannot be started with options={self.options}: {failure.reason}"
            ) from failure

    def begin(self, seed: int) -> _Game:
        """Make the environment, and reset it."""
        return _Game(self.game, self.options, self.send_thinking, seed)


class _Game:
    """A running game, and the state of the global generators that is its own."""

    def __init__(self, game: str, options: Mapping[str, Any], send_thinking: bool, seed: int) -> None:
        import gem

        self.name, self.send_thinking = game, send_thinking
        self._random = RandomState.seeded(seed)
        self.game: Any = None
        try:
            with contained(self._random):
                self.game = gem.make(game, **options)
                observation, info = self.game.reset(seed=seed)
        except Exception as error:
            with suppress(Exception):  # the first one tells more
                self.close()
            raise EnvironmentFailure("tool_failed", f"{game}: {type(error).__name__}: {error}") from error
        self.opening = (user(_text(observation, info)),)

    def reply(self, message: Message) -> Answer:
        from gem.utils.constants import TERMINAL_STATE

        text = text_of(message) if self.send_thinking else visible_text(message)
        try:
            with contained(self._random):
                observation, reward, terminated, truncated, info = self.game.step(text)
            number = float(reward)
        except Exception as error:
            raise EnvironmentFailure("tool_failed", f"{self.name}: {type(error).__name__}: {error}") from error
        done = bool(terminated or truncated)
        said = "" if observation == TERMINAL_STATE else _text(observation, {} if done else info)
        return Answer(
            messages=(user(said),) if said or not done else (),
            reward=number,
            terminated=bool(terminated),
            truncated=bool(truncated) and not terminated,
        )

    def close(self) -> None:
        close = getattr(self.game, "close", None)
        if callable(close):
            close()


def _text(observation: Any, info: Mapping[str, Any]) -> str:
    """What a player reads: the observation, and what GEM's wrappers would put below it."""
    parts = (str(observation).strip(), str(info.get("suffix") or "").strip())
    return "\n\n".join(part for part in parts if part)


@functools.cache
def _registered() -> tuple[str, ...]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with contained(RandomState.seeded(0)):
            from gem.envs.registration import ENV_REGISTRY
    except ImportError as error:
        raise ImportError("this needs GEM, on Python 3.11: pip install gem-llm") from error
    finally:  # importing it configures the process's logging
        root.handlers[:] = handlers
        root.setLevel(level)
    return tuple(ENV_REGISTRY)
