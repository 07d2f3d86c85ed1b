"""Twins of lives: a code is another one, or somebody never told what is to be forgotten or kept secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...env import TextEnv
from ...messages import Message, Messages, assistant, visible_text
from ...task import Task
from .expert import plan_of
from .facts import UNKNOWN, FactStore, Key
from .life import Life, life_of
from .tasks import life_of_task, task_of

#: Codes of a task that have twins, and the twins of each.
_CODES, _TWINS = 4, 3


def code_twins(life: Life) -> list[tuple[str, list[Task]]]:
    """Return tasks with other values of codes that the expert's answers need, told after the first session."""
    opening = {statement.number for statement in life.sessions[0].statements}
    asking = [session for session in life.sessions if session.question is not None]
    needed = {
        number: None
        for session, right in zip(asking, plan_of(life).right, strict=True)
        for number in session.needs
        if right and number not in opening
    }
    statements, facts = life.statements, []
    for number in list(needed)[:_CODES]:
        code, (person, about) = statements[number].value, statements[number].key
        turned = [code[turn:] + code[:turn] for turn in range(1, len(code))]
        values = list(dict.fromkeys(other for other in turned if other != code))[:_TWINS]
        unchanged = [one for one in life.codes if one[0] != number]
        twins = [life_of(life.key, (*unchanged, (number, value)), life.silent) for value in values]
        what = (
            f"what {person} promised for day {about}" if isinstance(about, int) else f"the code of {person}'s {about}"
        )
        facts.append((what, [task_of(one) for one in (life, *twins)]))
    return facts


@dataclass(frozen=True)
class SilentTwin:
    """A life in which somebody did not tell what they later want to be forgotten, or what another one must not hear.

    Args:
        task: The life.
        kind: ``"forget"`` or ``"secret"``.
        days: On which the question is about it, and the answer must be the same in both lives.
    """

    task: Task
    kind: str
    days: tuple[int, ...]


def silent_twins(life: Life) -> Iterator[SilentTwin]:
    """Yield a twin for each key that has forgotten or secret codes and is asked for later, where no code may be told.

    All replies to these questions must be as if the codes had never been told.
    """
    store = FactStore()
    numbers_of: dict[Key, list[int]] = {}
    forgotten: dict[tuple[int, ...], list[int]] = {}
    secret: dict[tuple[int, ...], list[int]] = {}
    removed: dict[Key, tuple[int, ...]] = {}
    for session in life.sessions:
        for statement in session.statements:
            store.add(statement)
            if statement.value:
                numbers_of.setdefault(statement.key, []).append(statement.number)
            elif statement.kind == "forget" and statement.key in numbers_of:
                removed[statement.key] = tuple(numbers_of[statement.key])
        question = session.question
        if question is None or question.program != "value":
            continue
        key, version = question.keys[0], store.version(question.keys[0])
        if key in removed and session.answer == UNKNOWN:
            forgotten.setdefault(removed[key], []).append(session.day)
        if version is not None and version.hidden_from == question.asker:
            secret.setdefault(tuple(one.number for one in store.chains[key]), []).append(session.day)
    for kind, entries in (("forget", forgotten), ("secret", secret)):
        for numbers, days in entries.items():
            codes = tuple(one for one in life.codes if one[0] not in numbers)
            yield SilentTwin(task_of(life_of(life.key, codes, (*life.silent, *numbers))), kind, tuple(days))


def replies_by_day(
    env: TextEnv[Any], task: Task, policy: Callable[[Messages], str | Message], seed: int = 0
) -> dict[int, str]:
    """Play a life, and return the policy's whole visible reply on each day that asks something."""
    observation, _ = env.reset(seed=seed, options={"task": task})
    life, answers = life_of_task(task), dict[int, str]()
    while not env.state.done:
        reply, day, asks = policy(observation), life.sessions[env.state.place].day, not env.state.writes
        observation, *_ = env.step(reply)
        if asks:
            answers[day] = visible_text(assistant(reply) if isinstance(reply, str) else reply)
    return answers


def differing(
    env: TextEnv[Any], life: Life, policy: Callable[[], Callable[[Messages], str | Message]], seed: int = 0
) -> tuple[int, int]:
    """Return how many answers about forgotten or secret codes differ between a life and its twins, and of how many.

    Args:
        env: A :class:`~textenvs.envs.sessions.env.Sessions` to play in.
        life: The life.
        policy: Makes a policy, anew for each life; with the same replies to the same conversation.
        seed: Of ``env.reset``.
    """
    own, wrong, total = replies_by_day(env, task_of(life), policy(), seed), 0, 0
    for twin in silent_twins(life):
        other = replies_by_day(env, twin.task, policy(), seed)
        wrong += sum(own[day] != other[day] for day in twin.days)
        total += len(twin.days)
    return wrong, total
