"""The scripted expert on pages: what the expert of worlds calls, as links, entries and buttons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...messages import ToolCall
from ...tools.formats import call
from ..worlds.tools import FINISH, SIGN_IN
from .browser import FILL, OPEN, PRESS, WebState
from .forms import Path, leaves
from .page import Button, Link
from .site import ID, PAGE_NUMBER


def actions_for(state: WebState, tool_call: ToolCall) -> list[ToolCall]:
    """Return the next actions towards a call of a tool of the world: to the page that has it, or all that it takes."""
    name: str = tool_call["function"]["name"]
    arguments: dict[str, Any] = json.loads(tool_call["function"]["arguments"])
    if name == FINISH:
        return [tool_call]
    site, page = state.site, state.session.page
    if name == SIGN_IN:
        fixed = tuple(arguments.items())
        number = page.number(Button, lambda one: one.tool == SIGN_IN and one.fixed == fixed)
        return [_go(state, f"/{arguments['application']}") if number is None else call(PRESS, button=number)]
    place = site.places[name]
    kind = place.kind
    if kind is None:
        return _submit(state, name, arguments) or [_go(state, place.address)]
    if place.part == "get":
        return [_go(state, kind.record(arguments[ID]))]
    if place.part == "find":
        address = kind.search(arguments)
        is_linked = page.number(Link, lambda one: one.address == address) is not None
        if is_linked or PAGE_NUMBER in arguments:
            return [_go(state, address)]
        return _submit(state, name, arguments) or [_go(state, kind.address)]
    if actions := _submit(state, name, arguments):
        return actions
    if not place.address:
        return [_go(state, kind.record(arguments[ID]))]
    is_linked = page.number(Link, lambda one: one.address == place.address) is not None
    return [_go(state, place.address if is_linked else kind.address)]


def _go(state: WebState, address: str) -> ToolCall:
    """Return how to open a page: by a link, where the one that is open has it."""
    number = state.session.page.number(Link, lambda one: one.address == address)
    return call(OPEN, to=address if number is None else number)


def _submit(state: WebState, name: str, arguments: Mapping[str, Any]) -> list[ToolCall]:
    """Return what fills and sends the form of a tool; nothing where the page has no such form."""
    page = state.session.page
    number = page.number(Button, lambda one: one.tool == name)
    if number is None or (page.record and arguments[ID] != page.record):
        return []
    button = page.element(number, Button)
    entries = _entries(state, name, arguments)
    fields = [(place, entries.get(one.path, "")) for place, one in page.sent_by(button)]
    fills = [call(FILL, field=place, value=value) for place, value in fields if state.session.entry(place) != value]
    return [*fills, call(PRESS, button=number)]


def _entries(state: WebState, name: str, arguments: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the values of a tool's arguments by the paths of its fields."""
    entries: dict[Path, Any] = {}
    for path, _, _ in leaves(state.site.tools[name].parameters):
        value: Any = arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            entries[path] = value
    return entries
