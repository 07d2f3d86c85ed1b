"""Options that several modules take: callables (as such, or by name where a spec must be plain JSON) and numbers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import gymnasium
import numpy as np

from .env import TextEnv
from .messages import Message, Messages

GivenT = TypeVar("GivenT")
MadeT = TypeVar("MadeT")

#: Replies to a conversation, at once or when awaited. A plain function that waits (for a service, a model) holds up
#: every other episode of its event loop: make it ``async``.
Policy: TypeAlias = Callable[[Messages], "str | Message | Awaitable[str | Message]"]

#: Grades a whole conversation with a number, at once or when awaited.
Judge: TypeAlias = Callable[[Messages], "float | Awaitable[float]"]


def resolve(what: str, value: Any) -> Callable[..., Any]:
    """``value`` itself if it can be called, or what it names.

    Args:
        what: Whose value this is, for errors: ``"policy"``.
        value: A callable, or ``"module:name"``.

    Raises:
        ValueError: It is neither, or there is no such module or name.
    """
    if callable(value):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a callable or 'module:name', not {value!r}")
    module_name, _, name = value.partition(":")
    if not module_name or not name:
        raise ValueError(f"{what} must be a callable or 'module:name', not {value!r}")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise  # the module is there; what it imports is not
        raise ValueError(f"{what}={value!r}: there is no module {missing!r}; is its folder on sys.path?") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{what}={value!r}: module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{what}={value!r} is a {type(found).__name__}, which cannot be called")
    return found


def check_env(what: str, env: Any) -> None:
    """Raise ``TypeError`` unless ``env`` is a text environment itself, which can be forked."""
    if not isinstance(env, TextEnv):
        hint = "its unwrapped" if isinstance(env, gymnasium.Env) else "textenvs.make(...)"
        raise TypeError(f"{what} forks a TextEnv, and this is a {type(env).__name__}; give {hint}")


def make_of(option: str, made: Callable[[GivenT], MadeT], given: GivenT) -> MadeT:
    """``made(given)``; an error of it names the option that ``given`` was the value of.

    Raises:
        ValueError: ``made`` raised it, or ``TypeError``.
    """
    try:
        return made(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}: {error}") from error


def check_count(name: str, value: Any, least: int) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}")


def check_number(name: str, value: Any, least: float = -math.inf) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        at_least = "" if least == -math.inf else f" of at least {least}"
        raise ValueError(f"{name} must be a finite number{at_least}, not {value!r}")


def check_gain(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number above 0."""
    check_number(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be above 0, not {value}")


def check_charge(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number of at most 0: what a reward takes off."""
    check_number(name, value)
    if value > 0:
        raise ValueError(f"{name} is a cost and must be at most 0, not {value}")


def check_timeout(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is ``None`` or a number of seconds above 0."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise ValueError(f"{name} must be a number of seconds above 0 or None, not {value!r}")
