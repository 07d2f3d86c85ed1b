"""Checks of the contract of :mod:`textenvs.env` on episodes of mixed replies."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from math import fsum, isclose
from typing import Any

import gymnasium
import numpy as np

from ..env import TextEnv
from ..evaluate.baselines import has_script
from ..global_rng import RandomState
from ..messages import Message, Messages, text_of
from ..text import plural, quoted
from ..words import standing
from .process import Died, Unfinished, Unpicklable, run_in_new_process
from .subject import Subject, Verdict

# Replies that most environments have a branch for, beside those of its scripts.
_REPLIES = ("", "no", "#### 1", "\\boxed{1}", "I do not know. What do you mean?", "x" * 300)
_EPISODES = 8
_TURNS = 12  # that are played of an episode
_PLAIN = (int, float, str, bool, bytes, tuple, list, dict, set, frozenset, type(None))
_HOOKS = (("demonstration", "expert"), ("careless_reply", "careless"))
_OF_THE_BASE = frozenset(vars(gymnasium.Env)) | {
    "state", "_printed", "_np_random", "_np_random_seed", "observation_space", "action_space"
}  # fmt: skip


@dataclass(frozen=True)
class Played:
    """An episode: ``seen`` has the results of ``reset`` and of ``step`` for each reply."""

    seed: int
    replies: list[str | Message]
    seen: list[Any]
    contexts: tuple[Messages, ...]  # that were left before the last observation
    secrets: tuple[str, ...]
    changed: list[str]  # attributes of the environment, other than its state

    @property
    def turns(self) -> Iterator[tuple[int, str | Message, Any]]:
        """The number of each turn, its reply, and the result of ``step``."""
        return zip(count(1), self.replies, self.seen[1:])  # noqa: B905  one of them is endless


def play_episodes(subject: Subject) -> list[Played]:
    """Play episodes of garbage replies; on even seeds the environment's scripts reply, too."""
    episodes = []
    for seed in range(subject.seed, subject.seed + _EPISODES):
        with closing(subject.make_env()) as env:
            before = _attributes(env)
            seen: list[Any] = [env.reset(seed=seed)]
            replies: list[str | Message] = []
            for reply in islice(_replies(env, seed), _TURNS):
                replies.append(reply)
                seen.append(env.step(reply))
                if env.state.done:
                    break
            changed = _changed(before, _attributes(env))
            episodes.append(Played(seed, replies, seen, env.state.contexts, tuple(env.secrets()), changed))
    return episodes


def replay(
    make_env: Callable[[], TextEnv[Any]], seed: int, replies: Sequence[str | Message], *, noise: bool = False
) -> list[Any]:
    """Play replies again and return results as in ``Played.seen``; an exception of ``step`` is a result, too.

    With ``noise``, the global generators have another state before every turn, as if another episode had drawn.
    """
    with closing(make_env()) as env:
        results: list[Any] = [env.reset(seed=seed)]
        for turn, reply in enumerate(replies):
            if noise:
                RandomState.seeded(turn).install()
            results.append(_outcome(env, reply))
        return results


def determinism(subject: Subject, episodes: list[Played]) -> Verdict:
    """Check that the same seed and replies give the same episode, whatever the global generators hold."""
    outside = RandomState.current()
    try:
        for played in episodes:
            RandomState.seeded(played.seed).install()  # nothing may read it
            replayed = replay(subject.make_env, played.seed, played.replies, noise=True)
            for turn, (expected, actual) in enumerate(zip(played.seen, replayed, strict=True)):
                if actual != expected:
                    what = f"the same seed and replies gave another turn (seed {played.seed}, turn {turn})"
                    what = what if turn else f"reset(seed={played.seed}) gave two different openings"
                    remedy = "draw from self.np_random alone, and use no clock, id or global generator"
                    return Verdict("determinism", "fail", f"{what}; {remedy}", _difference(expected, actual))
    finally:
        outside.install()
    return Verdict("determinism", "pass", "the same seed and replies give the same episode", _count(episodes))


