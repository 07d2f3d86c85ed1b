"""``textenvs audit``: check an environment's contract first, then what it pays for cheap replies.

Each check is a function that returns a :class:`Verdict`: the result, with cause and evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from ..env import TextEnv
from ..evaluate.runner import Stopped
from .answers import answers
from .contract import copies, determinism, endings, play_episodes, processes, secrets, terms
from .earnings import cost, failing_first, own_attacks, remembering, returns, unasked
from .farming import farming
from .odd_replies import odd_replies
from .programs import programs
from .reads import reads
from .search import search
from .subject import Subject, Verdict
from .twins import twins

__all__ = ["Subject", "Verdict", "audit", "checks", "contract"]


def audit(make_env: Callable[[], TextEnv[Any]], **options: int) -> list[Verdict]:
    """Audit an environment; it is sound if no verdict has ``failed``.

    Args:
        make_env: Makes it; as of :class:`Subject`, and so are ``options``.
        **options: ``episodes``, ``seed``, ``search``.
    """
    return list(checks(Subject(make_env, **options)))


def contract(subject: Subject) -> Iterator[Verdict]:
    """Yield the verdicts that need no comparison of returns."""
    try:
        episodes = play_episodes(subject)
    except Exception as error:
        cause = "a reply makes it raise; a bad reply is something to answer, not an error"
        yield Verdict("episodes", "fail", cause, f"{type(error).__name__}: {error}")
        return
    for check in (determinism, copies, processes, terms, endings, secrets):
        yield check(subject, episodes)


def checks(subject: Subject) -> Iterator[Verdict]:
    """Yield all verdicts as they are found; the subject is closed at the end."""
    with closing(subject.env):
        for verdict in contract(subject):
            yield verdict
            if verdict.check == "episodes":
                return
        try:
            yield returns(subject)
            yield from odd_replies(subject)
            yield from answers(subject)
            yield from own_attacks(subject)
            yield from farming(subject)
            for check in (twins, reads, unasked, failing_first, remembering, programs, search, cost):
                yield check(subject)
        except Stopped as stopped:
            yield Verdict("returns", "fail", "the environment fails, episode after episode", str(stopped))
