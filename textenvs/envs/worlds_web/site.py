"""Addresses of a world's pages, and which of its tools is behind which page or button.

``/`` has the applications, ``/staff`` the kinds of records of one, ``/staff/members`` a search form and the records,
``/staff/members?name=Li&page=2`` what a search finds, ``/staff/members/P1234`` a record with what can be done with it,
and ``/staff/members/hire`` the form of an action that is about no record that is there, such as a new one. A tool of no
application has a page of its own, such as ``/send_report``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...tools.schema import Tool, ToolError
from ..worlds.applications import Entity
from ..worlds.skin import spoken
from ..worlds.tools import FINISH, SIGN_IN, tools_of
from ..worlds.world import World
from .forms import Path, is_empty, leaves, text_of_value

#: Names of a tool's arguments that a page decides.
ID, PAGE_NUMBER = "id", "page"


@dataclass(frozen=True)
class Action:
    """A tool that changes something.

    Args:
        label: What its button says.
        address: Of the page with its form; empty where the form is on the page of each record.
    """

    label: str
    tool: Tool[..., Any]
    address: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of records: its pages."""

    entity: Entity
    address: str
    find: Tool[..., Any]
    get: Tool[..., Any]
    actions: Sequence[Action]
    targets: Mapping[str, str]  # of the fields that refer to records: which entity's, by what they are called

    @cached_property
    def names(self) -> Mapping[str, Path]:
        """The fields of the search form by their names in addresses."""
        return {".".join(path): path for path, _, _ in leaves(self.find.parameters)}

    def record(self, number: str) -> str:
        """Return the address of a record."""
        return f"{self.address}/{number}"

    def search(self, arguments: Mapping[str, Any]) -> str:
        """Return the address of what a search finds; the first page is left out of it."""
        entries = {(name,): value for name, value in arguments.items()}
        return self.results({path: value for path, value in entries.items() if path != (PAGE_NUMBER,) or value != 1})

    def results(self, entries: Mapping[Path, Any]) -> str:
        """Return the address of what a filled search form finds."""
        if not entries:
            return self.address
        query = [
            (name, text_of_value(entries[path]))
            for name, path in self.names.items()
            if path in entries and not is_empty(entries[path])
        ]
        return f"{self.address}?{urlencode(query)}" if query else self.address

    def entries(self, query: str) -> dict[Path, str]:
        """Return what an address has filled into the search form; :class:`ToolError`: something unknown."""
        pairs = dict(parse_qsl(query))
        if unknown := [name for name in pairs if name not in self.names]:
            raise ToolError(f"{self.address} has no field {unknown[0][:40]!r}; it has {', '.join(self.names)}")
        return {self.names[name]: text for name, text in pairs.items()}


@dataclass(frozen=True)
class Place:
    """The place of a tool of the world: its kind (``None``: of no application), and which of its tools it is."""

    kind: Kind | None
    part: str  # "find", "get" or "action"
    address: str = ""  # of an action's own page


class Site:
    """The pages of a world. Immutable, and shared by all episodes in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tools = {tool.name: tool for tool in tools_of(world)}
        skin = world.skin
        #: By what they are called in addresses: the applications' names in the code.
        self.applications = {called: name for name, called in skin.applications.items()}
        self.kinds: dict[str, Kind] = {}
        #: Parts of pages that are the same in all episodes.
        self.parts: dict[str, tuple[Any, ...]] = {}
        self.by_entity: dict[str, Kind] = {}
        self.places: dict[str, Place] = {}
        for key, entity in world.schema.entities.items():
            kind = self._kind(entity)
            self.kinds[kind.address] = self.by_entity[key] = kind
            self.places[kind.find.name] = Place(kind, "find")
            self.places[kind.get.name] = Place(kind, "get")
            self.places |= {one.tool.name: Place(kind, "action", one.address) for one in kind.actions}
        others = (tool for name, tool in self.tools.items() if name not in {*self.places, SIGN_IN, FINISH})
        #: Of no application, by the addresses of their pages.
        self.actions = {f"/{tool.name}": Action(_spoken(tool.name), tool, f"/{tool.name}") for tool in others}
        self.places |= {one.tool.name: Place(None, "action", one.address) for one in self.actions.values()}

    def _kind(self, entity: Entity) -> Kind:
        skin = self.world.skin
        address = f"/{skin.applications[entity.application]}/{skin.entities[entity.key][1]}"
        actions = []
        for verb in entity.verbs.values():
            tool, called = self.tools[skin.tool(entity, verb)], skin.verbs[entity.key, verb.name]
            own = "" if ID in tool.parameters["properties"] else f"{address}/{called}"
            label = tool.description.removesuffix(".") if own else _spoken(called)
            actions.append(Action(label, tool, own))
        find, get = (self.tools[skin.tool(entity, one)] for one in ("find", "get"))
        targets = {skin.fields[entity.key, one.name]: one.to for one in entity.fields.values() if one.kind == "ref"}
        return Kind(entity, address, find, get, actions, targets)

    def kinds_of(self, called: str) -> list[Kind]:
        """Return the kinds of records of an application."""
        return [kind for kind in self.kinds.values() if kind.entity.application == self.applications[called]]


def _spoken(name: str) -> str:
    return spoken(name).capitalize()


def site_of(world: World) -> Site:
    """Return the pages of a world; made once for each world that is kept."""
    if "site" not in world.cache:
        world.cache["site"] = Site(world)
    site: Site = world.cache["site"]
    return site
