"""The quality of a simulated user: whether it keeps its goal, keeps it to itself, keeps its part, and how it writes.

Any user of an environment with a :class:`~textenvs.users.base.HasUser` is measured in the same way, by rules: scripted
ones of any manner, and models. The errors are those known of users of tau2-bench: made-up facts, facts told
too early, questions left unanswered, the agent's part taken over, talks ended too soon. Rules see values and marks and
not meaning, so the figures are for comparing users.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from ..env import TextEnv
from ..messages import Message, text_of
from ..turn import messages_of_turn
from .base import HasUser, UserView
from .dialogues import Curious
from .manners import RESPELT

#: What may be wrong with a message of the user's, and how it is recognised.
ERRORS: Mapping[str, str] = {
    "leak": "tells what it was not asked for, or does the assistant's work",
    "contradiction": "states a value that is not in its goal, and does not correct it in the same message",
    "evasion": "is asked for something that it has not told, and tells nothing",
    "role": "speaks as the assistant: with an answer's mark, or offering help",
    "repetition": "says word for word what it said before",
    "early_end": "leaves although the assistant has not answered",
}
_ROLE = re.compile(
    r"####\s*(?!and\b)\w|<document>|how (?:can|may) i (?:help|assist)|as an ai|\bi(?:'m| am) an? (?:ai|assistant)\b"
)
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_VOWELS = re.compile(r"[aeiouy]+")
_MOST_FAILURES = 8


@dataclass
class UserStatistics:
    """The counts of one episode."""

    errors: Counter[str] = field(default_factory=Counter)  # messages, by name of :data:`ERRORS`
    corrected: int = 0  # messages that state another value first and correct it
    refused: int = 0  # messages of a model that were rejected: they told too much, or a false value
    tries: int = 0  # how often a model was asked
    messages: list[str] = field(default_factory=list)  # what the user said, after the opening
    words: int = 0
    misspelt: int = 0  # words that no text of this package, the goal or the assistant has
    questions: int = 0  # replies that asked for something that it had not told
    stop: str | None = None
    failure: str | None = None

    @property
    def goal_kept(self) -> bool:
        """It stated its goal's values alone, stayed in its part, and did not leave too soon."""
        return self.failure is None and not any(self.errors[name] for name in ("contradiction", "role", "early_end"))

    def listen(self, text: str, before: UserView, problem: str | None, asks: bool, disclosed: int) -> None:
        """Count a message that answers the last of ``before.talk``; ``disclosed`` counts what was told by now."""
        assistant = [text_of(message) for message in before.talk if message["role"] == "assistant"]
        context = f"{before.goal} {' '.join(assistant)}"
        contradicts = before.contradicts(text)
        errors = {
            "leak": problem is not None,
            "contradiction": contradicts,
            "evasion": asks and disclosed <= before.disclosed,
            "role": _ROLE.search(text.lower()) is not None,
            "repetition": text in self.messages,
        }
        self.errors.update(name for name, present in errors.items() if present)
        self.corrected += before.foreign(text) and not contradicts
        self.questions += asks
        self.messages.append(text)
        words = _WORD.findall(text.lower())
        self.words += len(words)
        self.misspelt += sum(word not in _dictionary() for word in words if word not in _WORD.findall(context.lower()))


async def listen_to(
    make_env: Callable[[], TextEnv[Any]], count: int, *, seed: int = 0, off_script: float = 0.25, concurrency: int = 16
) -> list[UserStatistics]:
    """Play ``count`` episodes with a policy that asks (:class:`~textenvs.users.dialogues.Curious`), and count by rules.

    Raises:
        TypeError: The environment has no user that holds something back.
        RuntimeError: The first episodes all failed; says why.
    """
    episodes = [UserStatistics() for _ in range(count)]
    remaining = iter(range(count))
    failures = 0
    curious = Curious(make_env(), off_script=off_script)

    async def work() -> None:
        nonlocal failures
        env = make_env()
        for number in remaining:
            await _episode(env, episodes[number], curious, np.random.default_rng((seed, number)))
            failures = failures + 1 if episodes[number].failure and failures >= 0 else -1
            if failures >= _MOST_FAILURES:
                raise RuntimeError(f"the first {failures} episodes failed; the last one: {episodes[number].failure}")

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, count)):
            workers.create_task(work())
    return episodes


