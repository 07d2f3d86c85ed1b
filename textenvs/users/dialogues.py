"""Dialogues of scripted users, from the user's side: what a small model is fitted to that is to play such users.

A row is a conversation in which the user is the assistant, its goal in the system message; ``python -m trainers.sft``
imitates it as it is. The policy is a curious one: the expert's reply, or now and then a question of another episode or
one that asks for nothing in particular, so that the user is seen to hold back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..env import TextEnv
from ..messages import Message, text_of
from .base import HasUser
from .llm import LLMUser

#: Replies that ask for nothing in particular.
VAGUE = ("Tell me more.", "What else?", "Go on.", "Is that all?", "Can you help me with that?", "Why?")
_EPISODES = 30  # of the expert, whose questions are asked in others


class Curious:
    """A policy that asks on: the expert's replies, with a share of others that a user answers, too.

    Args:
        env: An environment of its kind; other episodes of it are where the other questions come from.
        others: The share of other replies, from 0 to 1.

    Raises:
        TypeError: The environment has no user that holds something back.
    """

    def __init__(self, env: TextEnv[Any], *, others: float) -> None:
        if not isinstance(env, HasUser):
            raise TypeError(f"{type(env).__name__} has no user that holds something back until it is asked")
        self._others = others
        self._asked: list[str] = []
        env, rng = _scripted(env), np.random.default_rng(0)
        for seed in range(_EPISODES if others else 0):
            env.reset(seed=seed)
            while not env.state.done:
                reply = env.demonstration(rng)
                env.step(reply)
                if not env.state.done and isinstance(reply, str) and "?" in reply:
                    self._asked.append(reply)

    def reply(self, env: TextEnv[Any], rng: np.random.Generator) -> str | Message:
        """The next reply in the episode of ``env``."""
        if rng.random() >= self._others:
            return _scripted(env).demonstration(rng)
        choices = self._asked if self._asked and rng.random() < 0.6 else VAGUE
        return choices[int(rng.integers(len(choices)))]


def _scripted(env: TextEnv[Any]) -> TextEnv[Any]:
    """A fork with the scripted user: its expert knows what to ask, whoever answers."""
    twin: Any = env.fork()
    twin.player = None
    return twin  # type: ignore[no-any-return]


def dialogues(env: TextEnv[Any], count: int, *, seed: int = 0, others: float = 0.4) -> Iterator[dict[str, Any]]:
    """``count`` dialogues of the scripted user of ``env``: rows with ``messages``; one without any answer is left out.

    Raises:
        TypeError: The environment has no user that holds something back.
    """
    player, curious = LLMUser("none", format="text", prompt="short"), Curious(env, others=others)
    assert isinstance(env, HasUser)
    written = number = 0
    while written < count:
        rng = np.random.default_rng((seed, number))
        env.reset(seed=int(rng.integers(2**31)))
        number += 1
        opened = sum(message["role"] == "user" for message in env.state.messages)
        while not env.state.done:
            env.step(curious.reply(env, rng))
        view = env.user_view()
        said = [message for message in view.talk if message["role"] == "user"]
        if len(said) == opened:
            continue
        spoke_last = text_of(view.talk[-1]) == text_of(said[-1])
        left = env.state.terminated and spoke_last
        written += 1
        yield {"messages": player.briefed(view.manner).dialogue(view.talk, view.goal, left=left)}
