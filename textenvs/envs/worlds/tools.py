"""The tools of a world: two that read and one for each verb, an entity; and the three that every world has."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...tool_env import ToolState
from ...tools.formats import CallFormat, make_format
from ...tools.react import React
from ...tools.schema import Tool, ToolError
from ...tools.toolbox import Toolbox
from .applications import Entity, Field, Value, Verb
from .incidents import Incidents
from .schema import PERSON
from .skin import spoken, with_article
from .store import Store, Tables
from .story import Report, Story
from .view import CannotBeDoneError, applied, made
from .world import World

#: Records on a page of search results.
PAGE = 8
FINISH, SIGN_IN, REPORT = "finish", "sign_in", "send_report"
_IDS = re.compile(r"\b[A-Z]\d{4,5}\b")
_ID, _PAGE = "id", "page"

_EMPTY = Store(Tables(lambda entity: {}))


class RefusedError(ToolError):
    """A refused call.

    Args:
        problem: What is wrong.
        remedy: What to do, for who calls tools; another interface has other remedies.
        passes: Whether the same call may work later.
    """

    def __init__(self, problem: str, remedy: str, passes: bool = False) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.passes = problem, passes


@dataclass
class WorldState(ToolState):
    """An episode in a world."""

    shared = (*ToolState.shared, "story", "store", "incidents", "made", "reports", "final", "disclosed")

    story: Story | None = None
    store: Store = _EMPTY
    incidents: Incidents = field(default_factory=Incidents)
    #: The calls that worked, for the scripted expert.
    made: frozenset[tuple[Any, ...]] = frozenset()
    reports: tuple[Report, ...] = ()
    happened: int = 0  # events
    #: What ``finish`` was called with: the answer, and the ids for which it refuses; ``None`` before.
    final: tuple[Any, frozenset[str]] | None = None
    disclosed: tuple[int, ...] = ()  # how often the user has answered for each detail
    idle: int = 0  # replies that the user could not answer
    standing: float = 0.0  # the share of the task that is done
    page_size: int = PAGE  # of search results


@dataclass(frozen=True)
class ToolKit:
    """The tools of a world in a format of calls; made once a world and shared."""

    toolbox: Toolbox
    format: CallFormat
    instructions: str
    names: str  # the tools with the names of their arguments alone, a line each


def kit_of(world: World, call_format: str, max_calls_per_turn: int) -> ToolKit:
    """Return the tools of a world; made once for each world that is kept."""
    kits: dict[tuple[str, int], ToolKit] = world.cache
    key = call_format, max_calls_per_turn
    if key not in kits:
        kits[key] = make_kit(tools_of(world), call_format, max_calls_per_turn)
    return kits[key]


def make_kit(tools: Sequence[Tool[..., Any]], call_format: str, max_calls_per_turn: int) -> ToolKit:
    """Return tools with what a prompt says of them; nothing where a chat template says it."""
    form = make_format(call_format, tools)
    lines = "\n".join(f"{tool.name}{_signature(tool)}: {tool.description}" for tool in tools)
    text = form.instructions() if isinstance(form, React) else form.prompt.replace("@TOOLS@", lines)
    names = "\n".join(f"{tool.name}({', '.join(tool.parameters['properties'])})" for tool in tools)
    toolbox = Toolbox(tools, max_calls_per_turn=max_calls_per_turn)
    return ToolKit(toolbox, form, text, names if text else "")


def _signature(tool: Tool[..., Any]) -> str:
    required = tool.parameters["required"]
    return "({})".format(
        ", ".join(
            f"{name}: {part['title']}" if name in required else f"{name}?: {part['title']}"
            for name, part in tool.parameters["properties"].items()
        )
    )


def tools_of(world: World) -> list[Tool[..., Any]]:
    """Return new tools of a world."""
    made_tools = []
    for entity in world.schema.entities.values():
        made_tools += [_find(world, entity), _get(world, entity)]
        made_tools += [_verb(world, entity, verb) for verb in entity.verbs.values()]
    names = sorted(world.skin.applications.values())
    made_tools += [
        make_tool(
            _sign_in, SIGN_IN, "Sign in to an application again.", {"application": ("text", {"enum": names}, True)}
        ),
        make_tool(
            functools.partial(_send_report, world),
            REPORT,
            "Send a person a report that the user asks for: for each record an object with its id, its name and the "
            "values that are asked for, by the names of the fields; and the sum, if one is asked for. What is sent "
            "cannot be taken back.",
            {
                "to": (f"{world.skin.entities[PERSON][0]} id", {"type": "string"}, True),
                "rows": ("list of objects", {"type": "array", "items": {"type": "object"}}, True),
                "total": ("number", {"type": "number"}, False),
            },
        ),
        finish_tool("tools"),
    ]
    return made_tools


def finish_tool(writers: str) -> Tool[..., Any]:
    """Return the tool that ends a task.

    Args:
        writers: What writes values, in the plural: an answer is written as they do.
    """
    return make_tool(
        _finish,
        FINISH,
        f"End the task: with the answer to a question, if there was one (a value as {writers} write it, of a record "
        "its name or id), and with the id of the record for which a rule forbids what the user wants, if one does.",
        {"answer": ("text or number", {}, False), "refused": ("id", {"type": "string"}, False)},
    )


def make_tool(
    function: Callable[..., Any],
    name: str,
    description: str,
    arguments: Mapping[str, tuple[str, Mapping[str, Any], bool]],
) -> Tool[..., Any]:
    """Make a tool; an argument has what it is in a word or two, its schema, and whether it is required."""
    properties = {key: {"title": title, **schema} for key, (title, schema, _) in arguments.items()}
    required = [key for key, (_, _, needed) in arguments.items() if needed]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Tool(
        _Checked(function, name, properties, required), name=name, description=description, parameters=parameters
    )


@dataclass(frozen=True)
class _Checked:
    """Checks the arguments of a call, signs of failure first, and runs it."""

    function: Callable[..., Any]
    name: str
    properties: Mapping[str, Any]
    required: list[str]

    # A world may have a field that is called "state": the episode's has a name that none has. "self" is no name either.
    def __call__(self, /, *, episode_state: WorldState, **arguments: Any) -> Any:
        if unknown := [key for key in arguments if key not in self.properties]:
            raise ToolError(f"{self.name} has no argument {unknown[0][:40]!r}; it has {', '.join(self.properties)}")
        values = {key: value for key, value in arguments.items() if value is not None}
        if missing := [key for key in self.required if key not in values]:
            raise ToolError(f"{self.name} needs {', '.join(missing)}")
        return self.function(episode_state, values)


def _title(world: World, entity: Entity, one: Field) -> str:
    if one.kind == "choice":
        return " or ".join(str(world.skin.written(entity, one, value)) for value in one.values)
    if one.kind == "ref":
        return f"{world.skin.entities[one.to][0]} id"
    return {"name": "text", "day": "date", "money": "euros", "number": "number"}[one.kind]


def _schema(world: World, entity: Entity, one: Field) -> Mapping[str, Any]:
    """Return the JSON schema of a field's values as they are written."""
    if one.kind == "choice":
        return {"enum": [world.skin.written(entity, one, value) for value in one.values]}
    return {"type": "integer" if one.kind in ("number", "money") else "string"}


