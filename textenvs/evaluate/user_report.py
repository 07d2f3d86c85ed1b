"""The quality of a simulated user: whether it keeps its goal, keeps it to itself, keeps its part, and how it writes.

Any user of an environment with a :class:`~textenvs.users.base.HasUser` is measured in the same way, by rules: scripted
ones of any manner, and models, against any policy. What it gives away, and when, has the definitions of
:data:`~textenvs.users.conduct.FAULTS`. The errors are those known of users of tau2-bench: made-up facts, facts told
too early, questions left unanswered, the agent's part taken over, talks ended too soon. Rules see values and marks and
not meaning, so the figures are for comparing users.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from ..env import TextEnv
from ..messages import Message, Messages, assistant, text_of, visible_text
from ..users.base import Entitled, HasUser, UserView
from ..users.conduct import FAULTS, Conduct
from ..users.dialogues import Curious
from ..users.manners import RESPELT
from ..users.pestering import answers_of
from .policies import OutOfContext, Player, Policy, PolicyFailure, Reply, ToolSchemas
from .runner import tools_of
from .statistics import estimate

#: What may be wrong with a message of the user's, and how it is recognised.
ERRORS: Mapping[str, str] = {
    **FAULTS,
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
    manner: str = "plain"
    conduct: Conduct = field(default_factory=Conduct)

    @property
    def goal_kept(self) -> bool:
        """It stated its goal's values alone, stayed in its part, and did not leave too soon."""
        return self.failure is None and not any(self.errors[name] for name in ("contradiction", "role", "early_end"))

    def listen(self, reply: str, text: str, before: UserView, may: Entitled, disclosed: int) -> None:
        """Count a message that answers ``reply``; ``disclosed`` is how many things are told by now."""
        talk = (*before.talk, assistant(reply))
        context = " ".join([before.goal, *(text_of(message) for message in talk if message["role"] == "assistant")])
        faults = self.conduct.listen(reply, before, may, text)
        if not before.facts and may.problem(text) is not None:  # an environment without a list of them
            faults.add("leak")
        errors = {
            "evasion": may.asks and disclosed <= before.disclosed,
            "role": _ROLE.search(text.lower()) is not None,
            "repetition": text in self.messages,
        }
        self.errors.update([*faults, *(name for name, present in errors.items() if present)])
        contradicts, asks = "contradiction" in faults, may.asks
        self.corrected += replace(before, talk=talk).foreign(text) and not contradicts
        self.questions += asks
        self.messages.append(text)
        words = _WORD.findall(text.lower())
        self.words += len(words)
        self.misspelt += sum(word not in _dictionary() for word in words if word not in _WORD.findall(context.lower()))


class CuriousPolicy(Policy):
    """A policy that asks: :class:`~textenvs.users.dialogues.Curious` as a :class:`Policy`."""

    def __init__(self, curious: Curious) -> None:
        self.curious = curious

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        rng = np.random.default_rng(seed)

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            return Reply(self.curious.reply(env, rng))

        return play


async def listen_to(
    make_env: Callable[[], TextEnv[Any]],
    count: int,
    *,
    policy: Policy | None = None,
    seed: int = 0,
    off_script: float = 0.25,
    concurrency: int = 16,
) -> list[UserStatistics]:
    """Play ``count`` episodes with a policy, and count by rules what the user does.

    Without a ``policy`` it is one that asks, :class:`~textenvs.users.dialogues.Curious`, with ``off_script``.

    Raises:
        TypeError: The environment has no user that holds something back.
        RuntimeError: The first episodes all failed, or the policy did; says why.
    """
    env = make_env()
    if not isinstance(env, HasUser):
        raise TypeError(f"{type(env).__name__} has no user that holds something back until it is asked")
    policy = policy or CuriousPolicy(Curious(env, off_script=off_script))
    episodes = [UserStatistics() for _ in range(count)]
    remaining = iter(range(count))
    failures = 0

    async def work() -> None:
        nonlocal failures
        env = make_env()
        for number in remaining:
            await _episode(env, episodes[number], policy, np.random.default_rng((seed, number)))
            failures = failures + 1 if episodes[number].failure and failures >= 0 else -1
            if failures >= _MOST_FAILURES:
                raise RuntimeError(f"the first {failures} episodes failed; the last one: {episodes[number].failure}")

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, count)):
            workers.create_task(work())
    return episodes


async def _episode(env: TextEnv[Any], stats: UserStatistics, policy: Policy, rng: np.random.Generator) -> None:
    assert isinstance(env, HasUser)
    await env.areset(seed=int(rng.integers(2**31)))
    info: dict[str, Any] = {}
    player, view = policy.start(env, int(rng.integers(2**31))), env.user_view()
    stats.manner = view.behavior.name
    while not env.state.done:
        try:
            action = (await player(env.state.messages, tools_of(env))).action
        except OutOfContext:  # the policy's limit, not the user's
            break
        except PolicyFailure as failure:
            raise RuntimeError(f"the policy failed: {failure}") from failure
        reply: Message = {"role": "assistant", "content": action} if isinstance(action, str) else action
        before, may = env.user_view(), env.user_may(reply)
        size, contexts = len(env.state.messages), env.state.contexts
        *_, info = await env.astep(action)
        view = env.user_view()
        for text in answers_of(env, size, contexts):
            stats.listen(_words(view.talk, before.talk), text, before, may, view.disclosed)
        stats.refused += int(info["metrics"].get("user_refused", 0))
        stats.tries += int(info["metrics"].get("user_tries", 0))
    stats.errors["concession"] += view.conceded
    stats.stop = env.state.stop
    stats.failure = info.get("failure")
    conversations = (*env.state.contexts, env.state.messages)
    replies = "\n".join(text_of(m) for messages in conversations for m in messages if m["role"] == "assistant")
    answered = any(mark in replies for mark in ("####", "<document>", "```"))
    if stats.stop in ("user_left", "gave_up") and not answered:
        stats.errors["early_end"] += 1


def _words(talk: Messages, before: Messages) -> str:
    """Return the reply that is new in a talk, as the user sees it."""
    return next((visible_text(message) for message in talk[len(before) :] if message["role"] == "assistant"), "")


def by_manner(episodes: Sequence[UserStatistics]) -> dict[str, dict[str, Any]]:
    """Return for each manner, and ``all`` together, its number of episodes, and estimates with intervals of 95 %.

    They are ``solved`` and, by the names of :data:`~textenvs.users.conduct.FAULTS`, the shares of episodes with at
    least one fault (Wilson's interval, since none in 100 episodes is not never); ``replies``, how many of the policy's
    replies the user answers until the task is solved; ``disclosed``, how many facts it tells in an episode (a bootstrap
    over episodes). Episodes that failed are left out.
    """
    manners: dict[str, list[UserStatistics]] = {}
    for stats in episodes:
        if stats.failure is None:
            manners.setdefault(stats.manner, []).append(stats)
    if len(manners) > 1:
        manners["all"] = [stats for group in manners.values() for stats in group]
    table = {}
    for manner, group in manners.items():
        solved = [stats for stats in group if stats.stop == "solved"]
        table[manner] = {
            "episodes": len(group),
            "solved": estimate([[float(stats.stop == "solved")] for stats in group], rate=True),
            **{name: estimate([[float(stats.errors[name] > 0)] for stats in group], rate=True) for name in FAULTS},
            "replies": estimate([[float(len(stats.messages))] for stats in solved]) if solved else None,
            "disclosed": estimate([[float(len(stats.conduct.disclosed))] for stats in group]),
        }
    return table


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
        "by_manner": by_manner(episodes),
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
