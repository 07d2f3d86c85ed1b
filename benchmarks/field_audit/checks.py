"""Checks of published environments besides ``textenvs.audit``: of answers, odd replies and randomness.

A check returns :class:`~textenvs.audit.Verdict` objects; the name of each is a kind of finding (:mod:`.page`).
"""

from __future__ import annotations

import builtins
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from textenvs.attack import COMMON
from textenvs.audit.subject import Subject, Verdict, mean, show
from textenvs.evaluate.policies import AttackPolicy
from textenvs.global_rng import RandomState, contained
from textenvs.text import excerpt

from .registration import Registration

#: Questions and episodes of a check.
_EPISODES = 20
#: Seconds that a reply may take. Python code is interrupted then; compiled code only when it returns.
_SLOW_S = 5.0
#: Share of the full reward from which an answer counts as right.
_TAKEN = 0.99
#: Share of the full reward that a reply without the task must stay below.
_PAID = 0.1
#: Share of the questions from which an answer that is judged wrongly is a finding: below, another answer may be right
#: as well by chance.
_SHARE = 0.25
_SHORT = 200  # characters of an answer that can stand in a sentence
_LISTED = 8  # wrong answers of a list
#: Answers to a question by the finding where they are refused or taken; the texts are the causes in the results.
FORMS = {
    "refuses its own answer": "the answer that the package says is right is not right for its scorer",
    "refuses spaces": "the right answer between spaces and line ends is not right",
    "takes two answers": 'the right answer, then "No, it is" another one, counts as right',
    "takes a list": 'up to nine different answers joined by "or", one of them right, count as right',
}
_MARKER = "_field_audit_was_here"
_CODE = f"__import__('builtins').__dict__.__setitem__('{_MARKER}', 1)"
#: Expressions come first, so that what evaluates them is seen before it hangs.
ODD_REPLIES = (
    *(_CODE, f"[{_CODE}]", "", " ", "\n", ".", "\x00", "\ud7ff", "None", "null", "nan", "inf", "-1", "1/0", "1e999"),
    *("0x10", "True", "[]", "{}", "()", "[[[", "}{", '"', "\\boxed{}", "\\frac{1}{0}", "<answer></answer>"),
    *("[1, 2, 3]", '{"a": 1}', "1,2", "1 2 3", "\u0663", "a" * 20_000, "9" * 5_000, "(" * 2_000, "9**9**9"),
)