def processes(subject: Subject, episodes: list[Played]) -> Verdict:
    """Check that the same seed and replies give the same episode in another process."""
    local = [list(map(_digest, played.seen)) for played in episodes]
    try:
        remote = run_in_new_process(_replays, subject.make_env, [(played.seed, played.replies) for played in episodes])
    except Unpicklable as error:
        cause = "what makes the environment cannot be sent to another process; give a class of a module, or an id"
        return Verdict("processes", "skipped", cause, str(error))
    except (Died, Unfinished) as error:
        return Verdict("processes", "fail", "another process could not play the same episodes", str(error))
    for played, local_turns, remote_turns in zip(episodes, local, remote, strict=True):
        if local_turns != remote_turns:
            turn = next(
                number for number, pair in enumerate(zip(local_turns, remote_turns, strict=True)) if pair[0] != pair[1]
            )
            cause = (
                "another process plays the same seed and replies differently; depend on no order of a set, no hash() "
                "or id(), and draw from self.np_random alone"
            )
            return Verdict("processes", "fail", cause, f"seed {played.seed}, turn {turn}")
    return Verdict("processes", "pass", "another process plays the same episodes", plural(len(episodes), "episode"))


def _replays(make_env: Callable[[], TextEnv[Any]], episodes: list[tuple[int, list[Any]]]) -> list[list[str]]:
    return [list(map(_digest, replay(make_env, seed, replies))) for seed, replies in episodes]


def _digest(result: Any) -> str:
    return hashlib.sha256(repr(result).encode(errors="backslashreplace")).hexdigest()[:16]


def copies(subject: Subject, episodes: list[Played]) -> Verdict:
    """Check that a restored snapshot and a fork continue alike, and that a fork does not change its origin."""
    remedy = (
        "what changes during an episode belongs in self.state: a subclass of EpisodeState with a field for it, named "
        f"in {type(subject.env).__name__}.state_type; snapshots, forks and training play it wrongly otherwise"
    )
    for played in episodes:
        changed = f"self.{', self.'.join(played.changed)} changed while an episode was played"
        with closing(subject.make_env()) as env:
            env.reset(seed=played.seed)
            for turn, reply, expected in played.turns:
                with closing(subject.make_env()) as other:
                    fork = env.fork()
                    other.restore(copy.deepcopy(env.snapshot()))
                    copies_by_label = {"a snapshot restored in another environment": other, "a fork": fork}
                    copies_by_label["the same environment, with a fork that was played beside it,"] = env
                    for label, copied in copies_by_label.items():
                        actual = _outcome(copied, reply)
                        if actual != expected:
                            what = f"{label} continued differently (seed {played.seed}, turn {turn})"
                            hint = f" ({changed})" if played.changed else ""
                            return Verdict("copies", "fail", f"{what}{hint}; {remedy}", _difference(expected, actual))
        if played.changed:
            return Verdict("copies", "fail", f"{changed} (seed {played.seed}); {remedy}")
    return Verdict("copies", "pass", "snapshots, restored ones and forks continue alike", _count(episodes))


def terms(subject: Subject, episodes: list[Played]) -> Verdict:
    """Check that the terms of every reward sum to it and have the same names on every turn."""
    expected_names: tuple[str, ...] | None = None
    for played in episodes:
        for turn, _, (_, reward, _, _, info) in played.turns:
            where = f"seed {played.seed}, turn {turn}"
            if not isclose(fsum(info["terms"].values()), reward, rel_tol=1e-9, abs_tol=1e-9):
                cause = f"a turn's terms do not sum to its reward ({where}); return both from one Turn"
                return Verdict("terms", "fail", cause, f"reward {reward:g}, terms {quoted(info['terms'])}")
            names = tuple(sorted(info["terms"]))
            if expected_names not in (None, names) and not info["failed"]:
                cause = (
                    f"the names of the terms change ({where}). Give the same terms on every turn, 0.0 where there is "
                    "nothing to say: means over turns and weights of terms need them"
                )
                return Verdict("terms", "fail", cause, f"{list(names)}, another turn had {list(expected_names or ())}")
            expected_names = expected_names if info["failed"] else names
    return Verdict(
        "terms", "pass", "they sum to the reward, with the same names on every turn", ", ".join(expected_names or ())
    )


