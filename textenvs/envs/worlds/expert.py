"""The scripted expert: it makes the searches that the program needs, reads what decides, changes, and finishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...messages import ToolCall
from ...tools.formats import call
from .goals import PERSON, Goal, NotMeantError, Sent, evaluate, naive
from .rules import Rule
from .tools import FINISH, PAGE, REPORT, SIGN_IN, WorldState
from .view import Act, Look, View
from .world import World


def next_move(state: WorldState, goal: Goal | None = None, by_rules: bool = True) -> ToolCall | str:
    """Return the expert's next call, or its words to the user.

    Careless replies are made of another ``goal`` than the task's, or of a plan that is not ``by_rules``.

    Raises:
        NotMeantError: The other program has no meaning here.
    """
    story = state.story
    assert story is not None  # an expert plays within an episode
    world = story.world
    if state.incidents.expired:
        return call(SIGN_IN, application=world.skin.applications[min(state.incidents.expired)])
    for detail, count in zip(story.details, state.disclosed, strict=True):
        if count < len(detail.says):
            return f"Which {detail.word} do you mean?"
    view = View(world.schema, state.store.beginning())
    rules: Sequence[Rule] = world.rules if by_rules else ()
    end = evaluate(goal or story.goal, view, rules, story.user)
    for entity, arguments, key in reads_of(world, story.user, view, state.page_size):
        if key not in state.made:
            kind = "find" if key[0] == "find" else "get"
            return call(world.skin.tool(world.schema.entities[entity], kind), **arguments)
    for act in view.acts:
        if ("did", *act) not in state.made:
            return _act(world, act)
    if len(state.reports) < len(end.reports):
        return _report(world, end.reports[len(state.reports)])
    finish: dict[str, Any] = {}
    if end.answer is not None:
        # A record by the id that was read: its label would take another look.
        is_record = story.question is not None and story.question[1].kind == "ref"
        finish["answer"] = end.answer if is_record else story.written(end.answer)
    if end.refused:
        finish["refused"] = end.refused
    return call(FINISH, **finish)


def careless_move(state: WorldState, rng: np.random.Generator) -> ToolCall | str:
    """Return a move in the right form and mostly wrong.

    It ends early, perhaps with an answer that it made up; or takes the next step for a naive variant of the program or
    without the rules; or does to any record what should be done to one.
    """
    story = state.story
    assert story is not None  # an expert plays within an episode
    luck = rng.random()
    if luck < 0.3:
        return call(FINISH, answer=int(rng.integers(100))) if rng.random() < 0.5 else call(FINISH)
    view = View(story.world.schema, state.store.beginning())
    evaluate(story.goal, view, story.world.rules, story.user)
    changes = [act for act in view.acts if act[2]]
    if luck < 0.6 and changes:
        entity, verb, _, gives = changes[int(rng.integers(len(changes)))]
        ids = story.world.ids(entity)
        return _act(story.world, (entity, verb, ids[int(rng.integers(len(ids)))], gives))
    variants = [*naive(story.goal), None]
    try:
        return next_move(state, variants[int(rng.integers(len(variants)))], by_rules=False)
    except NotMeantError:
        return call(FINISH)


def reads_of(
    world: World, user: str, view: View, page_size: int = PAGE
) -> Iterator[tuple[str, dict[str, Any], tuple[Any, ...]]]:
    """Yield the calls that show what a view has read: entity, arguments, and key in :attr:`WorldState.made`.

    A search has a call for every page.
    """
    looks: list[Look] = list(view.looks)
    label = world.schema.entities[PERSON].label
    own = ("find", PERSON, ((label, world.label(PERSON, user)),))
    if ("get", PERSON, user) in looks and own not in looks:  # the id must come from somewhere
        looks.insert(looks.index(("get", PERSON, user)), own)  # type: ignore[arg-type]
    for look in looks:
        entity = world.schema.entities[look[1]]
        if look[0] == "get":
            yield look[1], {"id": look[2]}, look
            continue
        values = dict(look[2])  # type: ignore[arg-type]
        arguments = {
            world.skin.fields[entity.key, name]: world.skin.written(entity, entity.fields[name], value)
            for name, value in values.items()
        }
        text = str(values.pop(entity.label, "")).casefold()
        place = world.schema.places[entity.key][entity.label]
        count = sum(text in str(record[place]).casefold() for _, record in view.matching(entity.key, values))
        for page in range(1, 1 + max(1, -(-count // page_size))):
            yield (
                entity.key,
                arguments if page == 1 else {**arguments, "page": page},
                ("find", entity.key, look[2], page),
            )


def _act(world: World, act: Act) -> ToolCall:
    key, name, number, gives = act
    entity = world.schema.entities[key]
    arguments = {
        world.skin.fields[key, field]: world.skin.written(entity, entity.fields[field], value) for field, value in gives
    }
    where = {"id": number} if number else {}
    return call(world.skin.tool(entity, entity.verbs[name]), **where, **arguments)


def _report(world: World, report: Sent) -> ToolCall:
    entity = world.schema.entities[report.entity]
    fields = [(world.skin.fields[entity.key, name], entity.fields[name]) for name in report.fields]
    rows = [
        {
            "id": number,
            world.skin.fields[entity.key, entity.label]: world.label(entity.key, number),
            **{name: world.skin.written(entity, one, value) for (name, one), value in zip(fields, values, strict=True)},
        }
        for number, values in report.rows
    ]
    total = {} if report.total is None else {"total": report.total}
    return call(REPORT, to=report.to, rows=rows, **total)