def _arguments(
    world: World, entity: Entity, names: Any, required: bool
) -> dict[str, tuple[str, Mapping[str, Any], bool]]:
    fields = {world.skin.fields[entity.key, name]: entity.fields[name] for name in names}
    return {
        called: (_title(world, entity, one), _schema(world, entity, one), required) for called, one in fields.items()
    }


def _find(world: World, entity: Entity) -> Tool[..., Any]:
    plural = spoken(world.skin.entities[entity.key][1])
    arguments = {**_arguments(world, entity, entity.fields, False), _PAGE: ("number", {"type": "integer"}, False)}
    function = functools.partial(_run_find, world, entity)
    return make_tool(
        function, world.skin.tool(entity, "find"), f"Find {plural} by all values that are given.", arguments
    )


def _get(world: World, entity: Entity) -> Tool[..., Any]:
    singular = spoken(world.skin.entities[entity.key][0])
    function = functools.partial(_run_get, world, entity)
    arguments = {_ID: (f"{world.skin.entities[entity.key][0]} id", {"type": "string"}, True)}
    return make_tool(function, world.skin.tool(entity, "get"), f"All of one {singular}.", arguments)


def _verb(world: World, entity: Entity, verb: Verb) -> Tool[..., Any]:
    skin = world.skin
    singular, word = spoken(skin.entities[entity.key][0]), spoken(skin.verbs[entity.key, verb.name]).capitalize()
    arguments: dict[str, tuple[str, Mapping[str, Any], bool]] = {}
    if verb.kind == "create":
        text = f"{word} {with_article(f'new {singular}')}."
    else:
        arguments[_ID] = (f"{skin.entities[entity.key][0]} id", {"type": "string"}, True)
        needs = " and ".join(
            f"{spoken(skin.fields[entity.key, name])} {spoken(str(skin.written(entity, entity.fields[name], value)))}"
            for name, value in verb.needs.items()
        )
        text = f"{word} {with_article(singular)}{f' with {needs}' if needs else ''}."
    arguments |= _arguments(world, entity, verb.gives, True)
    return make_tool(functools.partial(_run_verb, world, entity, verb), skin.tool(entity, verb), text, arguments)


