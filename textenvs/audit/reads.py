"""Twin worlds: each fact that a solution must find out is proven to be one, by tasks that differ in it alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from ..env import TextEnv
from ..evaluate.baselines import has_script
from ..messages import Message, Messages
from ..task import Task
from ..text import plural
from .subject import Subject, Verdict

_TASKS = 20  # whose facts are proven
_TURNS = 200  # that are played of an episode
_CHECK = "reads"


class _Flaw(Exception):
    """A fault of a task's twins."""


def reads(subject: Subject) -> Verdict:
    """Check the twins of tasks: without what shows a fact nobody can tell them apart, and no replies solve two.

    The expert plays the task and its twins. The openings are equal byte for byte, and so are its replies until it is
    shown something that differs. Its replies to the task are played in each twin, and those to the twin in the task:
    something that is shown differs, and what solves one does not solve the other. The ground truths of all differ.
    """
    indices, _ = subject.tasks(min(_TASKS, subject.episodes))
    proven: list[int] = []
    smallest = 0
    with closing(subject.make_env()) as env:
        for index in indices:
            task = env.tasks[index]
            facts = env.twin_worlds(task)
            if facts and not has_script(env, "expert"):
                return Verdict(
                    _CHECK, "skipped", "without a scripted expert nobody knows the replies that solve a twin"
                )
            proven.append(len(facts))
            for name, tasks in facts:
                try:
                    _prove(env, tasks, subject.seed + index)
                except _Flaw as flaw:
                    return Verdict(_CHECK, "fail", str(flaw), f"task {task.key}, fact: {name}")
                smallest = min(smallest or len(tasks), len(tasks))
    if not any(proven):
        cause = f"{type(env).__name__} offers no twin worlds (twin_worlds), so what a solution must read is not proven"
        return Verdict(_CHECK, "skipped", cause)
    evidence = f"{plural(len(proven), 'task')}, {plural(sum(proven), 'fact')} proven by {smallest} or more twins each"
    bound = f"a policy without one of them is right in {1 / smallest:.3f} of the twins at most"
    cause = f"reads needed: {np.mean(proven):.1f} a task; {bound}"
    return Verdict(_CHECK, "pass", cause, evidence)


def _prove(env: TextEnv[Any], tasks: Sequence[Task], seed: int) -> None:
    """Raise :class:`_Flaw` unless the tasks are twins."""
    if len({repr(task.ground_truth) for task in tasks}) < len(tasks):
        raise _Flaw("two twins have the same ground truth")
    own = _expert(env, tasks[0], seed)
    for twin in tasks[1:]:
        other = _expert(env, twin, seed)
        if own[1][0] != other[1][0]:
            raise _Flaw("twins have different openings: what differs must be found out")
        first = next((place for place, pair in enumerate(zip(own[1], other[1], strict=False)) if pair[0] != pair[1]), 0)
        if own[0][:first] != other[0][:first]:
            raise _Flaw("the expert's replies differ before anything shows the fact: it knows what it has not read")
        for (replies, observations), played_in in ((own, twin), (other, tasks[0])):
            seen, solved = _replayed(env, played_in, replies, seed)
            if solved:
                raise _Flaw("the same replies solve two twins: their ends must differ")
            if seen[: len(observations)] == observations:
                raise _Flaw("the expert's replies show nothing that differs between twins: it must look, then act")


def _expert(env: TextEnv[Any], task: Task, seed: int) -> tuple[list[str | Message], list[Messages]]:
    """Return the expert's replies and the observations before each; :class:`_Flaw`: it does not solve the task."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed, options={"task": task})
    replies: list[str | Message] = []
    observations = [observation]
    for _ in range(_TURNS):
        replies.append(env.demonstration(rng))
        observation, _, terminated, truncated, info = env.step(replies[-1])
        if terminated or truncated:
            if info["stop"] != "solved":
                raise _Flaw(f"the expert does not solve a twin: {info['stop']}")
            return replies, observations
        observations.append(observation)
    raise _Flaw(f"the expert does not end a twin within {_TURNS} replies")


def _replayed(
    env: TextEnv[Any], task: Task, replies: Sequence[str | Message], seed: int
) -> tuple[list[Messages], bool]:
    """Return the observations before each of some replies, and whether they solve a task."""
    observation, _ = env.reset(seed=seed, options={"task": task})
    observations = [observation]
    for reply in replies:
        observation, _, terminated, truncated, info = env.step(reply)
        if terminated or truncated:
            return observations, info["stop"] == "solved"
        observations.append(observation)
    return observations, False