class _TooSlow(BaseException):
    """A reply took too long; no scorer that catches exceptions swallows it."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise in this block after ``seconds``; in the main thread only, as signals are."""

    def stop(number: int, frame: Any) -> None:
        raise _TooSlow(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def odd_replies(registration: Registration) -> Iterator[Verdict]:
    """Check that an odd reply is answered: it does not raise, hang, or run as code."""
    raised: dict[str, str] = {}
    for number, reply in enumerate(ODD_REPLIES):
        builtins.__dict__.pop(_MARKER, None)
        shortened = repr(excerpt(reply, 60))
        with contained(RandomState.seeded(number)):
            try:
                episode = registration.begin(number)
            except Exception as error:
                yield Verdict("fails to begin", "fail", "some seeds begin no episode", _named(error))
                return
            try:
                with _limited(_SLOW_S):
                    episode.reply(reply)
            except _TooSlow as error:
                yield Verdict("hangs", "fail", f"a reply takes {error}", shortened)
                break
            except Exception as error:
                raised.setdefault(type(error).__name__, f"{shortened} raises {_named(error)}")
        if builtins.__dict__.pop(_MARKER, None):
            yield Verdict("runs code", "fail", "a reply is evaluated as Python", shortened)
            break  # what follows would be evaluated, too
    if raised:
        yield Verdict("raises", "fail", "a reply makes it raise", "; ".join(list(raised.values())[:3]))
    else:
        yield Verdict("raises", "pass", "odd replies are answered", f"{len(ODD_REPLIES)} replies")


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {excerpt(str(error), 80)}"


def idle(subject: Subject, full: float) -> Verdict:
    """Check that replies which do not depend on the task earn less than a tenth of the ``full`` reward."""
    indices, _ = subject.tasks(_EPISODES)
    most, best, says = -np.inf, [], ""
    for attack in COMMON:
        records = subject.play(AttackPolicy(attack), indices, subject.seed)
        if mean(records) > most:
            most, best, says = mean(records), records, attack.says
    evidence = f"the best of {len(COMMON)} {says}: {most:+.3f} in {len(indices)} episodes"
    if most >= _PAID * full:
        cause = "a reply that does not depend on the task earns a tenth of the full reward or more"
        return Verdict("pays for nothing", "fail", cause, evidence, show(best))
    return Verdict("pays for nothing", "pass", "replies that do not depend on the task earn next to nothing", evidence)


def global_generators(registration: Registration) -> Verdict:
    """Check whether an episode depends on the global generators after its seed is set.

    Another episode, or the trainer, draws from them as well: the same seed is then another episode.
    """
    differing = sum(_played(registration, seed, 1) != _played(registration, seed, 2) for seed in range(8))
    if differing:
        cause = "the same seed and replies give another episode where something else draws from the global generators"
        return Verdict("global generators", "fail", cause, f"{differing} of 8 episodes")
    return Verdict("global generators", "pass", "an episode draws from none", "8 episodes")


def _played(registration: Registration, seed: int, noise: int) -> list[str]:
    """Return the texts of an episode, with the global generators in a state of their own before each call."""
    with contained(RandomState.seeded(seed)):
        random.seed(noise)
        np.random.seed(noise)  # noqa: NPY002
        episode = registration.begin(seed)
        texts = [episode.opening]
        random.seed(noise)  # as if another episode were played in between
        np.random.seed(noise)  # noqa: NPY002
        for reply in (".", "[1]", "\\boxed{1}"):
            try:
                step = episode.reply(reply)
            except Exception:  # `odd_replies` reports it
                break
            texts.append(step.text)
            if step.done:
                break
        return texts


@dataclass
class _Form:
    """Answers of one form: how many were tried, and those that are judged wrongly."""

    tried: int = 0
    wrong: list[str] = field(default_factory=list)


def answers(registration: Registration) -> Iterator[Verdict]:
    """Check the scorer of a question: its own answer is right, also with spaces; answers that contradict are wrong."""
    forms: dict[str, _Form] = {kind: _Form() for kind in FORMS}
    rng = np.random.default_rng(0)
    keys = [_key(registration, seed) for seed in range(_EPISODES)]
    for seed, key in enumerate(keys):
        if key is None:
            continue
        right = _is_right(registration, seed, key)
        _count(forms["refuses its own answer"], right is False, key, key, seed)
        if not right:
            continue
        _count(forms["refuses spaces"], _is_right(registration, seed, f"\n {key} \n") is False, key, key, seed)
        different = list(dict.fromkeys(other for other in keys if other not in (None, key)))
        if not different or len(key) >= _SHORT:
            continue
        two = f"{key}. No, it is {different[seed % len(different)]}."
        listed = [*map(str, different[:_LISTED]), key]
        several = " or ".join(listed[int(place)] for place in rng.permutation(len(listed)))
        _count(forms["takes two answers"], _is_right(registration, seed, two) is True, two, key, seed)
        _count(forms["takes a list"], _is_right(registration, seed, several) is True, several, key, seed)
    for kind, form in forms.items():
        yield _judge(kind, form)


def _count(form: _Form, wrong: bool, answer: str, key: str, seed: int) -> None:
    form.tried += 1
    if wrong:
        form.wrong.append(f"{excerpt(answer, 160)!r}, where {excerpt(key, 60)!r} is right (seed {seed})")


def _judge(kind: str, form: _Form) -> Verdict:
    if not form.tried:
        return Verdict(kind, "skipped", "there is no answer key, or no answer that fits into a sentence")
    if len(form.wrong) > _SHARE * form.tried:
        return Verdict(kind, "fail", FORMS[kind], f"{len(form.wrong)} of {form.tried}; {form.wrong[0]}")
    return Verdict(kind, "pass", f"not so in {form.tried - len(form.wrong)} of {form.tried}", "".join(form.wrong[:1]))


def _key(registration: Registration, seed: int) -> str | None:
    with contained(RandomState.seeded(seed)):
        return registration.begin(seed).expert(np.random.default_rng(seed))


def _is_right(registration: Registration, seed: int, answer: str) -> bool | None:
    """Return whether an answer counts as right; ``None`` where it raises or hangs, which another check reports."""
    try:
        with contained(RandomState.seeded(seed)), _limited(_SLOW_S):
            reward = registration.begin(seed).reply(registration.form(answer)).reward
    except (Exception, _TooSlow):
        return None
    return reward >= _TAKEN * registration.full


def chance(registration: Registration, questions: int = 100) -> float:
    """Return one in as many as there are different answers to ``questions``; 0 where it is no question with a key.

    It is 0, too, where all seeds begin one question: its answer is known, and no guess.
    """
    if not (registration.question and registration.solvable):
        return 0.0
    keys = {_opening(registration, seed): _key(registration, seed) for seed in range(questions)}
    return 1.0 / len(set(keys.values())) if len(keys) > 1 else 0.0


def _opening(registration: Registration, seed: int) -> str:
    with contained(RandomState.seeded(seed)):
        return registration.begin(seed).opening


def timings(registration: Registration, episodes: int = 5) -> dict[str, float]:
    """Return milliseconds of an episode's beginning, after the first, and of a reply: means over ``episodes``."""
    with contained(RandomState.seeded(0)):
        registration.begin(0)
        started = time.perf_counter()
        begun = [registration.begin(seed) for seed in range(1, episodes + 1)]
        middle = time.perf_counter()
        for episode in begun:
            try:
                episode.reply("[1]")
            except Exception:  # `odd_replies` reports it
                continue
        ended = time.perf_counter()
    return {
        "begin_ms": 1000 * (middle - started) / episodes,
        "reply_ms": 1000 * (ended - middle) / episodes,
    }
