"""Pages of a world, made of what its tools return: who opens a page calls a tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from ...tools.schema import Tool, ToolError
from ..worlds.skin import spoken
from ..worlds.tools import SIGN_IN, RefusedError, WorldState
from .forms import Path, arguments_of, hint_of, leaves, text_of_value
from .page import SHARED, Button, Element, Field, Link, Page
from .site import ID, PAGE_NUMBER, Action, Kind, Site

#: Words and elements, in order.
Parts: TypeAlias = "tuple[str | Element, ...]"

_NO_ENTRIES: Mapping[Path, str] = {}


def load(site: Site, state: WorldState, address: str, first: int) -> Page:
    """Load a page, with numbers from ``first``.

    A page that a service does not give now says so, and how to go on (:attr:`Page.loaded` is false).

    Raises:
        ToolError: There is no page of this address.
    """
    path, _, query = address.strip().partition("?")
    names = [name for name in path.split("/") if name]
    if not names:
        return Page("/", ("Page /", *_once(site, "/", lambda: _home(site))), first)
    if (general := site.actions.get(path)) is not None:
        own, words = general.address, general.tool.description
        return Page(own, (f"Page {own}\n", Link("home", "/"), f"\n{words}", *_form(general, 0)), first)
    if names[0] not in site.applications:
        raise ToolError(f"there is no page {address[:80]!r}; the applications are {', '.join(site.applications)}")
    if len(names) == 1:
        own = f"/{names[0]}"
        return Page(own, (f"Page {own}\n", Link("home", "/"), *_application(site, state, names[0])), first)
    kind = site.kinds.get(f"/{names[0]}/{names[1]}")
    if kind is None or len(names) > 3:
        raise ToolError(
            f"there is no page {address[:80]!r}; {names[0]} has "
            f"{', '.join(one.address for one in site.kinds_of(names[0]))}"
        )
    if len(names) == 2:
        entries = kind.entries(query) if query else _NO_ENTRIES
        return _loaded(site, state, kind, kind.results(entries), first, lambda: _found(site, state, kind, entries))
    own, number = kind.record(names[2]), names[2]
    action = next((action for action in kind.actions if action.address == own), None)
    if action is not None:
        return Page(own, (*_top(site, kind, own), *_form(action, 0)), first)
    return _loaded(site, state, kind, own, first, lambda: _record(site, state, kind, number), number)


def with_sign_in(site: Site, state: WorldState, page: Page, kind: Kind) -> Page:
    """Return a page with a button to sign in at its end, where the session of a kind's application has expired.

    All numbers stay.
    """
    application = kind.entity.application
    if application not in state.incidents.expired or page.number(Button, lambda one: one.tool == SIGN_IN):
        return page
    return replace(page, body=(*page.body, "\n", _sign_in(site, application)))


def _once(site: Site, key: str, make: Callable[[], Parts]) -> Parts:
    """Return parts of pages that are the same in all episodes; made once."""
    if key not in site.parts:
        site.parts[key] = make()
    return site.parts[key]


def _loaded(
    site: Site,
    state: WorldState,
    kind: Kind,
    address: str,
    first: int,
    view: Callable[[], Parts],
    record: str = "",
) -> Page:
    """Return a page of records, or one that says that the service does not answer."""
    top = _top(site, kind, address)
    try:
        return Page(address, (*top, *view()), first, record)
    except RefusedError as error:
        if not error.passes:
            raise ToolError(f"{error.problem}; {kind.address} finds records") from None
        application = kind.entity.application
        expired = application in state.incidents.expired
        way = _sign_in(site, application) if expired else Link("try again", address)
        return Page(address, (*top, f"\n{error.problem}.\n", way), first, loaded=False)


def _top(site: Site, kind: Kind, address: str) -> Parts:
    return (f"Page {address}\n", *_once(site, f"{kind.address} top", lambda: _crumbs(kind)))


def _crumbs(kind: Kind) -> Parts:
    application = kind.address.split("/")[1]
    return Link("home", "/"), " > ", Link(spoken(application), f"/{application}"), " > ", _link_to(kind)


def _sign_in(site: Site, application: str) -> Button:
    called = site.world.skin.applications[application]
    return Button(f"Sign in to {spoken(called)}", SIGN_IN, fixed=(("application", called),))


def _home(site: Site) -> Parts:
    """Return each application with its kinds of records (all names that addresses are made of), and other pages."""
    parts: list[str | Element] = []
    for called in site.applications:
        parts += ["\n", Link(spoken(called), f"/{called}"), ":"]
        for kind in site.kinds_of(called):
            parts += [" ", _link_to(kind)]
    return (*parts, *_lines(Link(action.label, action.address) for action in site.actions.values()))


def _application(site: Site, state: WorldState, called: str) -> Parts:
    parts = _lines(_link_to(kind) for kind in site.kinds_of(called))
    if site.applications[called] in state.incidents.expired:
        return (*parts, "\n", _sign_in(site, site.applications[called]))
    return parts


def _link_to(kind: Kind) -> Link:
    return Link(spoken(kind.address.rpartition("/")[2]), kind.address)


def _lines(elements: Iterable[Element]) -> Parts:
    """Return elements, each on a line of its own after what comes before."""
    return tuple(part for element in elements for part in ("\n", element))


def _found(site: Site, state: WorldState, kind: Kind, entries: Mapping[Path, str]) -> Parts:
    """Return the search form and a page of what it finds."""
    arguments, problems = arguments_of(kind.find.parameters, entries)
    if problems:
        path, problem = next(iter(problems.items()))
        raise ToolError(f"{'.'.join(path)}={entries[path][:40]!r}: {problem}")
    result = kind.find.function(episode_state=state, **arguments)
    rows, page, pages = result[site.world.skin.entities[kind.entity.key][1]], result[PAGE_NUMBER], result["pages"]
    label = site.world.skin.fields[kind.entity.key, kind.entity.label]
    links = [Link(f"{row[label]} ({row[ID]})", kind.record(row[ID])) for row in rows]
    links += [
        Link(text, kind.search({**arguments, PAGE_NUMBER: other}))
        for text, other in (("previous page", page - 1), ("next page", page + 1))
        if 1 <= other <= pages
    ]
    links += [Link(action.label, action.address) for action in kind.actions if action.address]
    return (
        *_search_form(site, kind, entries),
        f"\n{result['found']} found, page {page} of {pages}",
        *_lines(links),
    )


def _search_form(site: Site, kind: Kind, entries: Mapping[Path, str]) -> Parts:
    form = _once(
        site,
        f"{kind.address} search",
        lambda: _lines([*_fields(kind.find, (PAGE_NUMBER,), 0), Button("Search", kind.find.name, 0)]),
    )
    if not entries:
        return form
    return tuple(
        part._replace(initial=entries[part.path]) if isinstance(part, Field) and part.path in entries else part
        for part in form
    )


def _record(site: Site, state: WorldState, kind: Kind, number: str) -> Parts:
    """Return all of a record, and a form for each action with it."""
    result = kind.get.function(episode_state=state, **{ID: number})
    parts: list[str | Element] = []
    for name, value in result.items():
        if (target := kind.targets.get(name)) is None:
            parts.append(f"\n{spoken(name)}: {text_of_value(value)}")
        else:
            label = _label(site, state, target, value)
            parts += [f"\n{spoken(name)}: ", Link(f"{label} ({value})", site.by_entity[target].record(value))]
    return (*parts, *_once(site, f"{kind.address} actions", lambda: _actions(kind)))


def _label(site: Site, state: WorldState, entity: str, number: str) -> str:
    schema, record = site.world.schema, state.store.get(entity, number)
    assert record is not None  # a reference is to a record
    return str(record[schema.places[entity][schema.entities[entity].label]])


def _actions(kind: Kind) -> Parts:
    """Return the forms of a record's actions, below a field for the id of what is changed.

    A link leads to a record whatever its id is. So the page does not decide what is changed, and the id is filled in:
    equal replies then change the same in all twins, as they do with tools, and those that solve one solve no other.
    """
    actions = [action for action in kind.actions if not action.address]
    if not actions:
        return ()
    target = Field("id", f"{hint_of(actions[0].tool.parameters['properties'][ID])}, to change", (ID,), SHARED)
    forms = (part for form, action in enumerate(actions) for part in _form(action, form))
    return (*_lines([target]), *forms)


def _form(action: Action, form: int) -> Parts:
    fields = _fields(action.tool, () if action.address else (ID,), form, "{}, optional")
    return _lines([*fields, Button(action.label, action.tool.name, form)])


def _fields(tool: Tool[..., Any], without: tuple[str, ...], form: int, optional: str = "{}") -> list[Field]:
    """Return the empty fields of a tool's form but ``without`` what the page decides.

    ``optional`` is the hint of a field that may be left empty, with its own for ``{}``.
    """
    fields: list[Field] = []
    for path, part, required in leaves(tool.parameters):
        if path[0] not in without:
            hint = hint_of(part) if required else optional.format(hint_of(part))
            fields.append(Field(spoken(" ".join(path)), hint, path, form))
    return fields
