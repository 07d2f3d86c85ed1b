"""What an environment's scripts and its attacks earn, level by level."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..env import TextEnv
from ..evaluate.baselines import has_script, play_attack, play_script
from ..evaluate.policies import SCRIPTS
from ..evaluate.records import Record
from ..evaluate.runner import Stopped
from ..registry import make


@dataclass(frozen=True)
class Earning:
    """What one policy earned.

    Args:
        policy: The script's or the attack's name.
        says: What it does, of an attack; else nothing.
        records: Its episodes; none where it could not play.
        cause: Why it could not play.
    """

    policy: str
    says: str
    records: Sequence[Record]
    cause: str = ""

    @property
    def good(self) -> list[Record]:
        """The episodes that did not fail."""
        return [record for record in self.records if not record.failed]


def makers(env_id: str, options: Mapping[str, Any]) -> dict[str, Callable[[], TextEnv[Any]]]:
    """What makes an environment at each of its levels; under ``""`` where it has none, or one is among the options."""
    env = make(env_id, **options)
    env.close()
    levels = env.levels if "level" not in options else ()
    if not levels:
        return {"": functools.partial(make, env_id, **options)}
    return {level: functools.partial(make, env_id, level=level, **options) for level in levels}


def earnings(make_env: Callable[[], TextEnv[Any]], episodes: int = 200, *, seed: int = 0) -> list[Earning]:
    """Let the scripts and then the attacks play the same tasks.

    Args:
        make_env: Makes the environment.
        episodes: Of each policy, at most as many as there are tasks.
        seed: Decides tasks and randomness.
    """
    env = make_env()
    env.close()
    plays: list[tuple[str, str, Callable[[], list[Record]]]] = [
        (script, "", functools.partial(play_script, make_env, script, episodes, seed=seed))
        for script in SCRIPTS
        if has_script(env, script)
    ]
    plays += [
        (attack.name, attack.says, functools.partial(play_attack, make_env, attack, episodes, seed=seed))
        for attack in env.attacks()
        if has_script(env, "expert") or not attack.rehearse
    ]
    found = []
    for name, says, play in plays:
        try:
            found.append(Earning(name, says, play()))
        except Stopped as stopped:
            found.append(Earning(name, says, (), str(stopped)))
    return found