async def _episode(env: TextEnv[Any], stats: UserStatistics, curious: Curious, rng: np.random.Generator) -> None:
    assert isinstance(env, HasUser)
    await env.areset(seed=int(rng.integers(2**31)))
    while not env.state.done:
        action = curious.reply(env, rng)
        reply: Message = {"role": "assistant", "content": action} if isinstance(action, str) else action
        before, may = env.user_view(), env.user_may(reply)
        size, contexts = len(env.state.messages), env.state.contexts
        *_, info = await env.astep(action)
        view = env.user_view()
        talk = (*before.talk, reply)
        for message in messages_of_turn(env.state, size, contexts)[0]:
            if message["role"] == "user" and message in view.talk:
                text = text_of(message)
                stats.listen(
                    text, UserView(before.goal, talk, disclosed=before.disclosed, values=before.values),
                    may.problem(text), may.asks, view.disclosed,
                )  # fmt: skip
        stats.refused += int(info["metrics"].get("user_refused", 0))
        stats.tries += int(info["metrics"].get("user_tries", 0))
    stats.stop = env.state.stop
    stats.failure = info.get("failure")
    conversations = (*env.state.contexts, env.state.messages)
    replies = "\n".join(text_of(m) for messages in conversations for m in messages if m["role"] == "assistant")
    answered = any(mark in replies for mark in ("####", "<document>", "```"))
    if stats.stop in ("user_left", "gave_up") and not answered:
        stats.errors["early_end"] += 1


def summarize(episodes: Sequence[UserStatistics]) -> dict[str, Any]:
    """Return the figures of a report; rates are of episodes, messages or, for evasions, questions, as they say."""
    good = [stats for stats in episodes if stats.failure is None]
    messages = [text for stats in good for text in stats.messages]
    words, total = sum(stats.words for stats in good), max(1, len(messages))
    errors = sum((stats.errors for stats in good), Counter[str]())
    questions = sum(stats.questions for stats in good)
    failed = Counter(stats.stop for stats in episodes if stats.failure is not None)
    return {
        "episodes": len(episodes),
        "failed": dict(failed),
        "failures": sorted({stats.failure for stats in episodes if stats.failure is not None})[:3],
        "goal_kept": sum(stats.goal_kept for stats in good) / max(1, len(good)),
        "leaks": errors["leak"],
        "leaks_refused": sum(stats.refused for stats in episodes),
        "contradictions": errors["contradiction"],
        "corrected": sum(stats.corrected for stats in good),
        "messages": len(messages),
        "messages_per_episode": len(messages) / max(1, len(good)),
        "words_per_message": words / total,
        "misspelt_per_100_words": 100 * sum(stats.misspelt for stats in good) / max(1, words),
        "reading_ease": reading_ease(messages),
        "questions": questions,
        "questions_answered": 1 - errors["evasion"] / questions if questions else None,
        "errors_per_100_messages": {name: 100 * errors[name] / total for name in ERRORS},
        "stops": dict(Counter(stats.stop for stats in episodes)),
    }


def reading_ease(texts: Sequence[str]) -> float | None:
    """Return Flesch's reading ease (1948): 206.835 - 1.015 words/sentence - 84.6 syllables/word; higher is easier.

    Syllables are runs of vowels, at least one a word. ``None`` where there are no words.
    """
    words = [word for text in texts for word in _WORD.findall(text.lower())]
    if not words:
        return None
    sentences = sum(max(1, len(re.findall(r"[.!?]+(?:\s|$)", text))) for text in texts)
    syllables = sum(max(1, len(_VOWELS.findall(word))) for word in words)
    return 206.835 - 1.015 * len(words) / sentences - 84.6 * syllables / len(words)


@cache
def _dictionary() -> frozenset[str]:
    """Return the words of all texts that environments and their scripts say, misspelt ones left out."""
    words: set[str] = set()
    folders: list[Traversable] = [files("textenvs")]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.is_dir():
                folders.append(entry)
            elif entry.name.endswith(".yaml"):
                words.update(_WORD.findall(entry.read_text("utf-8").lower()))
    return frozenset(words - RESPELT)