def _run_find(world: World, entity: Entity, state: WorldState, arguments: dict[str, Any]) -> dict[str, Any]:
    _signed_in(world, entity, state)
    page = arguments.get(_PAGE, 1)
    if isinstance(page, bool) or not isinstance(page, int) or page < 1:
        raise ToolError(f"{_PAGE} counts from 1, not {page!r}")
    places, skin = world.schema.places[entity.key], world.skin
    label, text = places[entity.label], ""
    equal: dict[int, Value] = {}
    conditions: list[tuple[str, Value]] = []
    for name, one in entity.fields.items():
        if (written := arguments.get(skin.fields[entity.key, name])) is None:
            continue
        if one.name == entity.label:
            text = str(written).casefold()
            conditions.append((name, str(written)))
        else:
            value = _value(world, entity, one, written, state.store, exists=False)
            equal[places[name]] = value
            conditions.append((name, value))
    matches = [
        one for one in state.store.matching(entity.key, equal) if not text or text in str(one[1][label]).casefold()
    ]
    pages = max(1, -(-len(matches) // state.page_size))
    rows_of_page = matches[state.page_size * (page - 1) : state.page_size * page]
    state.made |= {("find", entity.key, tuple(conditions), page)}
    field_name = skin.fields[entity.key, entity.label]
    rows = [{_ID: number, field_name: record[label]} for number, record in rows_of_page]
    return {skin.entities[entity.key][1]: rows, "found": len(matches), _PAGE: page, "pages": pages}


def _run_get(world: World, entity: Entity, state: WorldState, arguments: dict[str, Any]) -> dict[str, Any]:
    _signed_in(world, entity, state)
    number = _record_id(world, entity, state.store, arguments[_ID])
    record = state.store.get(entity.key, number)
    assert record is not None
    state.made |= {("get", entity.key, number)}
    skin = world.skin
    values = {
        skin.fields[entity.key, name]: skin.written(entity, one, value)
        for (name, one), value in zip(entity.fields.items(), record, strict=True)
    }
    return {_ID: number, **values}


def _run_verb(world: World, entity: Entity, verb: Verb, state: WorldState, arguments: dict[str, Any]) -> dict[str, Any]:
    _signed_in(world, entity, state)
    skin, schema, store = world.skin, world.schema, state.store
    gives = {
        name: _value(world, entity, entity.fields[name], arguments[skin.fields[entity.key, name]], store)
        for name in verb.gives
    }
    if verb.kind == "create":
        label = str(gives[entity.label])
        place = schema.places[entity.key][entity.label]
        if any(record[place] == label for _, record in store.records(entity.key)):
            raise ToolError(f"there is a {skin.entities[entity.key][0]} {label!r} already")
        state.store, number = made(schema, store, entity.key, verb, gives)
        state.made |= {("did", entity.key, verb.name, "", tuple(gives.items()))}
        return {_ID: number, "done": True}
    number = _record_id(world, entity, store, arguments[_ID])
    try:
        state.store = applied(schema, store, entity.key, verb, number, gives)
    except CannotBeDoneError as error:
        name = str(error)
        record = store.get(entity.key, number)
        assert record is not None
        value = skin.written(entity, entity.fields[name], record[schema.places[entity.key][name]])
        raise ToolError(f"not done: {skin.fields[entity.key, name]} of {number} is {value}") from None
    state.made |= {("did", entity.key, verb.name, number, tuple(gives.items()))}
    return {_ID: number, "done": True}


def _sign_in(state: WorldState, arguments: dict[str, Any]) -> dict[str, Any]:
    story, application = state.story, arguments["application"]
    assert story is not None  # a tool runs inside an episode
    names = {called: name for name, called in story.world.skin.applications.items()}
    if not isinstance(application, str) or application not in names:
        raise ToolError(f"there is no application {str(application)[:40]!r}; there are {', '.join(sorted(names))}")
    state.incidents = state.incidents.signed_in(names[application])
    return {"signed_in": application}


def _send_report(world: World, state: WorldState, arguments: dict[str, Any]) -> dict[str, Any]:
    if state.final is not None:
        raise ToolError("the task is finished")
    to = _record_id(world, world.schema.entities[PERSON], state.store, arguments["to"])
    rows, total = arguments["rows"], arguments.get("total")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "id" in row for row in rows):
        raise ToolError('rows is a list with an object for each record, such as {"id": "P1234", "title": "a name"}')
    values = [value for row in rows for value in row.values()]
    if any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in values):
        raise ToolError("a row has texts and numbers alone")
    if total is not None and (isinstance(total, bool) or not isinstance(total, int | float)):
        raise ToolError(f"total is a number, not {str(total)[:40]!r}")
    state.reports += (Report(to, tuple(rows), total),)
    return {"sent": True, "rows": len(rows)}


