"""Twin tasks: the same replies on two tasks that differ in the ground truth alone must get the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..actions import as_reply
from ..attack import COMMON, Attack
from ..env import TextEnv
from ..evaluate.baselines import has_script
from ..external import ExternalEnv
from ..messages import Message, Messages, transcript
from ..task import Task
from ..text import excerpt, plural, quoted
from ..turn import messages_of_turn
from .subject import Subject, Verdict

#: So many tasks are played with the scripts, and the first of them with the attacks, too.
_TASKS, _WITH_ATTACKS = 40, 8
_TURNS = 60  # that are played of an episode
_SHOWN = 6  # messages in a transcript
_CHECK = "twins"
_REMEDY = (
    "let the user know what its task says that it knows, what it said and what it was shown, and nothing of what a "
    "reply is scored against; where the user is to judge a reply, say so in reveals(reply)"
)

#: Returns the next reply for both episodes, which were equal so far.
_Speaker = Callable[[TextEnv[Any], TextEnv[Any]], "str | Message"]


@dataclass
class _PairCounts:
    """Results of the pairs of episodes."""

    answered: int = 0  # replies that were answered and compared
    revealing: int = 0  # replies whose answer may depend on the ground truth
    scripted: int = 0  # pairs of the expert's episodes that were compared to the end
    scored_apart: int = 0  # pairs of the expert's episodes that were rewarded differently
    different: list[str] = field(default_factory=list)  # keys of the tasks that were answered differently
    evidence: str = ""  # the first of them
    transcript: str = ""


def twins(subject: Subject) -> Verdict:
    """Check that the same replies get the same words on a task and its twin, for every speaker."""
    counts, speaks, pairs = _PairCounts(), False, 0
    indices, _ = subject.tasks(min(_TASKS, subject.episodes))
    with closing(subject.make_env()) as env, closing(subject.make_env()) as other:
        for number, index in enumerate(indices):
            task = env.tasks[index]
            twin = env.twin(task)
            if twin is None:
                speaks = speaks or _speaks(env, task, subject.seed)
                continue
            pairs += 1
            if problem := _no_twin(task, twin):
                return Verdict(_CHECK, "fail", f"twin(task) of {type(env).__name__} {problem}", f"task {task.key}")
            try:
                for name, speaker in _speakers(env, number < _WITH_ATTACKS, subject.seed + number):
                    if _play(env, other, (task, twin), speaker, name, subject.seed + number, counts):
                        counts.different.append(task.key)
                        break
            except Exception as error:
                cause = f"a task or its twin cannot be played: {type(error).__name__}: {error}"
                return Verdict(_CHECK, "fail", cause, f"task {task.key}")
    return _verdict(env, counts, pairs, speaks)


def _verdict(env: TextEnv[Any], counts: _PairCounts, pairs: int, speaks: bool) -> Verdict:
    name = type(env).__name__
    if counts.different:
        cause = f"the same replies are answered differently where the ground truth alone differs; {_REMEDY}"
        evidence = f"{len(counts.different)} of {plural(pairs, 'task')}; {counts.evidence}"
        return Verdict(_CHECK, "fail", cause, evidence, counts.transcript)
    if not pairs and not speaks:
        cause = f"it says nothing after its opening, or by design ({name}.reveals) what depends on the ground truth"
        return Verdict(_CHECK, "skipped", cause)
    if not pairs:
        cause = (
            f"{name} answers replies and offers no twin of a task, so whether its words tell what is right was not "
            "tried; define twin(task), which returns the task with another ground truth"
        )
        return Verdict(_CHECK, "skipped" if isinstance(env, ExternalEnv) else "warning", cause)
    if counts.scripted and not counts.scored_apart:
        cause = f"a task and its twin reward the expert's replies alike; let twin(task) of {name} change what they earn"
        return Verdict(_CHECK, "fail", cause, plural(counts.scripted, "pair") + " of episodes")
    evidence = f"{plural(pairs, 'task')}, {counts.answered} answers compared, {counts.revealing} left out by reveals"
    if not counts.answered:
        if counts.revealing:
            cause = f"by design ({name}.reveals), every answer may depend on the ground truth: the user is the judge"
        else:
            cause = "it says nothing after its opening that could tell what is right"
        return Verdict(_CHECK, "skipped", cause, evidence)
    return Verdict(_CHECK, "pass", "the same replies get the same words whatever the ground truth", evidence)


def _no_twin(task: Task, twin: Task) -> str | None:
    if twin.prompt != task.prompt:
        return "changes the prompt: a twin differs in its ground truth alone"
    if replace(twin, key=task.key) == task:
        return "returns the same task: a twin has another ground truth"
    return None


def _speaks(env: TextEnv[Any], task: Task, seed: int) -> bool:
    """Return whether something is said after the opening that may not depend on the ground truth."""
    opening, _ = env.reset(seed=seed, options={"task": task})
    reply = "I do not know. What do you mean?"
    if env.reveals(as_reply(reply)):
        return False
    env.step(reply)
    return bool(env.state.contexts) or len(env.state.messages) > len(opening) + 1


def _speakers(env: TextEnv[Any], attacks: bool, seed: int) -> Iterator[tuple[str, _Speaker]]:
    """Yield the speakers whose replies are tried: the scripts on either task, and cheap policies."""
    rng = np.random.default_rng([seed, 11])
    if has_script(env, "expert"):
        yield "the expert", lambda one, other: one.demonstration(rng)
        yield "the expert of the twin", lambda one, other: other.demonstration(rng)
    if has_script(env, "careless"):
        yield "careless replies", lambda one, other: one.careless_reply(rng)
        yield "careless replies to the twin", lambda one, other: other.careless_reply(rng)
    for attack in (*env.own_attacks, *COMMON) if attacks else ():
        if not attack.rehearse:
            yield f"the attack {attack.name}", _cheater(attack, rng)


def _cheater(attack: Attack, rng: np.random.Generator) -> _Speaker:
    reply = attack.start(rng, ())
    return lambda one, other: reply(one.state.messages)


def _play(
    env: TextEnv[Any],
    other: TextEnv[Any],
    tasks: tuple[Task, Task],
    speaker: _Speaker,
    name: str,
    seed: int,
    counts: _PairCounts,
) -> bool:
    """Play both tasks with the same replies; return whether they were answered differently."""
    openings = [
        env_or_twin.reset(seed=seed, options={"task": task})[0]
        for env_or_twin, task in zip((env, other), tasks, strict=True)
    ]
    if openings[0] != openings[1]:
        return _differ(counts, name, "the opening", openings, (False, False), ())
    returns = [0.0, 0.0]
    for turn in range(1, _TURNS + 1):
        try:
            reply = speaker(env, other)
        except NotImplementedError:  # not with these options
            return False
        states = [
            (env_or_twin, len(env_or_twin.state.messages), env_or_twin.state.contexts) for env_or_twin in (env, other)
        ]
        conversation, revealing = env.state.messages, env.reveals(as_reply(reply))
        results = [env_or_twin.step(reply) for env_or_twin in (env, other)]
        returns = [total + result[1] for total, result in zip(returns, results, strict=True)]
        if revealing:
            counts.revealing += 1
            break
        turns = [messages_of_turn(played.state, size, contexts) for played, size, contexts in states]
        answers = [(*added[1:], *(context or ())) for added, context in turns]
        ends = [result[2] or result[3] for result in results]
        if answers[0] != answers[1] or ends[0] != ends[1]:
            return _differ(counts, name, f"turn {turn}", answers, ends, (*conversation, turns[0][0][0]))
        counts.answered += bool(answers[0])
        if ends[0]:
            break
    if name == "the expert":
        counts.scored_apart += abs(returns[0] - returns[1]) > 1e-9
        counts.scripted += not revealing
    return False


def _differ(
    counts: _PairCounts,
    name: str,
    where: str,
    answers: Sequence[Messages],
    ends: Sequence[bool],
    before: Sequence[Message],
) -> bool:
    """Record the first answers that differ; always return ``True``."""
    if not counts.evidence:
        texts = [quoted(transcript(messages)) if messages else "nothing" for messages in answers]
        one, other = (f"{text}{' and the end' if end else ''}" for text, end in zip(texts, ends, strict=True))
        counts.evidence = f"first {name}, {where}: {one}, and on the twin {other}"
        last = [message for message in before if message["role"] != "system"][-_SHOWN:]
        counts.transcript = "\n".join(excerpt(transcript([message]), 400) for message in last)
    return True
