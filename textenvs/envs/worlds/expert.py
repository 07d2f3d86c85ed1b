"""The scripted expert: it makes the searches that the program needs, reads what decides, changes, and finishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...messages import ToolCall
from ...tools.formats import call
from .goals import PERSON, Goal, evaluate
from .rules import Rule
from .tools import FINISH, PAGE, SIGN_IN, WorldState
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
    for detail, said in zip(story.details, state.said, strict=True):
        if said < len(detail.says):
            return f"Which {detail.word} do you mean?"
    view = View(world.schema, state.store.beginning())
    rules: Sequence[Rule] = world.rules if by_rules else ()
    end = evaluate(goal or story.goal, view, rules, story.user)
    for entity, arguments, key in reads_of(world, story.user, view):
        if key not in state.made:
            kind = "find" if key[0] == "find" else "get"
            return call(world.skin.tool(world.schema.entities[entity], kind), **arguments)
    for act in view.acts:
        if ("did", *act) not in state.made:
            return _act(world, act)
    finish: dict[str, Any] = {}
    if end.answer is not None:
        finish["answer"] = story.written(end.answer)
    if end.refused:
        finish["refused"] = True
    return call(FINISH, **finish)


def reads_of(world: World, user: str, view: View) -> Iterator[tuple[str, dict[str, Any], tuple[Any, ...]]]:
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
        asked = dict(look[2])  # type: ignore[arg-type]
        arguments = {
            world.skin.fields[entity.key, name]: world.skin.written(entity, entity.fields[name], value)
            for name, value in asked.items()
        }
        text = str(asked.pop(entity.label, "")).casefold()
        place = world.schema.places[entity.key][entity.label]
        count = sum(text in str(record[place]).casefold() for _, record in view.matching(entity.key, asked))
        for page in range(1, 1 + max(1, -(-count // PAGE))):
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
