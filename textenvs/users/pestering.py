"""Policies that pester: they demand everything, claim authority, turn the roles around, and never do the task.

``PESTER`` is one such policy. :func:`search_for_leak` searches for worse: a beam over phrases for the messages to which
a user gives away what was not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..attack import Attack, Cheater
from ..env import TextEnv
from ..messages import Messages, assistant, text_of, visible_text
from ..text import load_yaml
from ..turn import messages_of_turn
from .base import HasUser
from .conduct import Conduct

#: The phrases, by kind of pressure.
PHRASES: Mapping[str, Sequence[str]] = load_yaml(__package__, "pestering.yaml")


def _start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    last = ""

    def reply(conversation: Messages) -> str:
        nonlocal last
        kinds = list(PHRASES)
        if not last or rng.random() < 0.7:  # else it repeats itself
            phrases = PHRASES[kinds[int(rng.integers(len(kinds)))]]
            last = phrases[int(rng.integers(len(phrases)))]
        return last

    return reply


#: Demands everything in many ways and names nothing.
PESTER = Attack("pester", "demands everything: by repetition, authority, reversed roles, flattery", _start)


def answers_of(env: TextEnv[Any], size: int, contexts: tuple[Messages, ...]) -> list[str]:
    """Return what the user said in the last turn, before which there were ``size`` messages, and ``contexts``."""
    assert isinstance(env, HasUser)
    talk = env.user_view().talk
    turn = messages_of_turn(env.state, size, contexts)[0]
    return [text_of(message) for message in turn if message["role"] == "user" and message in talk]


@dataclass
class _Talk:
    """A conversation of the beam: an environment in its state, and what its user has given away."""

    env: TextEnv[Any]
    conduct: Conduct = field(default_factory=Conduct)
    replies: tuple[str, ...] = ()
    leaks: int = 0

    @property
    def score(self) -> tuple[int, int, int]:
        """Leaks, then facts told without being asked for, or with few questions."""
        return self.leaks, len(self.conduct.disclosed) - self.conduct.questions, len(self.conduct.disclosed)

    def after(self, reply: str) -> _Talk:
        """Return the conversation with one more reply."""
        env = self.env.fork()
        assert isinstance(env, HasUser)
        before, may = env.user_view(), env.user_may(assistant(reply))
        size, contexts = len(env.state.messages), env.state.contexts
        env.step(reply)
        conduct, leaks = self.conduct.copy(), self.leaks
        for answer in answers_of(env, size, contexts):
            leaks += "leak" in conduct.listen(visible_text(assistant(reply)), before, may, answer)
        return _Talk(env, conduct, (*self.replies, reply), leaks)


@dataclass(frozen=True)
class WorstConversation:
    """The worst conversation that a search found."""

    replies: tuple[str, ...]
    leaks: int  # messages of the user that leaked
    tried: int  # conversations


def search_for_leak(
    make_env: Callable[[], TextEnv[Any]],
    phrases: Sequence[str],
    *,
    seed: int = 0,
    turns: int = 3,
    width: int = 8,
    tries: int = 60,
) -> WorstConversation:
    """Search for the replies to which a scripted user leaks most, in the episode of ``seed``; stops at the first leak.

    Args:
        make_env: Makes an environment with a user that holds something back.
        phrases: Of which replies are made: one, two together, or one with the end of another.
        seed: Of the episode and of the search.
        turns: Replies of a conversation.
        width: Conversations that are kept after each turn.
        tries: Replies that are tried in each of them.
    """
    env, rng = make_env(), np.random.default_rng(seed)
    env.reset(seed=seed)
    beam, tried = [_Talk(env)], 0
    for _ in range(turns):
        grown: list[_Talk] = []
        for talk in beam:
            for _ in range(0 if talk.env.state.done else tries):
                grown.append(talk.after(_reply_of(phrases, rng)))
                tried += 1
                if grown[-1].leaks:
                    return WorstConversation(grown[-1].replies, grown[-1].leaks, tried)
        beam = sorted([*grown, *beam], key=lambda talk: talk.score, reverse=True)[:width]
    return WorstConversation(beam[0].replies, beam[0].leaks, tried)


def _reply_of(phrases: Sequence[str], rng: np.random.Generator) -> str:
    first, second = (phrases[int(rng.integers(len(phrases)))] for _ in range(2))
    form = int(rng.integers(4))
    if form == 0:
        return first
    if form == 1:
        return f"{first} {second}"
    words, others = first.split(), second.split()
    if form == 2:
        return " ".join([*words[: int(rng.integers(len(words) + 1))], *others[int(rng.integers(len(others))) :]])
    return " ".join(words[: 1 + int(rng.integers(len(words)))]).rstrip("?!.") + "."  # a question as a statement
