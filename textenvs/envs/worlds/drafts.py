"""Goals drawn for a world: programs of the forms, kept where every part of them decides, and put together.

A program is kept where it has one meaning, every naive variant of it ends in another state, and enough of the facts
that it reads are proven by twins (:mod:`.twins`). At the hardest level a goal is several of them, one after another, of
which none touches what another reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .expert import reads_of
from .forms import FORMS, RULED, Decision, Maker, NoneSuchError
from .goals import (
    PERSON,
    Do,
    End,
    Goal,
    NotMeantError,
    Read,
    Tell,
    When,
    evaluate,
    mistaken,
    naive,
    other_branch,
    traced,
)
from .patterns import is_drawn
from .rules import Rule, authorities, obligations, prohibitions, unconditional, with_copies_reversed
from .twins import Fact, facts_of, is_proven
from .view import Cell, View
from .world import SIZES, World

#: Of the goals with a verb that can have rules: how often these do what to it.
_DECISIONS: Mapping[Decision, float] = {"forbid": 0.4, "allow": 0.34, "require": 0.18, "none": 0.08}
#: How many forms are tried, and how many draws of each.
_ATTEMPTS, _TRIES = 200, 40
#: How many records a selection has, at least, by form, and at most.
_FEWEST, _MOST = {"ask": 3, "extreme": 3, "each": 2, "report": 5}, 8
#: So often a program that excludes less than it should is drawn again.
_WITH_EXCLUDED = 0.97
#: Of a goal of several programs, so many facts are proven: each costs seven twins.
_PROVEN = 12


@dataclass(frozen=True)
class Shape:
    """Goals of a level.

    Args:
        forms: Names of the forms, with weights.
        facts: How many facts, at least, are proven by seven twins, but for one that others change meanwhile.
        excludes: How many things the request of a program excludes, the least and the most.
        parts: How many programs a goal has, the least and the most.
        calls: A program is added to others while the goal takes no more calls than these.
        reports: So many of the programs are reports.
    """

    forms: Mapping[str, float]
    facts: int
    excludes: tuple[int, int]
    parts: tuple[int, int] = (1, 1)
    calls: int = 0
    reports: int = 0


SHAPES: Mapping[str, Shape] = {
    "easy": Shape({"act": 3, "set": 3, "tell": 1, "stale": 1}, 1, (2, 3)),
    "medium": Shape(
        {
            **{"act": 1, "set": 2, "tell": 1, "ask": 1, "extreme": 3, "each": 2},
            **{"when": 2, "if": 1, "make": 1, "twice": 2, "report": 2, "stale": 2},
        },
        2,
        (2, 3),
    ),
    "hard": Shape(
        {
            **{"act": 1, "set": 1, "ask": 1, "extreme": 3, "each": 3},
            **{"when": 3, "if": 1, "make": 1, "copy": 2, "stale": 2},
        },
        *(3, (1, 2), (3, 6), 50, 2),
    ),
}


@dataclass(frozen=True)
class Draft:
    """A goal in a world, with its end, what it reads, the facts that are proven, and the calls that it takes.

    Args:
        forms: Those of its programs.
    """

    forms: tuple[str, ...]
    goal: Goal
    user: str
    end: End
    reads: tuple[Cell, ...]
    facts: tuple[Fact, ...]
    calls: int


def draw_draft(world: World, level: str, rng: np.random.Generator, goals: str = "all") -> Draft:
    """Draw a goal for a world, whose programs are of the ``goals`` (:mod:`.patterns`).

    RuntimeError: none was found in thousands of draws, which tests have not seen.
    """
    shape = SHAPES[level]
    drafts = [_draw_part(world, level, goals, rng, None)]
    for number in range(1, int(rng.integers(shape.parts[0], shape.parts[1] + 1))):
        form = "report" if number <= shape.reports else None
        both = _joined(world, drafts[-1], _draw_part(world, level, goals, rng, drafts[0].user, form))
        if both is not None and both.calls <= shape.calls:
            drafts.append(both)
    while len(drafts) > 1:
        draft = drafts.pop()
        chosen = sorted(rng.permutation(len(draft.facts))[:_PROVEN].tolist())
        some = [draft.facts[place] for place in chosen]
        facts = tuple(fact for fact in some if is_proven(world, draft.goal, draft.user, fact, draft.end))
        if len(facts) >= shape.facts:
            return replace(draft, facts=facts)
    return drafts[0]


def _draw_part(
    world: World, level: str, goals: str, rng: np.random.Generator, user: str | None, form: str | None = None
) -> Draft:
    """Draw a goal of one program, for a user or for any, of a form or of any."""
    shape, people = SHAPES[level], world.ids(PERSON)
    names = list(shape.forms)
    weights = np.array(list(shape.forms.values()), dtype=float)
    name, decision = form or names[_drawn(weights, rng)], _decision(rng)
    ruled = weights * [name in RULED for name in names]
    for attempt in range(1, _ATTEMPTS + 1):
        holds = bool(rng.integers(2))
        excludes = int(rng.integers(shape.excludes[0], shape.excludes[1] + 1))
        idle = name not in RULED or (name == "if" and not holds)  # it is not about a verb, or nothing is to be done
        for _ in range(_TRIES):
            person = people[int(rng.integers(len(people)))] if user is None else user
            maker = Maker(world, person, SIZES[level].hops, "none" if idle else decision, rng, excludes)
            try:
                goal = FORMS[name](maker)
            except NoneSuchError:
                continue
            if not is_drawn(goal, goals) or (maker.excludes and rng.random() < _WITH_EXCLUDED):
                continue
            if (draft := _kept(world, name, goal, maker, holds, shape.facts)) is not None:
                return draft
        # The world has no such goal: another form that rules can be about. What they do stays as long as it can, so it
        # is as frequent in all worlds. A few worlds have rules that decide hardly any goal: there, any form.
        if form is None or attempt % 8 == 0:
            name = names[_drawn(ruled if attempt < _ATTEMPTS // 2 else weights, rng)]
        decision = _decision(rng) if attempt % 16 == 0 else decision
    raise RuntimeError(f"world {world.name}: no goal after {_ATTEMPTS * _TRIES} draws")


def _decision(rng: np.random.Generator) -> Decision:
    return list(_DECISIONS)[_drawn(np.array(list(_DECISIONS.values())), rng)]


def _drawn(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw the place of a weight."""
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _kept(world: World, name: str, goal: Goal, maker: Maker, holds: bool, least: int) -> Draft | None:
    """Return the draft of a goal, or ``None``; ``holds``: whether its condition should hold, if it has one."""
    view = View(world.schema, world.store)
    try:
        trace = traced(goal, view, world.rules, maker.user)
    except NotMeantError:
        return None
    end = trace.end
    if not all(_FEWEST.get(name, 0) <= count <= _MOST for count in trace.counts):
        return None
    if any(isinstance(step, When) and (step.then in trace.path) != holds for step in goal):
        return None
    if end == End():
        return None
    if decision_of(world, goal, maker.user, end) != maker.decision:
        return None
    if trace.by_authority and _end(world, goal, with_copies_reversed(world.rules), maker.user) == end:
        return None
    variants = [*naive(trace.path if trace.path else goal), *filter(None, [other_branch(goal, trace.path)])]
    if any(_end(world, variant, world.rules, maker.user) == end for variant in variants):
        return None
    for variant in _mistakes(goal, trace.path):
        # Where nothing could be done with what is excluded, that alone would tell what is meant.
        if (other_end := _end(world, variant, world.rules, maker.user)) is None or other_end == end:
            return None
    reads = tuple(view.cells)
    facts = facts_of(world, goal, maker.user, _to_prove(reads, end), end)
    if len(facts) < least:
        return None
    return Draft((name,), goal, maker.user, end, reads, facts, _calls(world, maker.user, view, end))


