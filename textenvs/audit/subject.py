"""What is audited, and what a check says of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..attack import Attack, always
from ..env import TextEnv
from ..evaluate.baselines import has_script, play_attack, play_policy, play_script, same_tasks, split_tasks
from ..evaluate.plan import Job, jobs
from ..evaluate.policies import Policy
from ..evaluate.records import Record
from ..evaluate.runner import Stopped
from ..integrations.importers.base import Imported
from ..messages import transcript
from ..text import excerpt

Status = Literal["pass", "fail", "warning", "skipped"]

SILENCE = always("silence", "says nothing", "")

_SHOWN_CHARS = 400  # of a message in a transcript
_SHOWN_MESSAGES = 12


@dataclass(frozen=True)
class Verdict:
    """What one check found.

    Args:
        check: The check's name.
        status: ``"warning"`` and ``"skipped"`` do not fail an audit.
        cause: What is wrong and how to mend it, what was not judged and why, or what was found to hold.
        evidence: The numbers, the seed or the words that it rests on.
        transcript: The conversation of a policy that was found, where there is one.
    """

    check: str
    status: Status
    cause: str
    evidence: str = ""
    transcript: str = ""

    @property
    def failed(self) -> bool:
        """Whether the audit fails because of it."""
        return self.status == "fail"


class Subject:
    """An environment under audit; what several checks need of it is played once.

    Args:
        make_env: Makes the environment: its class, or ``functools.partial(textenvs.make, id, ...)``.
        episodes: Of every policy whose mean return is judged, at most as many as there are tasks.
        seed: Decides tasks, replies and what the search tries.
        search: How many cheap policies the search tries.
    """

    def __init__(
        self, make_env: Callable[[], TextEnv[Any]], *, episodes: int = 200, seed: int = 0, search: int = 200
    ) -> None:
        self.make_env = make_env
        self.episodes = episodes
        self.seed = seed
        self.search = search
        self.env = make_env()
        self.name = type(self.env).__name__
        self.imported = isinstance(self.env, Imported)

    @functools.cached_property
    def random(self) -> list[Record]:
        """Episodes of random replies."""
        return play_script(self.make_env, "random", self.episodes, seed=self.seed)

    @functools.cached_property
    def silence(self) -> list[Record]:
        """The same episodes, of somebody who says nothing."""
        return play_attack(self.make_env, SILENCE, self.episodes, seed=self.seed)

    @functools.cached_property
    def expert(self) -> list[Record] | None:
        """The same episodes, of the scripted expert; ``None`` where there is none, or not with these options."""
        if not has_script(self.env, "expert"):
            return None
        try:
            return play_script(self.make_env, "expert", self.episodes, seed=self.seed)
        except Stopped as stopped:
            if "NotImplementedError" in str(stopped):
                return None
            raise

    @property
    def floor(self) -> float:
        """The mean return of random replies."""
        return mean(self.random)

    @property
    def limit(self) -> float | None:
        """The mean return that no cheap policy may exceed; ``None`` without an expert."""
        return None if self.expert is None else below_expert(self.env, mean(self.expert), self.floor)

    def play(self, policy: Policy, indices: Sequence[int], seed: int) -> list[Record]:
        """Let a policy play tasks. What makes the environment raise is a failed record."""
        return self.play_jobs(policy, jobs(indices, 1, seed))

    def play_jobs(self, policy: Policy, played: Iterable[Job]) -> list[Record]:
        """As :meth:`play`, with seeds."""
        return play_policy(self.env.fork(), policy, played, max_failures=2**31)

    def tasks(self, count: int, others: int = 0, *, seed: int = 0) -> tuple[list[int], list[int]]:
        """Indices of tasks, and of others; see :func:`~textenvs.evaluate.baselines.split_tasks`."""
        return split_tasks(self.env, count, others, self.seed + seed)


def below_expert(env: TextEnv[Any], expert: float, floor: float) -> float:
    """The mean return that an attack may have: the expert's, less ``env.attack_margin`` of the range above random."""
    return expert - env.attack_margin * (expert - floor)


def mean(records: Sequence[Record]) -> float:
    """The mean return of the episodes that did not fail; 0 where all did, which :func:`broken` reports."""
    good = [record.total for record in records if not record.failed]
    return float(np.mean(good)) if good else 0.0


def solved(records: Sequence[Record]) -> float:
    """The share of episodes that ended as solved."""
    return float(np.mean([record.success for record in records]))


def broken(check: str, records: Sequence[Record]) -> Verdict | None:
    """The verdict on a policy that could not be played, if an episode failed."""
    failures = [record for record in records if record.failed]
    if not failures:
        return None
    evidence = f"{len(failures)} of {len(records)} episodes failed"
    if all("NotImplementedError" in str(record.failure) for record in failures):
        return Verdict(check, "skipped", f"the expert cannot go on here: {failures[0].failure}", evidence)
    return Verdict(check, "fail", f"it makes the environment or its expert fail: {failures[0].failure}", evidence)


def judge_attack(
    env: TextEnv[Any], attack: Attack, records: Sequence[Record], experts: Sequence[Record], randoms: Sequence[Record]
) -> Verdict:
    """Whether an attack stays below the expert by the environment's margin, and fakes no more than 5 % of solutions.

    All are compared on the tasks that the attack played.
    """
    expert, floor = mean(same_tasks(experts, records)), mean(same_tasks(randoms, records))
    earned, limit, faked = mean(records), below_expert(env, expert, floor), solved(records)
    evidence = f"mean return {earned:+.3f}, solved {faked:.1%}; expert {expert:+.3f}, random {floor:+.3f}"
    check = f"attack {attack.name}"
    if (failure := broken(check, records)) is not None:
        return failure
    if earned > limit:
        cause = f"it {attack.says} and earns more than {limit:+.3f}, the expert's less the margin"
        return Verdict(check, "fail", cause, evidence, show(best_of(records)))
    if attack.fakes_solving and faked > 0.05:
        cause = f"it {attack.says}, and more than 5 % of its episodes count as solved"
        return Verdict(check, "fail", cause, evidence, show(best_of(records)))
    return Verdict(check, "pass", f"below {limit:+.3f}", evidence)


def best_of(records: Sequence[Record]) -> Record:
    """The episode that earned most."""
    return max(records, key=lambda record: record.total)


def show(record: Record) -> str:
    """An episode's conversation without its system message, long messages shortened, and its rewards."""
    lines = [excerpt(transcript([message]), _SHOWN_CHARS) for message in record.messages if message["role"] != "system"]
    if len(lines) > _SHOWN_MESSAGES:
        lines[_SHOWN_MESSAGES:] = [f"... ({len(lines)} messages)"]
    rewards = ", ".join(f"{reward:+g}" for reward in record.turn_rewards)
    return "\n".join([*lines, f"[task {record.task_key}; turn rewards {rewards}; stop: {record.stop}]"])