def _finish(state: WorldState, arguments: dict[str, Any]) -> dict[str, Any]:
    answer, refused = arguments.get("answer"), arguments.get("refused", "")
    ids = _IDS.findall(refused.upper()) if isinstance(refused, str) else []
    if refused and not ids:
        raise ToolError(f"refused is the id of a record, such as P1234, not {str(refused)[:40]!r}")
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, str | int | float)):
        raise ToolError("answer is a text or a number")
    if state.final is None:
        state.final = answer, frozenset(ids)
    return {"finished": True}


def _signed_in(world: World, entity: Entity, state: WorldState) -> None:
    """Count a call; raise what goes wrong with it."""
    if state.final is not None:
        raise ToolError("the task is finished")
    state.incidents, problem = state.incidents.called(entity.application)
    if problem == "expired":
        name = world.skin.applications[entity.application]
        raise RefusedError(f"the session of {name} has expired", f"call {SIGN_IN} and then this again", passes=True)
    if problem == "busy":
        raise RefusedError("not done: the service is busy", "call this again", passes=True)


def _record_id(world: World, entity: Entity, store: Store, written: Any) -> str:
    number = str(written).strip()
    if store.get(entity.key, number) is None:
        find = world.skin.tool(entity, "find")
        raise RefusedError(
            f"there is no {world.skin.entities[entity.key][0]} with id {number[:40]!r}", f"{find} shows ids"
        )
    return number


def _value(world: World, entity: Entity, one: Field, written: Any, store: Store, exists: bool = True) -> Value:
    """Return the value of an argument; ``ToolError`` where it is none of the field's."""
    called = world.skin.fields[entity.key, one.name]
    if one.kind == "ref":
        return _record_id(world, world.schema.entities[one.to], store, written) if exists else str(written).strip()
    value = world.skin.read(entity, one, written)
    if value is None or (one.kind == "name" and not str(value).strip()):
        raise ToolError(f"{called} is {_kind_text(world, entity, one)}, not {str(written)[:40]!r}")
    if exists and one.is_number and not one.low <= int(value) <= one.high:
        low, high, outside = (world.skin.written(entity, one, number) for number in (one.low, one.high, value))
        raise ToolError(f"{called} is from {low} to {high}, not {outside}")
    return value


def _kind_text(world: World, entity: Entity, one: Field) -> str:
    if one.kind == "choice":
        return _title(world, entity, one)
    return {"name": "a text", "day": "a date such as 2026-03-09"}.get(one.kind, "an integer")