def _to_prove(reads: tuple[Cell, ...], end: End) -> tuple[Cell, ...]:
    """Return the cells that are looked at for facts: of the rows of a report, which are all alike, one alone."""
    alike = {(one.entity, number) for one in end.reports for number, _ in one.rows[1:]}
    return tuple(cell for cell in reads if cell[:2] not in alike)


def _mistakes(goal: Goal, path: Goal) -> Iterator[Goal]:
    """Yield variants in which something is taken that the request excludes, of the steps and conditions that count."""
    yield from mistaken(path)
    for place, step in enumerate(goal):
        if not isinstance(step, When):
            continue
        for (tell,) in mistaken((Tell(Read(step.of, step.condition.field)),)):
            assert isinstance(tell, Tell)
            then = step.then
            if isinstance(then, Do) and then.target == step.of:
                then = replace(then, target=tell.what.of)
            yield (*goal[:place], replace(step, of=tell.what.of, then=then), *goal[place + 1 :])


def _joined(world: World, first: Draft, second: Draft) -> Draft | None:
    """Return a goal of both programs; ``None``: they have to do with one another, so the order would matter.

    Its facts are those of both, which have to be proven again.

    A condition comes last: whether "then ..." after it belongs to its branch, nobody could tell.
    """
    if isinstance(first.goal[-1], When):
        first, second = second, first
    if isinstance(first.goal[-1], When):
        return None
    if first.end.answer is not None and second.end.answer is not None:
        return None
    goal, other_way, user = (*first.goal, *second.goal), (*second.goal, *first.goal), first.user
    view = View(world.schema, world.store)
    try:
        end = evaluate(goal, view, world.rules, user)
    except NotMeantError:
        return None
    changed = {*first.end.changed, *second.end.changed}
    apart = len(changed) == len(first.end.changed) + len(second.end.changed) and changed == {*end.changed}
    if not apart or _end(world, other_way, world.rules, user) != end:
        return None
    forms, facts = (*first.forms, *second.forms), (*first.facts, *second.facts)
    return Draft(forms, goal, user, end, tuple(view.cells), facts, _calls(world, user, view, end))


def _calls(world: World, user: str, view: View, end: End) -> int:
    """Return how many calls the expert makes before it finishes."""
    return sum(1 for _ in reads_of(world, user, view)) + len(view.acts) + len(end.reports)


def decision_of(world: World, goal: Goal, user: str, end: End) -> Decision:
    """Return what the rules do to a goal that has this end: what differs without them, or if they held always."""
    always = authorities(world.rules)
    if _end(world, goal, (*obligations(world.rules), *always), user) != end:
        return "forbid"
    if _end(world, goal, unconditional(world.rules), user) != end:
        return "allow"
    return "require" if _end(world, goal, (*prohibitions(world.rules), *always), user) != end else "none"


def _end(world: World, goal: Goal, rules: tuple[Rule, ...], user: str) -> End | None:
    try:
        return evaluate(goal, View(world.schema, world.store), rules, user)
    except NotMeantError:
        return None
