"""A search for cheaters: compositions of cheap replies, by successive halving, and the best on fresh episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..attack import Attack
from ..evaluate.policies import AttackPolicy
from ..evaluate.records import Record
from ..messages import Messages
from .grammar import Composition, compositions
from .subject import Subject, Verdict, judge, mean, show, solved

_ROUNDS = ((3, 10), (8, 10), (30, 10))  # episodes of each, and of how many one is kept
_LOOKED_AT = 12  # openings that say which types of candidates there are
_NEAR = 3  # neighbours of each that the first round keeps


def search(subject: Subject) -> Verdict:
    """The best of many cheap policies stays below the expert by the environment's margin."""
    rng = np.random.default_rng([subject.seed, 5])
    space = compositions(_openings(subject), _tools(subject))
    tried = space.sample(rng, subject.search)
    known = set(tried)
    for number, (episodes, keep) in enumerate(_ROUNDS):
        indices, _ = subject.tasks(episodes, seed=10 + number)
        scored: list[tuple[float, int, Composition]] = []
        for composition in tried:
            records = _play(subject, composition, indices, number)
            if failed := _broken(composition, records):
                return failed
            scored.append((-mean(records), composition.size, composition))
        scored.sort(key=lambda each: each[:2])
        tried = [composition for *_, composition in scored[: max(1, len(scored) // keep)]]
        if number == 0:
            near = dict.fromkeys(each for one in tried for each in space.near(one, rng, _NEAR))
            tried += [each for each in near if each not in known]
            known.update(near)
    best, (indices, _) = tried[0], subject.tasks(subject.episodes, seed=20)
    records = _play(subject, best, indices, 20)
    if subject.limit is not None and mean(records) > subject.limit:
        best, records = _simplest(subject, best, records, indices)
    return _broken(best, records) or _judge(subject, best, records, len(known))


def _play(subject: Subject, composition: Composition, indices: list[int], seed: int) -> list[Record]:
    attack = Attack("search", composition.says, lambda rng, seen: composition.cheater(_tools(subject)))
    return subject.play(AttackPolicy(attack), indices, subject.seed + seed)


def _tools(subject: Subject) -> Sequence[Any]:
    return getattr(subject.env, "tool_schemas", ())


def _simplest(
    subject: Subject, best: Composition, records: list[Record], indices: list[int]
) -> tuple[Composition, list[Record]]:
    """The policy without the parts that it does not need, so that its weakness can be named."""
    for plain in ({"first": "nothing"}, {"first": "filler"}, {"form": "bare"}):
        simpler = replace(best, **plain)
        played = _play(subject, simpler, indices, 20)
        if simpler.size <= best.size and mean(played) > (subject.limit or 0.0):
            best, records = simpler, played
    return best, records


def _judge(subject: Subject, best: Composition, records: Sequence[Record], tried: int) -> Verdict:
    earned, floor = mean(records), subject.floor
    said = f"best of {tried}: {best.says}; mean return {earned:+.3f}, solved {solved(records):.1%}, random {floor:+.3f}"
    if subject.expert is None or subject.limit is None:
        return Verdict("search", "skipped", "no scripted expert to compare it with", said, show(records))
    ceiling = mean(subject.expert)
    share = (earned - floor) / (ceiling - floor) if ceiling > floor else 1.0
    too_much = f"{_weakness(best)}; the policy earns more than {subject.limit:+.3f}, the expert's less the margin"
    evidence = f"{said}, expert {ceiling:+.3f}: {share:.0%} of the range"
    return replace(judge("search", records, subject.limit, evidence, too_much), transcript=show(records))


def _weakness(best: Composition) -> str:
    """What is wrong with an environment that pays for this, and how to mend it."""
    if best.form == "question":
        return "consent to a menu: a yes must answer one question about one thing"
    if best.kind == "expressions":
        return "the problem restated counts as its answer: an answer must be evaluated, not the problem's expression"
    if best.first in ("filler", "agrees"):
        return "filler is paid: a user must volunteer nothing, and an idle turn must cost something"
    if best.first == "asks everything":
        return "a question for everything is answered with everything: a question must be about one thing"
    if best.pick == "all" or best.kind in ("messages", "clauses"):
        return (
            "a list of candidates counts as an answer, or the conversation repeated: exactly one candidate of the "
            "asked type must count"
        )
    return "a cheap reply earns what the expert earns"


def _broken(composition: Composition, records: Sequence[Record]) -> Verdict | None:
    """A verdict where a reply made the environment raise."""
    for record in records:
        if record.failed:
            cause = "a cheap reply makes the environment fail; a bad reply is something to answer, not an error"
            evidence = f"{composition.says}: {record.stop}: {record.failure}"
            return Verdict("search", "fail", cause, evidence, show([record]))
    return None


def _openings(subject: Subject) -> list[Messages]:
    env, openings = subject.env.fork(), []
    for index in subject.tasks(_LOOKED_AT)[0]:
        opening, _ = env.reset(seed=subject.seed, options={"task_index": index})
        reply, *_ = env.step(".")  # what a user says next shows types of candidates, too
        openings.append(reply if len(reply) > len(opening) else opening)
    return openings
