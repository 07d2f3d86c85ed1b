"""The environment under audit, and the verdict of a check."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..attack import COMMON
from ..env import TextEnv
from ..evaluate.baselines import has_script, play_attack, play_policy, play_script, split_tasks
from ..evaluate.plan import Job, jobs
from ..evaluate.policies import Policy
from ..evaluate.records import Record
from ..evaluate.runner import Stopped
from ..messages import transcript
from ..text import excerpt

Status = Literal["pass", "fail", "warning", "skipped"]

_SHOWN_CHARS = 400  # of a message in a transcript
_SHOWN_MESSAGES = 12
#: Says nothing.
SILENCE = next(attack for attack in COMMON if attack.name == "silence")


@dataclass(frozen=True)
class Verdict:
    """Result of one check."""

    check: str
    status: Status  # "warning" and "skipped" do not fail an audit
    cause: str  # what is wrong and how to mend it, what was not judged and why, or what was found to hold
    evidence: str = ""  # the numbers, the seed or the words that it rests on
    transcript: str = ""  # the conversation of a policy that was found, where there is one

    @property
    def failed(self) -> bool:
        return self.status == "fail"


@dataclass
class Subject:
    """An environment under audit; results that several checks use are computed once."""

    #: Its class, or ``functools.partial(textenvs.make, id, ...)``. A picklable one also plays in another process.
    make_env: Callable[[], TextEnv[Any]]
    episodes: int = 200  # of every policy whose mean return is judged, at most as many as there are tasks
    seed: int = 0  # decides tasks, replies and what the search tries
    search: int = 200  # how many cheap policies the search draws, before it tries those near the best

    def __post_init__(self) -> None:
        self.env = self.make_env()

    @functools.cached_property
    def random(self) -> list[Record]:
        return play_script(self.make_env, "random", self.episodes, seed=self.seed)

    @functools.cached_property
    def expert(self) -> list[Record]:
        """The same episodes, of the scripted expert; empty where there is none, or not with these options."""
        if not has_script(self.env, "expert"):
            return []
        try:
            return play_script(self.make_env, "expert", self.episodes, seed=self.seed)
        except Stopped as stopped:
            if "NotImplementedError" in str(stopped):
                return []
            raise

    @functools.cached_property
    def silence(self) -> list[Record]:
        """The same episodes, with an empty reply on every turn."""
        return play_attack(self.make_env, SILENCE, self.episodes, seed=self.seed)

    @property
    def floor(self) -> float:
        """The mean return of doing nothing; see :func:`floor_of`."""
        return floor_of(mean(self.silence), mean(self.expert))

    @property
    def limit(self) -> float:
        """The mean return that no cheap policy may exceed; infinite without an expert."""
        return below_expert(self.env, mean(self.expert), mean(self.silence)) if self.expert else math.inf

    def play(self, policy: Policy, indices: Sequence[int], seed: int) -> list[Record]:
        """Let a policy play tasks. An exception of the environment becomes a failed record."""
        return play_policy(self.env.fork(), policy, jobs(indices, 1, seed), max_failures=2**31)

    def play_again(self, policy: Policy, records: Iterable[Record]) -> list[Record]:
        """Let a policy play the episodes of ``records``."""
        again = [Job(record.task, record.sample, record.task_index, record.seed) for record in records]
        return play_policy(self.env.fork(), policy, again, max_failures=2**31)

    def tasks(self, count: int, extra: int = 0, *, seed: int = 0) -> tuple[list[int], list[int]]:
        """Return indices of tasks, and of ``extra`` others; see :func:`~textenvs.evaluate.baselines.split_tasks`."""
        return split_tasks(self.env, count, extra, self.seed + seed)


def floor_of(silence: float, expert: float) -> float:
    """Return what doing nothing earns, for the mean return of ``silence``: 0.

    It is more where silence is paid, and less where there are only costs, so that the expert's return is no gain.
    Losses of random replies are no measure: the more they lose, the nearer to the expert a policy may come.
    """
    return max(silence, 0.0) if expert > 0 else silence


def below_expert(env: TextEnv[Any], expert: float, silence: float) -> float:
    """Return the limit of an attack's mean return: the expert's, less ``env.attack_margin`` of the range above nothing.

    ``silence`` is the mean return of empty replies; see :func:`floor_of`.
    """
    return expert - env.attack_margin * (expert - floor_of(silence, expert))


def mean(records: Sequence[Record]) -> float:
    """Return the mean return of the episodes that did not fail; 0 where all did."""
    good = [record.total for record in records if not record.failed]
    return float(np.mean(good)) if good else 0.0


def solved(records: Sequence[Record]) -> float | None:
    """Return the share of episodes that ended as solved, of those that can be; ``None`` without one."""
    outcomes = [record.success for record in records if record.success is not None]
    return float(np.mean(outcomes)) if outcomes else None


def shown(value: float | None) -> str:
    """Return a share of :func:`solved` as evidence of a verdict."""
    return "not possible" if value is None else f"{value:.1%}"


def _broken(check: str, records: Sequence[Record]) -> Verdict | None:
    failures = [record for record in records if record.failed]
    if not failures:
        return None
    evidence = f"{len(failures)} of {len(records)} episodes failed"
    if all("NotImplementedError" in str(record.failure) for record in failures):
        return Verdict(check, "skipped", f"the expert cannot continue here: {failures[0].failure}", evidence)
    return Verdict(check, "fail", f"it makes the environment or its expert fail: {failures[0].failure}", evidence)


def judge(
    check: str, records: Sequence[Record], limit: float, evidence: str, too_much: str, below: str = ""
) -> Verdict:
    """Check that a policy could be played and earned at most ``limit``; ``too_much`` is the cause if it earned more."""
    if (failure := _broken(check, records)) is not None:
        return failure
    if mean(records) > limit:
        return Verdict(check, "fail", too_much, evidence, show(records))
    return Verdict(check, "pass", below or f"below {limit:+.3f}", evidence)


def show(records: Sequence[Record]) -> str:
    """Return the best episode's conversation and rewards; no system message, long messages shortened."""
    best = max(records, key=lambda record: record.total)
    lines = [excerpt(transcript([message]), _SHOWN_CHARS) for message in best.messages if message["role"] != "system"]
    if len(lines) > _SHOWN_MESSAGES:
        lines[_SHOWN_MESSAGES:] = [f"... ({len(lines)} messages)"]
    rewards = ", ".join(f"{reward:+g}" for reward in best.turn_rewards)
    return "\n".join([*lines, f"[task {best.task_key}; turn rewards {rewards}; stop: {best.stop}]"])
