"""Baseline returns of an environment: its scripted expert, careless replies, random ones and attacks.

An expert below the maximum says that tasks cannot be solved or are judged wrongly; a random policy near it says that
there is nothing to learn; an attack near it, that the reward can be had without the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..attack import Attack
from ..env import TextEnv
from ..event_loop import wait_for
from ..task import TaskSet
from .plan import Job, choose_tasks, jobs
from .policies import AttackPolicy, Policy, Script, ScriptedPolicy
from .records import Record
from .runner import run


def play_script(
    make_env: Callable[[], TextEnv[Any]], script: Script, episodes: int = 200, *, seed: int = 0
) -> list[Record]:
    """Return records of an environment's script, in order: each episode another task, at most as many as there are.

    ``Stopped`` where episodes in a row failed, as they do where there is no such script (:func:`has_script`).
    """
    env = make_env()
    indices, _ = split_tasks(env, episodes, 0, seed)
    return play_policy(env, ScriptedPolicy(script), jobs(indices, 1, seed))


def play_attack(
    make_env: Callable[[], TextEnv[Any]], attack: Attack, episodes: int = 200, *, seed: int = 0
) -> list[Record]:
    """Let an attack play the episodes of :func:`play_script` with the same seed.

    It rehearses on episodes of the expert on other tasks: a set that is too small for both is divided
    (:func:`split_tasks`).
    """
    env = make_env()
    indices, rehearsal_tasks = split_tasks(env, episodes, attack.rehearse, seed)
    return play_policy(env, rehearsed(env, attack, rehearsal_tasks, seed), jobs(indices, 1, seed))


def rehearsed(env: TextEnv[Any], attack: Attack, rehearsal_tasks: Sequence[int], seed: int) -> AttackPolicy:
    """Return the attack as a policy that has seen the expert play ``rehearsal_tasks``; ``env`` is unchanged."""
    earlier = (
        play_policy(env.fork(), ScriptedPolicy("expert"), jobs(rehearsal_tasks, 1, seed + 1_000_003))
        if rehearsal_tasks
        else []
    )
    return AttackPolicy(attack, [record.messages for record in earlier])


def split_tasks(env: TextEnv[Any], episodes: int, extra: int, seed: int) -> tuple[list[int], list[int]]:
    """Draw indices of tasks to play, and of ``extra`` other tasks, as far as there are enough.

    The first are those of :func:`play_script` with this seed; in a set too small for both, some of them, at least half.
    """
    size = env.tasks.size
    played = list(choose_tasks(env.tasks, episodes if size is None else min(episodes, size), seed))
    if not extra:
        return played, []
    rng = np.random.default_rng([seed, 7])
    if size is not None:
        most = max(1, size // 2, size - extra)
        played = sorted(int(index) for index in rng.permutation(played)[:most])
    return played, other_tasks(env.tasks, played, extra, seed, rng)


def other_tasks(
    tasks: TaskSet, played: Sequence[int], count: int, seed: int, rng: np.random.Generator | None = None
) -> list[int]:
    """Draw indices of ``count`` tasks that are not among ``played``; fewer where there are too few."""
    if tasks.size is None:
        drawn = choose_tasks(tasks, len(played) + count, seed + 1_000_003)
        return [index for index in drawn if index not in set(played)][:count]
    remaining = sorted(set(range(tasks.size)) - set(played))
    rng = np.random.default_rng([seed, 7]) if rng is None else rng
    return sorted(int(index) for index in rng.permutation(remaining)[:count])


def same_tasks(records: Iterable[Record], reference: Iterable[Record]) -> list[Record]:
    """Return the ``records`` on the tasks of ``reference``: only these can be compared with it."""
    indices = {record.task_index for record in reference}
    return [record for record in records if record.task_index in indices]


def has_script(env: TextEnv[Any], script: Script) -> bool:
    """Return whether ``env`` has this script; every environment has random replies."""
    hook = {"expert": "demonstration", "careless": "careless_reply"}.get(script)
    return hook is None or hook in env.scripts


def play_policy(env: TextEnv[Any], policy: Policy, played: Iterable[Job], *, max_failures: int = 8) -> list[Record]:
    """Let a policy play ``env``, and close it; give a fork where it is needed afterwards."""
    records: list[Record] = []
    # One worker: scripts do not wait, so there is nothing to overlap.
    playing = run(played, lambda: env, policy, on_record=records.append, concurrency=1, max_failures=max_failures)
    wait_for(playing)  # type: ignore[arg-type]  # mypy finds no T for None
    return records
