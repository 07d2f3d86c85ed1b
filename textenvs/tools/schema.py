"""Typed functions as tools: the JSON schema for the model, and validation of the arguments that the model wrote.

pydantic makes both from the same type hints, so the model sees the schema that is checked.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NotRequired,
    ParamSpec,
    Protocol,
    Required,
    TypeVar,
    get_type_hints,
    overload,
)

from pydantic import ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ..env import EpisodeState
from ..options import Gain, checked
from .jsontext import JsonProblem, read_object, write_value

P = ParamSpec("P")
R = TypeVar("R")

#: The lower bound of limits on results: the mark of omitted text needs room.
MIN_CHARS = 64
MaxChars = Annotated[int, Field(ge=MIN_CHARS)]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolError(Exception):
    """Raised by a tool to refuse a call: the message goes to the model, which may try something else."""


class ArgumentError(Exception):
    """Arguments that do not fit a tool; the message tells the model which ones, and what is expected."""

    def __init__(self, kind: Literal["bad_json", "bad_arguments"], message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


class Closable(Protocol):
    """A resource that tools hold open: a connection, a process. A later call may open it again."""

    async def aclose(self) -> None: ...


class Tool(Generic[P, R]):
    """A function that a policy may call. Make one with :func:`tool`; it can still be called as a function.

    Attributes:
        parameters: The JSON schema of its arguments, an object; where it was given, the function checks them itself.
        timeout_s: How long a call may take, in seconds; ``None`` for no limit.
        max_chars: Longer results are shortened to this many characters, with a mark that says so.
        blocking: Whether the function waits or computes for long, so that it runs in a thread of its own.
        state_parameter: The parameter that is given the episode's state, if any, and ``state_type`` its type.
        owner: What the tool needs open, closed with its environment, if anything.
    """

    @checked
    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout_s: Gain | None = None,
        max_chars: MaxChars = 4000,
        blocking: bool = False,
        owner: Closable | None = None,
    ) -> None:
        self._options = {option: value for option, value in locals().items() if option not in ("self", "function")}
        if not callable(function):
            raise TypeError(f"a tool is made of a function, not of {function!r}")
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        where = f"tool {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{where}: a tool's name is 1 to 64 letters, digits, '_' and '-'; give one with name=")
        self.is_async = inspect.iscoroutinefunction(_routine(function))
        if blocking and self.is_async:
            raise ValueError(f"{where}: blocking is for plain functions; an async one must not block at all")
        self.owner = owner
        self.timeout_s = timeout_s
        self.max_chars = max_chars
        # A plain function can only be left behind after its time if it does not run in the caller's thread.
        self.blocking = blocking or (timeout_s is not None and not self.is_async)
        summary, described = _docstring(function)
        self.description = description or summary
        if not self.description:
            raise ValueError(f"{where} needs a docstring or description=: it is all the model knows about the tool")
        self.state_parameter: str | None = None
        self.state_type: type | None = None
        self._adapter: TypeAdapter[dict[str, Any]] | None = None
        if parameters is None:
            fields, self.state_parameter, self.state_type = _fields(where, function, described)
            parameters, self._adapter = _schema(where, fields)
        else:
            hints = get_type_hints(_routine(function))
            self.state_parameter, self.state_type = next(
                ((parameter, hint) for parameter, hint in hints.items() if parameter != "return" and _is_state(hint)),
                (None, None),
            )
        self.parameters = parameters
        if self.state_parameter and timeout_s is not None and not self.is_async:
            raise ValueError(
                f"{where} is given the state and has a timeout_s: a thread that is left behind could still change the "
                "episode. Make the function async, or leave out one of the two"
            )

    @property
    def schema(self) -> dict[str, Any]:
        parameters = copy.deepcopy(dict(self.parameters))
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    @property
    def needs_loop(self) -> bool:
        return self.is_async or self.blocking

    def replace(self, **options: Any) -> Tool[P, R]:
        return Tool(self.function, **{**self._options, **options})

    def arguments_of(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments of a call's JSON (empty text for none), checked against the type hints."""
        try:
            arguments = read_object(text)
            canonical = write_value(arguments)
        except JsonProblem as problem:
            raise ArgumentError("bad_json", f"The arguments of {self.name} cannot be read: {problem}.") from None
        if self._adapter is None:  # the schema came from elsewhere, and so does the check
            return arguments
        try:
            return self._adapter.validate_json(canonical, strict=True)
        except ValidationError as error:
            known_names = list(self.parameters.get("properties", {}))
            problems = dict.fromkeys(_in_words(detail, known_names) for detail in error.errors(include_url=False))
            raise ArgumentError(
                "bad_arguments", f"The arguments of {self.name} do not fit: {'; '.join(problems)}."
            ) from None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name}({', '.join(self.parameters.get('properties', {}))}))"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tool[P, R]:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle a decorated function by its name, as functions are, and any other tool by its parts."""
        path = str(getattr(self, "__qualname__", ""))
        target: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in path.split("."):
            target = getattr(target, part, None)
        if target is self:
            return path
        decorated = isinstance(target, Tool) and target.function is self.function
        return _rebuilt, (target if decorated else self.function, self._options)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    max_chars: int = 4000,
    blocking: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Make a typed function a :class:`Tool`: ``@tool``, or ``@tool(name=..., timeout_s=...)``.

    Its arguments are checked by their type hints (nested types, defaults, ``Literal``, ``Optional``, lists, mappings,
    pydantic models), as strictly as JSON allows: ``"5"`` is no number. The docstring is the description, with one line
    for each argument (Google style). What it returns goes to the model: text as it is, anything else as JSON.

    State of an episode belongs in the environment's state: a parameter whose type is an ``EpisodeState`` is no part of
    the schema and is given ``env.state``.

    Args:
        function: Plain or ``async``. It may raise :class:`ToolError` to refuse.
        **options: ``name`` (the function's by default), ``description`` (the docstring's), ``timeout_s`` (seconds a
            call may take; a plain function then runs in a thread of its own, which is left behind when its time is
            up), ``max_chars`` (longer results are shortened; 4000) and ``blocking`` (run it in a thread of its own).
    """
    return functools.partial(Tool, **options) if function is None else Tool(function, **options)


def nearest(word: str, candidates: list[str]) -> str:
    """``" (did you mean 'x'?)"`` if one of ``candidates`` is similar to ``word``, else nothing."""
    close = difflib.get_close_matches(word[:100], candidates, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _routine(function: Any) -> Any:
    """Return the object with the hints and the docstring: the function, or the ``__call__`` of an object's class."""
    return function if inspect.isroutine(function) else type(function).__call__


