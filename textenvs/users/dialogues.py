"""Dialogues of scripted users, from the user's side: training data for a small model that plays such users.

A row is a conversation in which the user is the assistant, its goal in the system message; ``python -m trainers.sft``
imitates it as it is. The policy is exploratory: the expert's reply, or now and then a question of another episode or
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
_EPISODES = 30  # of the expert, whose questions are asked in other episodes


class Curious:
    """A policy that keeps asking: the expert's replies, with a share of off-script ones that a user answers, too.

    Args:
        env: An environment of the same kind; its other episodes supply the off-script questions.
        off_script: The share of off-script replies, from 0 to 1.

    Raises:
        TypeError: The environment has no user that holds something back.
    """

    def __init__(self, env: TextEnv[Any], *, off_script: float) -> None:
        if not isinstance(env, HasUser):
            raise TypeError(f"{type(env).__name__} has no user that holds something back until it is asked")
        self._off_script = off_script
        self._questions: list[str] = []
        env, rng = _scripted(env), np.random.default_rng(0)
        for seed in range(_EPISODES if off_script else 0):
            env.reset(seed=seed)
            while not env.state.done:
                reply = env.demonstration(rng)
                env.step(reply)
                if not env.state.done and isinstance(reply, str) and "?" in reply:
                    self._questions.append(reply)

    def reply(self, env: TextEnv[Any], rng: np.random.Generator) -> str | Message:
        """Return the next reply in the episode of ``env``."""
        if rng.random() >= self._off_script:
            return _scripted(env).demonstration(rng)
        choices = self._questions if self._questions and rng.random() < 0.6 else VAGUE
        return choices[int(rng.integers(len(choices)))]


def _scripted(env: TextEnv[Any]) -> TextEnv[Any]:
    """Return a fork with the scripted user, whose expert knows what to ask whichever user answers."""
    twin: Any = env.fork()
    twin.player = None
    return twin  # type: ignore[no-any-return]


def dialogues(env: TextEnv[Any], count: int, *, seed: int = 0, off_script: float = 0.4) -> Iterator[dict[str, Any]]:
    """Yield ``count`` dialogues of the scripted user of ``env``: rows with ``messages``.

    A dialogue without any answer of the user is left out.

    Raises:
        TypeError: The environment has no user that holds something back.
    """
    player, curious = LLMUser("none", format="text", prompt="short"), Curious(env, off_script=off_script)
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
        user_messages = [message for message in view.talk if message["role"] == "user"]
        if len(user_messages) == opened:
            continue
        spoke_last = text_of(view.talk[-1]) == text_of(user_messages[-1])
        leaves = env.state.terminated and spoke_last
        written += 1
        yield {"messages": player.briefed(view.manner).dialogue(view.talk, view.goal, leaves=leaves)}
