"""Checks of published environments besides ``textenvs.audit``: of answers, odd replies and randomness.

A check returns a :class:`~textenvs.audit.Verdict`; its name is the kind of the finding.
"""

from __future__ import annotations

import builtins
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from textenvs.attack import COMMON
from textenvs.audit.subject import Subject, Verdict, mean, show
from textenvs.evaluate.policies import AttackPolicy
from textenvs.global_rng import RandomState, contained
from textenvs.text import excerpt

from .published import Episode, Published

_EPISODES = 20
#: Seconds that a reply may take.
_SLOW_S = 5.0
#: Share of the full reward from which an answer counts as taken.
_TAKEN = 0.99
#: Share of the full reward that a reply without the task must stay below.
_PAID = 0.1
#: Answers to a question, by the finding where they are refused or taken.
_FORMS = {
    "refuses its own answer": "the package's own answer is not right for its scorer",
    "refuses spaces": "the right answer between spaces or lines is not right",
    "takes two answers": "the right answer and then another one is right",
    "takes a list": "a list of answers with the right one among them is right",
}
_SHORT = 200  # characters of an answer that can stand in a sentence
_MARKER = "_field_audit_was_here"
_CODE = f"__import__('builtins').__dict__.__setitem__('{_MARKER}', 1)"
ODD_REPLIES = (
    *("", " ", "\n", ".", "\x00", "\ud7ff", "None", "null", "nan", "inf", "-1", "1/0", "1e999", "0x10", "True"),
    *("[]", "{}", "()", "[[[", "}{", '"', "\\boxed{}", "\\frac{1}{0}", "<answer></answer>", "a" * 20_000),
    *("9" * 5_000, "(" * 2_000, "9**9**9", "[1, 2, 3]", '{"a": 1}', "1,2", "1 2 3", "\u0663", _CODE, f"[{_CODE}]"),
)


class _TooSlow(Exception):
    pass


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


def odd_replies(published: Published) -> Verdict:
    """Check that an odd reply is answered: it does not raise, hang, or run as code."""
    raised: dict[str, str] = {}
    for number, reply in enumerate(ODD_REPLIES):
        builtins.__dict__.pop(_MARKER, None)
        cause = ""
        try:
            with contained(RandomState.seeded(number)):
                episode = published.begin(number)
                with _limited(_SLOW_S):
                    episode.reply(reply)
        except _TooSlow as error:
            return Verdict("hangs", "fail", f"a reply takes {error}", repr(excerpt(reply, 60)))
        except Exception as error:
            cause = f"{type(error).__name__}: {excerpt(str(error), 80)}"
        if builtins.__dict__.pop(_MARKER, None):
            return Verdict("runs code", "fail", "a reply is evaluated as Python", excerpt(reply, 120))
        if cause:
            raised.setdefault(cause.partition(":")[0], f"{excerpt(reply, 40)!r} raises {cause}")
    if raised:
        return Verdict("raises", "fail", "a reply makes it raise", "; ".join(list(raised.values())[:3]))
    return Verdict("raises", "pass", "odd replies are answered", f"{len(ODD_REPLIES)} replies")


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


def global_generators(published: Published) -> Verdict:
    """Check whether an episode depends on the global generators after its seed is set.

    Another episode, or the trainer, draws from them as well: the same seed is then another episode.
    """
    openings: list[list[str]] = []
    for noise in (1, 2):
        played = []
        for seed in range(8):
            with contained(RandomState.seeded(seed)):
                random.seed(noise)
                np.random.seed(noise)  # noqa: NPY002
                episode = published.begin(seed)
                texts = [episode.opening]
                random.seed(noise)  # another episode is played in between
                np.random.seed(noise)  # noqa: NPY002
                for reply in (".", "[1]", "\\boxed{1}"):
                    try:
                        step = episode.reply(reply)
                    except Exception:
                        break
                    texts.append(step.text)
                    if step.done:
                        break
                played.append("\n".join(texts))
        openings.append(played)
    different = sum(one != other for one, other in zip(*openings, strict=True))
    if different:
        cause = "the same seed and replies give another episode where something else draws from the global generators"
        return Verdict("global generators", "fail", cause, f"{different} of 8 episodes")
    return Verdict("global generators", "pass", "an episode draws from none", "8 episodes")


def answers(published: Published) -> Iterator[Verdict]:
    """Check the scorer of a question: its own answer is right, also with spaces; answers that contradict are wrong."""
    cases: dict[str, list[str]] = {kind: [] for kind in _FORMS}
    tried, rng = 0, np.random.default_rng(0)
    keys = [_key(published, seed, rng) for seed in range(_EPISODES)]
    for seed, key in enumerate(keys):
        if key is None:
            continue
        tried += 1
        different = [other for other in keys if other not in (None, key)]
        forms = {"refuses its own answer": key, "refuses spaces": f"\n {key} \n"}
        if different and len(key) < _SHORT:
            forms["takes two answers"] = f"{key}. No, it is {different[seed % len(different)]}."
            forms["takes a list"] = " or ".join([*map(str, different[:8]), key])
        for kind, answer in forms.items():
            if kind == "refuses spaces" and cases["refuses its own answer"]:
                continue
            earned = _earned(published, seed, f"<answer>{answer}</answer>" if published.tagged else answer)
            if (earned >= _TAKEN * published.full) != kind.startswith("refuses"):
                cases[kind].append(f"{answer[:160]!r} earns {earned:.2f} (right: {key[:60]!r}, seed {seed})")
    for kind, cause in _FORMS.items():
        yield _judge(kind, cases[kind], tried, cause)


def _judge(kind: str, cases: list[str], tried: int, cause: str) -> Verdict:
    if not tried:
        return Verdict(kind, "skipped", "it says no right answer")
    if 4 * len(cases) > tried:  # of a few items, a coincidence: another answer may be right as well
        return Verdict(kind, "fail", cause, f"{len(cases)} of {tried}; {cases[0]}")
    return Verdict(kind, "pass", f"not so in {tried - len(cases)} of {tried}", "; ".join(cases[:1]))


def _key(published: Published, seed: int, rng: np.random.Generator) -> str | None:
    with contained(RandomState.seeded(seed)):
        return published.begin(seed).expert(rng)


def _earned(published: Published, seed: int, answer: str) -> float:
    """Return what a reply earns; 0 where it raises, which :func:`odd_replies` reports."""
    try:
        with contained(RandomState.seeded(seed)), _limited(_SLOW_S):
            return published.begin(seed).reply(answer).reward
    except Exception:
        return 0.0


def measured(begin: Callable[[int], Episode]) -> dict[str, float]:
    """Return milliseconds of an episode's beginning, after the first, and of a reply."""
    with contained(RandomState.seeded(0)):
        begin(0)
        started = time.perf_counter()
        episodes = [begin(seed) for seed in range(1, 6)]
        begun = time.perf_counter()
        for episode in episodes:
            try:
                episode.reply("[1]")
            except Exception:
                continue
        ended = time.perf_counter()
    return {"begin_ms": 200 * (begun - started), "reply_ms": 200 * (ended - begun)}