def endings(subject: Subject, episodes: list[Played]) -> Verdict:
    """Check that no turn is both terminated and truncated, that an end has a reason, and that only an end has one."""
    for played in episodes:
        for turn, _, (_, _, terminated, truncated, info) in played.turns:
            where = f"seed {played.seed}, turn {turn}"
            if terminated and truncated:
                cause = f"a turn is terminated and truncated ({where}); a budget truncates only what is not over"
                return Verdict("endings", "fail", cause, f"stop {info['stop']!r}")
            if (terminated or truncated) != (info["stop"] is not None):
                cause = f"info['stop'] and the end do not come together ({where}); let TextEnv.step set both"
                return Verdict("endings", "fail", cause, f"{terminated=}, {truncated=}, stop {info['stop']!r}")
    return Verdict("endings", "pass", "never terminated and truncated, and every end has a reason", _count(episodes))


def secrets(subject: Subject, episodes: list[Played]) -> Verdict:
    """Check that no observation and no ``info`` has a secret before the policy said it."""
    tested = 0
    for played in episodes:
        opening, last = played.seen[0][0], played.seen[-1][0]
        conversations = (*played.contexts, last)
        question = " ".join(map(text_of, opening))
        last = [message for messages in conversations for message in messages if message not in opening]
        replies = " ".join(repr(message) for message in last if message["role"] == "assistant")
        answers = " ".join(text_of(message) for message in last if message["role"] != "assistant")
        results = " ".join(repr(turn[-1]) for turn in played.seen)
        for secret in played.secrets:
            text = rf"(?<![.,]){standing(secret).pattern}(?![.,]\d)"
            if re.search(text, question) or re.search(text, replies):
                continue  # a number of the question may be the answer by chance
            tested += 1
            place = "a message" if re.search(text, answers) else None
            # A short number stands in info by chance: a count, a reward of 0.
            if place is None and len(secret) >= 4 and re.search(text, results):
                place = "info"
            if place:
                cause = f"{place} has a secret before the policy said it (seed {played.seed}); leave it out, or out of"
                return Verdict("secrets", "fail", f"{cause} secrets() if it may be asked for", quoted(secret))
    if not tested:
        cause = "no secret of the episodes could be looked for: secrets() is empty, or the openings have them"
        return Verdict("secrets", "skipped", cause)
    return Verdict("secrets", "pass", "no observation and no info has one", f"{tested} secrets looked for")


def _outcome(env: TextEnv[Any], reply: str | Message) -> Any:
    try:
        return env.step(reply)
    except Exception as error:
        return error


def _difference(expected: Any, actual: Any) -> str:
    if isinstance(actual, Exception):
        return f"it raised {type(actual).__name__}: {quoted(str(actual))}"
    names = ("conversation", "reward", "terminated", "truncated", "info") if len(expected) == 5 else ("opening", "info")
    name, was, now = next((n, a, b) for n, a, b in zip(names, expected, actual, strict=True) if a != b)
    return f"another {name}: {quoted(now)} and not {quoted(was)}"


def _count(episodes: list[Played]) -> str:
    turns = sum(len(played.replies) for played in episodes)
    return f"{plural(len(episodes), 'episode')}, {plural(turns, 'turn')}"


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


def _attributes(env: TextEnv[Any]) -> dict[str, Any]:
    """Return a copy of the environment's own plain attributes; what its copies leave out is a cache."""
    copied = env.__getstate__()
    return {
        name: copy.deepcopy(value)
        for name, value in (copied if isinstance(copied, dict) else vars(env)).items()
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