def _fields(where: str, function: Any, described: Mapping[str, str]) -> tuple[dict[str, Any], str | None, type | None]:
    """Return the arguments of ``function`` as fields of a typed dictionary, and the parameter that takes the state."""
    signature = inspect.signature(function)
    hints = get_type_hints(_routine(function), include_extras=True)
    fields: dict[str, Any] = {}
    injected: tuple[str, type] | None = None
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where}: {parameter} cannot be called by name; give each argument a name and a type")
        if parameter.name not in hints:
            raise TypeError(f"{where}: the argument {parameter.name!r} has no type hint")
        hint = hints[parameter.name]
        if not _is_state(hint):
            fields[parameter.name] = _field(hint, parameter, described.get(parameter.name))
        elif injected is None:
            injected = parameter.name, hint
        else:
            raise TypeError(f"{where}: {injected[0]!r} is the state already; {parameter.name!r} cannot be it too")
    if unknown := set(described) - set(signature.parameters):
        raise ValueError(f"{where}: the docstring describes {sorted(unknown)}, which are not arguments")
    return fields, *(injected or (None, None))


def _is_state(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, EpisodeState)


def _schema(where: str, fields: dict[str, Any]) -> tuple[dict[str, Any], TypeAdapter[dict[str, Any]]]:
    make_type: Any = TypedDict  # a type that is made while the program runs, which a type checker cannot follow
    shape = make_type("arguments", fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)
        schema = _tidy(adapter.json_schema())
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise TypeError(f"{where}: pydantic knows no JSON schema for its type hints: {error}") from None
    schema.setdefault("properties", {})
    return schema, adapter


def _field(hint: Any, parameter: inspect.Parameter, description: str | None) -> Any:
    notes: dict[str, Any] = {}
    required = parameter.default is parameter.empty
    if not required:
        with contextlib.suppress(JsonProblem):  # a default that JSON cannot say is only not shown
            write_value(parameter.default)
            notes["json_schema_extra"] = {"default": parameter.default}
    if description:
        notes["description"] = description
    kind = Annotated[hint, Field(**notes)] if notes else hint  # type: ignore[valid-type]
    return Required[kind] if required else NotRequired[kind]  # type: ignore[valid-type]


def _docstring(function: Any) -> tuple[str, dict[str, str]]:
    """Return the function's description, and each argument's, on one line."""
    from docstring_parser import DocstringStyle, parse

    parsed = parse(inspect.getdoc(_routine(function)) or "", DocstringStyle.GOOGLE)
    words = [part for part in (parsed.short_description, parsed.long_description) if part]
    arguments = {parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in parsed.params}
    return "\n\n".join(words).strip(), arguments


# The order in which a reader wants to see a schema; the rest stays as it is.
_FIRST = {"type": 0, "description": 1, "properties": 2}


def _tidy(schema: Any) -> Any:
    """Return the schema in reading order, and without the titles that pydantic adds (but with the properties)."""
    if isinstance(schema, list):
        return [_tidy(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    if {"type": "number"} in schema.get("anyOf", ()):  # then integers need no mention of their own
        kinds = [option for option in schema["anyOf"] if option != {"type": "integer"}]
        merged = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **merged}
    tidied: dict[str, Any] = {}
    for key, value in sorted(schema.items(), key=lambda item: _FIRST.get(item[0], len(_FIRST))):
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs", "patternProperties"):
            tidied[key] = {name: _tidy(subschema) for name, subschema in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            tidied[key] = value  # data, not schemas
        else:
            tidied[key] = _tidy(value)
    return tidied


def _in_words(error: Any, known_names: list[str]) -> str:
    kind, loc = error["type"], error["loc"]
    if kind == "extra_forbidden" and len(loc) == 1:
        has = f"the arguments are {', '.join(known_names)}" if known_names else "there are none"
        return f"there is no argument {str(loc[0])[:100]!r}{nearest(str(loc[0]), known_names)}, {has}"
    if not loc:
        return str(error["msg"])
    path = str(loc[0]) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc[1:])
    if kind == "missing":
        return f"{path} is missing"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{path}: {message}, not {_short(error['input'])}"


def _short(value: Any) -> str:
    try:
        text = write_value(value)
    except JsonProblem:
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def _rebuilt(function: Any, options: dict[str, Any]) -> Tool[..., Any]:
    return Tool(function.function if isinstance(function, Tool) else function, **options)
