"""Cheaters that may ask the expert: its knowledge alone, without its work, must not be paid.

Each is played on the episodes that it is about, and compared with the expert on the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..attack import Attack, Cheater, first_user_text
from ..env import TextEnv
from ..evaluate.plan import Job
from ..evaluate.policies import AttackPolicy, Player, Reply, ScriptedPolicy, ToolSchemas
from ..evaluate.records import Record
from ..event_loop import settle
from ..messages import Message, Messages
from .subject import Subject, Verdict, below_expert, judge, mean

_MORE = 0.02  # of the range: what failing first may earn beyond the expert

_REHEARSED = 400


class WithExpert:
    """A policy of the environment's expert and something cheap.

    Args:
        reply: The next reply: called with the environment, randomness and the number of the turn, from 0.
    """

    def __init__(self, reply: Callable[[TextEnv[Any], np.random.Generator, int], Any]) -> None:
        self.reply = reply

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        rng = np.random.default_rng([seed, 4])

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            return Reply(await settle(self.reply(env, rng, env.state.assistant_turns)))

        return play

    async def aclose(self) -> None:
        """Nothing to release."""


async def _deliver_or_wait(env: TextEnv[Any], rng: np.random.Generator, turn: int) -> Any:
    """The expert's reply where it ends the episode or earns something, and "." in place of every other."""
    future = env.fork()
    reply = future.demonstration(rng)
    _, reward, *_ = await future.astep(reply)
    return reply if future.state.done or reward > 0 else "."


def unasked(subject: Subject) -> Verdict:
    """What the expert says before its last reply is worth something: "." in its place earns less."""
    check = "filler, then the expert's last reply"
    if subject.expert is None:
        return Verdict(check, "skipped", "no scripted expert")
    longer = [record for record in subject.expert if any(reward <= 0 for reward in record.turn_rewards[:-1])]
    if not longer:
        return Verdict(check, "skipped", "every turn of the expert earns something or ends the episode")
    records = subject.play_jobs(WithExpert(_deliver_or_wait), [_job(record) for record in longer])
    same = {record.task_index for record in longer}
    floor, ceiling = mean([record for record in subject.random if record.task_index in same]), mean(longer)
    evidence = f"mean return {mean(records):+.3f}; expert {ceiling:+.3f} on the same {len(longer)} episodes"
    too_much = (
        'filler is paid: "." on every turn but the last earns what the expert earns, so what it asks for is told '
        "anyway; volunteer nothing, and let an idle turn cost patience"
    )
    needed = "what the expert says before its last reply is needed"
    return judge(check, records, below_expert(subject.env, ceiling, floor), evidence, too_much, needed)


def failing_first(subject: Subject) -> Verdict:
    """Failing and then succeeding earns no more than succeeding."""
    check = "fail first, then the expert"
    if subject.expert is None:
        return Verdict(check, "skipped", "no scripted expert")
    ceiling = mean(subject.expert)
    more = ceiling + _MORE * (ceiling - subject.floor)
    too_much = "a failure before the success is paid: an improvement earns more than being right at once"
    for wrong in ("#### 0.5", "I do not know.", "\\boxed{0.5}", ""):

        def reply(env: TextEnv[Any], rng: np.random.Generator, turn: int, wrong: str = wrong) -> Any:
            return env.demonstration(rng) if turn else wrong

        records = subject.play_jobs(WithExpert(reply), [_job(record) for record in subject.expert])
        evidence = f"mean return {mean(records):+.3f} after {wrong!r}; expert {ceiling:+.3f}"
        verdict = judge(check, records, more, evidence, too_much, "it earns no more than being right at once")
        if verdict.status != "pass":
            break
    return verdict


def remembering(subject: Subject) -> Verdict:
    """What the expert said to other tasks is no answer to a task."""
    check = "memorised answers"
    if subject.expert is None:
        return Verdict(check, "skipped", "no scripted expert")
    indices, others = subject.tasks(subject.episodes, _REHEARSED, seed=1)
    if not others:
        return Verdict(check, "skipped", "there is one task")
    expert, random = ScriptedPolicy("expert"), ScriptedPolicy("random")
    rehearsed = [record.messages for record in subject.play(expert, others, subject.seed + 1)]
    tables = [AttackPolicy(Attack(check, "", functools.partial(_lookup, last)), rehearsed) for last in (False, True)]
    ceiling, floor = (mean(subject.play(policy, indices, subject.seed)) for policy in (expert, random))
    limit = below_expert(subject.env, ceiling, floor)
    too_much = (
        "a table of the expert's answers to other tasks answers new ones: tasks repeat; draw more of what an answer "
        "depends on for every task"
    )
    for policy in tables:
        records = subject.play(policy, indices, subject.seed)
        evidence = f"mean return {mean(records):+.3f} after {len(others)} other tasks; expert {ceiling:+.3f}"
        verdict = judge(check, records, limit, evidence, too_much, "answers to other tasks are no answers to a new one")
        if verdict.status != "pass":
            break
    return verdict


def _lookup(last: bool, rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
    """The expert's replies to the same request, or to the one with the most words in common: all, or the ``last``."""
    said_to = ((first_user_text(each), [one for one in each if one["role"] == "assistant"]) for each in rehearsed)
    known = {request: replies for request, replies in said_to if replies}
    words = {request: set(request.split()) for request in known}

    def reply(conversation: Messages) -> Message:
        request = first_user_text(conversation)
        if request not in known:
            request = max(known, key=lambda other: len(words[other] & set(request.split())))
        said = sum(message["role"] == "assistant" for message in conversation)
        replies = known[request]
        return replies[-1 if last else min(said, len(replies) - 1)]

    return reply


def _job(record: Record) -> Job:
    return Job(record.task, record.sample, record.task_index, record.seed)
