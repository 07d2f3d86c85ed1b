"""Options that several modules take: callables (as such, or by name where a spec must be plain JSON) and numbers."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from .messages import Message, Messages

GivenT = TypeVar("GivenT")
MadeT = TypeVar("MadeT")
P = ParamSpec("P")

#: Replies to a conversation, at once or when awaited. A plain function that waits (for a service, a model) holds up
#: every other episode of its event loop: make it ``async``.
Policy: TypeAlias = Callable[[Messages], "str | Message | Awaitable[str | Message]"]

#: Grades a whole conversation with a number, at once or when awaited.
Judge: TypeAlias = Callable[[Messages], "float | Awaitable[float]"]


def resolve(what: str, value: Any) -> Callable[..., Any]:
    """``value`` itself if it can be called, or what it names as ``"module:name"``; errors say that it is a ``what``."""
    if callable(value):
        return value
    module_name, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not module_name or not name:
        raise ValueError(f"{what} must be a callable or 'module:name', not {value!r}")
    try:
        target: Any = import_named(module_name)
    except ValueError as error:
        raise ValueError(f"{what}={value!r}: {error}") from error
    for part in name.split("."):
        if not hasattr(target, part):
            raise ValueError(f"{what}={value!r}: module {module_name!r} has no {name!r}")
        target = getattr(target, part)
    if not callable(target):
        raise ValueError(f"{what}={value!r} is a {type(target).__name__}, which cannot be called")
    return target


def import_named(module: str) -> ModuleType:
    """Import a module that a user named; ``ValueError`` where there is none of this name."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module != missing and not module.startswith(f"{missing}."):
            raise  # the module is there; what it imports is not
        raise ValueError(f"there is no module {missing!r} here or among the installed") from error


#: Types of options that :func:`checked` checks.
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Gain = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Cost = Annotated[float, Field(le=0, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0)]


def checked(make: Callable[P, MadeT]) -> Callable[P, MadeT]:
    """Check the options of an ``__init__``, or of a dataclass, against their annotations, with pydantic and strictly.

    Parameters are checked whose annotation is ``bool``, ``int``, ``float``, ``str``, a ``Literal``, one of the types
    above or an ``Annotated`` of their kind, a ``Mapping`` of these, or one of these ``| None``. A task source or an
    object is left alone. The ``ValueError`` names the option, the value and what is allowed.
    """
    function: Any = make.__init__ if isinstance(make, type) else make  # type: ignore[misc]
    signature = inspect.signature(function)

    @functools.cache
    def model() -> type[BaseModel]:
        in_class = isinstance(make, type)  # whose hints are those of several modules, if it has bases
        hints = get_type_hints(make, include_extras=True) if in_class else inspect.get_annotations(make, eval_str=True)
        fields: dict[str, Any] = {name: (hints[name], ...) for name in signature.parameters if _plain(hints.get(name))}
        return create_model("Options", __config__=ConfigDict(strict=True), **fields)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = {name: bound.arguments[name] for name in model().model_fields}
        try:
            model().model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name, *inside = first["loc"]
            place = f"[{inside[0]!r}]" if inside and isinstance(values[str(name)], Mapping) else ""
            problem = first["msg"].removeprefix("Input ")
            raise ValueError(f"{name}{place} {problem}, not {first['input']!r}") from None
        return function(*args, **kwargs)

    if isinstance(make, type):
        make.__init__ = wrapper  # type: ignore[misc]
        return make
    return wrapper


def _plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _plain(get_args(hint)[0])
    if origin in (Union, UnionType, Mapping):
        return all(_plain(argument) for argument in get_args(hint))
    return origin is Literal or hint in (bool, int, float, str, type(None))


def make_of(option: str, make: Callable[[GivenT], MadeT], value: GivenT) -> MadeT:
    """Return ``make(value)``; its errors name the option that had this value."""
    try:
        return make(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}: {error}") from error
