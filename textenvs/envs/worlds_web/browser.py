"""The tools of a policy that reads pages: open, fill, press, back, finish."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...tools.schema import Tool, ToolError
from ..worlds.tools import SIGN_IN, RefusedError, WorldState, finish_tool, make_tool
from .forms import Path, arguments_of, text_of_value
from .page import Button, Field, Link, Page
from .site import ID, Site, site_of
from .views import load, with_sign_in

OPEN, FILL, PRESS, BACK = "open", "fill", "press", "back"
#: Characters of an entry.
MAX_ENTRY = 4000
#: Of a tool's result: enough for a page of any size.
_MAX_CHARS = 100_000
_NUMBER = re.compile(r"\s*\[?(\d{1,9})\]?\s*")

INTRODUCTION = (
    "The applications are text pages with numbered links, fields and buttons. Open a link by its number, or an "
    "address: /application/records, or /application/records/id, with _ for spaces. Fill the fields of a form, then "
    "press the button below them; to change a record, fill in its id as well. Numbers are of the last page alone. This "
    "page is open:\n"
)


@dataclass(frozen=True)
class Session:
    """A browser in an episode; immutable.

    Args:
        page: The page that is open.
        filled: Entries of its fields, by number.
        history: The addresses of the pages before it.
    """

    page: Page = Page()
    filled: Mapping[int, Any] = field(default_factory=dict)
    history: tuple[str, ...] = ()

    def entry(self, number: int) -> Any:
        """Return what a field holds."""
        return self.filled.get(number, self.page.element(number, Field).initial)

    def text(self, message: str = "", problems: Mapping[int, str] | None = None) -> str:
        """Return the page, below a message."""
        page = self.page.text(self.filled, problems or {})
        return f"{message}\n{page}" if message else page


@dataclass
class WebState(WorldState):
    """An episode in a world that is seen as pages."""

    shared = (*WorldState.shared, "session")

    session: Session = field(default_factory=Session)

    @property
    def site(self) -> Site:
        """The pages of the episode's world."""
        assert self.story is not None  # a page is open within an episode
        return site_of(self.story.world)


def begin(state: WebState) -> str:
    """Open the first page of an episode, and return its text."""
    state.session = Session(load(state.site, state, "/", 1))
    return state.session.text()


def _visit(state: WebState, address: str, message: str = "", history: tuple[str, ...] | None = None) -> str:
    """Load a page and return its text; :class:`ToolError`: there is none, or its service does not answer."""
    before = state.session
    page = load(state.site, state, address, before.page.end)
    if history is None:
        history = before.history if page.address == before.page.address else (*before.history, before.page.address)
    state.session = Session(page, {}, history)
    text = state.session.text(message)
    if not page.loaded:
        raise ToolError(text)
    return text


def _open(state: WebState, arguments: dict[str, Any]) -> str:
    target = arguments["to"]
    _check_running(state)
    if isinstance(target, str) and not _NUMBER.fullmatch(target):
        return _visit(state, target)
    return _visit(state, state.session.page.element(_number(target), Link).address)


def _fill(state: WebState, arguments: dict[str, Any]) -> str:
    _check_running(state)
    session, number, value = state.session, _number(arguments["field"]), arguments["value"]
    session.page.element(number, Field)
    if len(text_of_value(value)) > MAX_ENTRY:
        raise ToolError(f"a field takes at most {MAX_ENTRY:,} characters")
    state.session = Session(session.page, {**session.filled, number: value}, session.history)
    return session.page.field_text(number, state.session.filled)


def _press(state: WebState, arguments: dict[str, Any]) -> str:
    _check_running(state)
    site, page = state.site, state.session.page
    button = page.element(_number(arguments["button"]), Button)
    if button.tool == SIGN_IN:
        site.tools[SIGN_IN].function(episode_state=state, **dict(button.fixed))
        message = "You are signed in again."
        return state.session.text(message) if page.loaded else _visit(state, page.address, message)
    place, tool = site.places[button.tool], site.tools[button.tool]
    numbers: dict[Path, int] = {one.path: number for number, one in page.sent_by(button)}
    entries = {path: state.session.entry(number) for path, number in numbers.items()}
    values, problems = arguments_of(tool.parameters, entries)
    if problems:
        marks = {numbers[path]: problem for path, problem in problems.items()}
        raise ToolError(state.session.text("Not done: see the errors below.", marks))
    kind = place.kind
    if kind is not None and place.part == "find":
        return _visit(state, kind.results(entries))
    try:
        result = tool.function(episode_state=state, **values)
    except ToolError as error:
        problem = error.problem if isinstance(error, RefusedError) else str(error)
        if kind is not None:
            state.session = replace(state.session, page=with_sign_in(site, state, page, kind))
        raise ToolError(state.session.text(f"{problem[0].upper()}{problem[1:]}.")) from None
    try:
        return _visit(state, "/" if kind is None else kind.record(result[ID]), f"Done: {button.label}.")
    except ToolError as error:  # what was to be done is done; its page can be opened later
        return str(error)


def _back(state: WebState, arguments: dict[str, Any]) -> str:
    _check_running(state)
    *before, last = state.session.history or ("",)
    if not last:
        raise ToolError("there is no page before this one")
    return _visit(state, last, history=tuple(before))


def _number(value: Any) -> int:
    """Return a number of a page, however it is written; :class:`ToolError`: it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value)):
        return int(match[1])
    raise ToolError(f"a link, field or button is named by its number, not {str(value)[:40]!r}")


def _check_running(state: WebState) -> None:
    if state.final is not None:
        raise ToolError("the task is finished")


def _page_tool(function: Any, name: str, description: str, **arguments: tuple[str, Mapping[str, Any], bool]) -> Any:
    return make_tool(function, name, description, arguments).replace(max_chars=_MAX_CHARS)


_WHOLE: Mapping[str, Any] = {"type": "integer"}

#: The same in all worlds.
TOOLS: tuple[Tool[..., Any], ...] = (
    _page_tool(
        _open,
        OPEN,
        "Open a link of the page by its number, or a page by its address.",
        to=("number or address", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, True),
    ),
    _page_tool(
        _fill,
        FILL,
        "Fill a field of the page.",
        field=("number", _WHOLE, True),
        value=("what the field takes", {}, True),
    ),
    _page_tool(_press, PRESS, "Press a button of the page, with the fields above it.", button=("number", _WHOLE, True)),
    _page_tool(_back, BACK, "Open the page before this one."),
    finish_tool("pages"),
)
