"""What an environment is worth: the returns of its scripted expert, of careless replies and of random ones.

An expert below the maximum says that tasks cannot be solved or are judged wrongly; a random policy near it says that
there is nothing to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..attack import Attack
from ..env import TextEnv
from ..event_loop import wait_for
from .plan import Job, choose_tasks, jobs
from .policies import AttackPolicy, Policy, Script, ScriptedPolicy
from .records import Record
from .runner import run


def play_script(
    make_env: Callable[[], TextEnv[Any]], script: Script, episodes: int = 200, *, seed: int = 0
) -> list[Record]:
    """Let one of an environment's scripts play, each episode another task.

    Args:
        make_env: Makes the environment; the call is ``textenvs.make(id)`` for one with an id.
        script: ``"expert"``, ``"careless"`` or ``"random"``.
        episodes: How many, at most as many as there are tasks.
        seed: Decides tasks and randomness.

    Returns:
        The episodes' records, in order; :func:`~textenvs.evaluate.summary.summarize` makes numbers of them.

    Raises:
        NotImplementedError: The environment has no such script.
        Stopped: Episodes in a row failed.

    Example:
        >>> import textenvs
        >>> records = play_script(lambda: textenvs.make("textenv/gsm8k", level="easy"), "expert", 20)
        >>> sum(record.success for record in records)
        20
    """
    env = make_env()
    if not has_script(env, script):
        env.close()
        raise NotImplementedError(f"{type(env).__name__} has no script {script!r}")
    count = episodes if env.tasks.size is None else min(episodes, env.tasks.size)
    indices = choose_tasks(env.tasks, count, seed)
    return wait_for(_records(jobs(indices, 1, seed), env, ScriptedPolicy(script)))


def play_attack(
    make_env: Callable[[], TextEnv[Any]], attack: Attack, episodes: int = 200, *, seed: int = 0
) -> list[Record]:
    """Let an attack play, each episode another task.

    Args:
        make_env: Makes the environment.
        attack: One of the environment's :meth:`~textenvs.TextEnv.attacks`. What it rehearses are episodes of the
            expert's on other tasks where the task set has enough of them.
        episodes: How many, at most as many as there are tasks.
        seed: Decides tasks and randomness: with the same seed, the tasks of :func:`play_script`.

    Returns:
        The episodes' records, in order.

    Raises:
        Stopped: Episodes in a row failed.
    """
    earlier = play_script(make_env, "expert", attack.rehearse, seed=seed + 1_000_003) if attack.rehearse else []
    rehearsed = [record.messages for record in earlier]
    env = make_env()
    count = episodes if env.tasks.size is None else min(episodes, env.tasks.size)
    indices = choose_tasks(env.tasks, count, seed)
    return wait_for(_records(jobs(indices, 1, seed), env, AttackPolicy(attack, rehearsed)))


def has_script(env: TextEnv[Any], script: Script) -> bool:
    """Whether ``env`` has this script; random replies it always has."""
    hook = {"expert": "demonstration", "careless": "careless_reply"}.get(script)
    return hook is None or getattr(type(env), hook) is not getattr(TextEnv, hook)


async def _records(played: Iterable[Job], env: TextEnv[Any], policy: Policy) -> list[Record]:
    records: list[Record] = []
    # One worker: scripts do not wait, so there is nothing to overlap.
    await run(played, lambda: env, policy, on_record=records.append, concurrency=1)
    return records
