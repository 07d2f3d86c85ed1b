"""What an author can check of an environment of their own, beyond Gymnasium's ``check_env``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

from ..env import TextEnv
from ..messages import Message
from ..text import quoted
from .baselines import has_script

# Replies that most environments have a branch for, beside those of its scripts.
_REPLIES = ("", "no", "#### 1", "\\boxed{1}", "I do not know. What do you mean?", "x" * 300)
_TURNS = 12  # that are played of an episode
_PLAIN = (int, float, str, bool, bytes, tuple, list, dict, set, frozenset, type(None))


class ContractError(AssertionError):
    """An environment that does not keep the contract; the message says what is wrong and how to mend it."""


def check_contract(make_env: Callable[[], TextEnv[Any]], *, seeds: Iterable[int] = range(8)) -> None:
    """Play episodes of an environment in several ways, and compare.

    * The same seed and replies give the same episode.
    * A snapshot that is restored elsewhere, and a fork, continue alike, and a fork changes nothing where it came from:
      all that changes during an episode is in ``self.state``.
    * The terms of the reward have the same names on every turn of every episode.

    Args:
        make_env: Makes the environment: its class, or ``lambda: textenvs.make(id)``.
        seeds: Of the episodes. Even ones are played with replies of its scripts, where it has some.

    Raises:
        ContractError: Something does not hold.
    """
    terms: tuple[str, ...] | None = None
    for seed in seeds:
        env = make_env()
        before = _attributes(env)
        opening = env.reset(seed=seed)
        played: list[tuple[str | Message, Any]] = []
        for reply in _replies(env, seed):
            result = env.step(reply)
            played.append((reply, result))
            found, info = tuple(sorted(result[4]["terms"])), result[4]
            if not info["failed"] and terms not in (None, found):
                raise ContractError(
                    f"{_name(env)}: a turn's reward has the terms {list(found)}, another's had {list(terms or ())} "
                    f"(seed {seed}, turn {len(played)}). Give the same terms on every turn, 0.0 where there is nothing "
                    "to say: means over turns and weights of terms need them"
                )
            terms = terms if info["failed"] else found
            if env.state.done or len(played) == _TURNS:
                break
        changed = _changed(before, _attributes(env))
        _compare(make_env, opening, played, seed, changed)
        if changed:
            raise ContractError(
                f"{_name(env)}: self.{', self.'.join(changed)} changed while an episode was played (seed {seed}); "
                + _keep_in_state(env)
            )
        env.close()


def _compare(
    make_env: Callable[[], TextEnv[Any]],
    opening: Any,
    played: list[tuple[str | Message, Any]],
    seed: int,
    changed: list[str],
) -> None:
    env = make_env()
    if env.reset(seed=seed) != opening:
        raise ContractError(
            f"{_name(env)}: reset(seed={seed}) gave two different openings; draw from self.np_random alone, and use "
            "no clock, id or global generator"
        )
    for turn, (reply, expected) in enumerate(played):
        other, fork = make_env(), env.fork()
        other.restore(copy.deepcopy(env.snapshot()))
        for how, each in (("a snapshot restored in another environment", other), ("a fork", fork)):
            found = _outcome(each, reply)
            if found != expected:
                _refuse(each, how, turn, seed, expected, found, changed)
        found = _outcome(env, reply)
        if found != expected:
            how = "the same seed and replies once more, with a fork that was played beside it,"
            _refuse(env, how, turn, seed, expected, found, changed)
    env.close()


def _outcome(env: TextEnv[Any], reply: str | Message) -> Any:
    try:
        return env.step(reply)
    except Exception as error:
        return error


def _refuse(env: TextEnv[Any], how: str, turn: int, seed: int, expected: Any, found: Any, changed: list[str]) -> None:
    if isinstance(found, Exception):
        what = f"raised {type(found).__name__}: {quoted(str(found))}"
    else:
        names = ("conversation", "reward", "terminated", "truncated", "info")
        name, was, now = next((n, a, b) for n, a, b in zip(names, expected, found, strict=True) if a != b)
        what = f"gave another {name}: {quoted(now)} and not {quoted(was)}"
    hint = f" (self.{', self.'.join(changed)} changed during the episode)" if changed else ""
    cause = found if isinstance(found, Exception) else None
    raise ContractError(
        f"{_name(env)}: {how} {what} (seed {seed}, turn {turn + 1}){hint}; {_keep_in_state(env)}"
    ) from cause


def _keep_in_state(env: TextEnv[Any]) -> str:
    return (
        "what changes during an episode belongs in self.state: a subclass of EpisodeState with a field for it, named "
        f"in {_name(env)}.state_type; snapshots, forks and training play it wrongly otherwise"
    )


def _replies(env: TextEnv[Any], seed: int) -> Iterator[str | Message]:
    rng = np.random.default_rng(seed)
    scripts = [getattr(env, hook) for hook, name in _HOOKS if has_script(env, name)]  # type: ignore[arg-type]
    while True:
        if scripts and seed % 2 == 0 and rng.random() < 0.7:
            try:
                yield scripts[int(rng.integers(len(scripts)))](rng)
                continue
            except NotImplementedError:  # not with these options
                scripts = []
        yield _REPLIES[int(rng.integers(len(_REPLIES)))]


_HOOKS = (("demonstration", "expert"), ("careless_reply", "careless"))
_OF_THE_BASE = frozenset(vars(gymnasium.Env)) | {
    "state", "_printed", "_np_random", "_np_random_seed", "observation_space", "action_space"
}  # fmt: skip


def _attributes(env: TextEnv[Any]) -> dict[str, Any]:
    """A copy of what is plain data among the environment's own attributes."""
    return {
        name: copy.deepcopy(value)
        for name, value in vars(env).items()
        if name not in _OF_THE_BASE and isinstance(value, _PLAIN)
    }


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    missing = object()
    return sorted(name for name in {*before, *after} if not _same(before.get(name, missing), after.get(name, missing)))


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # of things that refuse to be compared nothing is known
        return True


def _name(env: TextEnv[Any]) -> str:
    return type(env).__name__
