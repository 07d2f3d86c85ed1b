"""Pages of a world, made of what its tools return: who opens a page calls a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ...tools.schema import Tool, ToolError
from ..worlds.skin import spoken
from ..worlds.tools import SIGN_IN, RefusedError, WorldState
from .forms import Path, arguments_of, hint_of, leaves, text_of_value
from .page import Button, Element, Field, Link, Page, lines
from .site import ID, PAGE_NUMBER, Action, Kind, Site

_Line: TypeAlias = "Sequence[str | Element]"


def load(site: Site, state: WorldState, address: str, first: int) -> Page:
    """Load a page, with numbers from ``first``.

    A page that a service does not give now says so, and how to go on (:attr:`Page.loaded` is false).

    Raises:
        ToolError: There is no page of this address.
    """
    path, _, query = address.strip().partition("?")
    names = [name for name in path.split("/") if name]
    if not names:
        return _page("/", [], _home(site), first)
    if names[0] not in site.applications:
        raise ToolError(f"there is no page {address[:80]!r}; the applications are {', '.join(site.applications)}")
    if len(names) == 1:
        return _page(f"/{names[0]}", [], _application(site, state, names[0]), first)
    kind = site.kinds.get(f"/{names[0]}/{names[1]}")
    if kind is None or len(names) > 3:
        known = [one.address for one in site.kinds.values() if one.address.startswith(f"/{names[0]}/")]
        raise ToolError(f"there is no page {address[:80]!r}; {names[0]} has {', '.join(known)}")
    if len(names) == 2:
        entries = kind.entries(query)
        return _load(site, state, kind, kind.results(entries), first, _found, entries)
    own = kind.record(names[2])
    for action in kind.actions:
        if action.address == own:
            return _page(own, _crumbs(kind), _form(action, (), 0), first)
    return _load(site, state, kind, own, first, _record, names[2])


def with_sign_in(site: Site, state: WorldState, page: Page, kind: Kind) -> Page:
    """Return a page with a button to sign in at its end, where the session of a kind's application has expired.

    All numbers stay.
    """
    if kind.entity.application not in state.incidents.expired or page.number(Button, _signs_in):
        return page
    return Page(page.address, (*page.body, "\n", _sign_in(site, kind.entity.application)), page.first)


def _signs_in(button: Button) -> bool:
    return button.tool == SIGN_IN


def _page(address: str, crumbs: _Line, content: Sequence[_Line], first: int, loaded: bool = True) -> Page:
    top: list[_Line] = [[f"Page {address}"]]
    if address != "/":
        top.append([Link("home", "/"), *crumbs])
    return Page(address, lines([*top, *content]), first, loaded)


def _load(site: Site, state: WorldState, kind: Kind, address: str, first: int, view: Any, argument: Any) -> Page:
    try:
        content = view(site, state, kind, argument)
    except RefusedError as error:
        if not error.passes:
            raise ToolError(f"{error.problem}; {kind.address} finds records") from None
        application = kind.entity.application
        expired = application in state.incidents.expired
        way = _sign_in(site, application) if expired else Link("try again", address)
        return _page(address, _crumbs(kind), [[f"{error.problem}."], [way]], first, loaded=False)
    return _page(address, _crumbs(kind), content, first)


def _sign_in(site: Site, application: str) -> Button:
    called = site.world.skin.applications[application]
    return Button(f"Sign in to {spoken(called)}", SIGN_IN, (("application", called),))


def _crumbs(kind: Kind) -> _Line:
    application = kind.address.split("/")[1]
    return [" > ", Link(spoken(application), f"/{application}"), " > ", _link_to(kind)]


def _home(site: Site) -> list[_Line]:
    """Return each application with its kinds of records: all names that addresses are made of."""
    content: list[_Line] = []
    for called in site.applications:
        line: list[str | Element] = [Link(spoken(called), f"/{called}"), ":"]
        for kind in site.kinds_of(called):
            line += [" ", _link_to(kind)]
        content.append(line)
    return content


def _application(site: Site, state: WorldState, called: str) -> list[_Line]:
    content: list[_Line] = [[_link_to(kind)] for kind in site.kinds_of(called)]
    if site.applications[called] in state.incidents.expired:
        content.append([_sign_in(site, site.applications[called])])
    return content


def _link_to(kind: Kind) -> Link:
    return Link(spoken(kind.address.rpartition("/")[2]), kind.address)


def _found(site: Site, state: WorldState, kind: Kind, entries: Mapping[Path, str]) -> list[_Line]:
    """Return the search form and a page of what it finds."""
    arguments, problems = arguments_of(kind.find.parameters, entries)
    if problems:
        path, problem = next(iter(problems.items()))
        raise ToolError(f"{'.'.join(path)}={entries[path][:40]!r}: {problem}")
    result = kind.find.function(episode_state=state, **arguments)
    rows, page, pages = result[site.world.skin.entities[kind.entity.key][1]], result[PAGE_NUMBER], result["pages"]
    content = _fields(kind.find, (PAGE_NUMBER,), 0, entries)
    content.append([Button("Search", kind.find.name, form=0)])
    content.append([f"{result['found']} found, page {page} of {pages}"])
    label = site.world.skin.fields[kind.entity.key, kind.entity.label]
    content += [[Link(f"{row[label]} ({row[ID]})", kind.record(row[ID]))] for row in rows]
    for text, other in (("previous page", page - 1), ("next page", page + 1)):
        if 1 <= other <= pages:
            content.append([Link(text, kind.search({**arguments, PAGE_NUMBER: other}))])
    content += [[Link(action.label, action.address)] for action in kind.actions if action.address]
    return content


def _record(site: Site, state: WorldState, kind: Kind, number: str) -> list[_Line]:
    """Return all of a record, and a form for each action with it."""
    result = kind.get.function(episode_state=state, **{ID: number})
    targets = {
        site.world.skin.fields[kind.entity.key, one.name]: one.to
        for one in kind.entity.fields.values()
        if one.kind == "ref"
    }
    content: list[_Line] = []
    for name, value in result.items():
        if name in targets:
            label = _label(site, state, targets[name], value)
            address = site.by_entity[targets[name]].record(value)
            content.append([f"{spoken(name)}: ", Link(f"{label} ({value})", address)])
        else:
            content.append([f"{spoken(name)}: {text_of_value(value)}"])
    for form, action in enumerate(action for action in kind.actions if not action.address):
        content += _form(action, ((ID, number),), form)
    return content


def _label(site: Site, state: WorldState, entity: str, number: str) -> str:
    schema, record = site.world.schema, state.store.get(entity, number)
    assert record is not None  # a reference is to a record
    return str(record[schema.places[entity][schema.entities[entity].label]])


def _form(action: Action, fixed: tuple[tuple[str, Any], ...], form: int) -> list[_Line]:
    fields = _fields(action.tool, tuple(name for name, _ in fixed), form, {}, "{}, optional")
    return [*fields, [Button(action.label, action.tool.name, fixed, form)]]


def _fields(
    tool: Tool[..., Any], without: Sequence[str], form: int, entries: Mapping[Path, str], optional: str = "{}"
) -> list[_Line]:
    """Return the fields of a tool's form but ``without`` what the page decides.

    They hold ``entries``. ``optional`` is the hint of a field that may be left empty, with its own for ``{}``.
    """
    content: list[_Line] = []
    for path, part, required in leaves(tool.parameters):
        if path[0] not in without:
            hint = hint_of(part) if required else optional.format(hint_of(part))
            content.append([Field(spoken(" ".join(path)), hint, path, form, entries.get(path, ""))])
    return content
