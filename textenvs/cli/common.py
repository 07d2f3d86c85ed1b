"""Shared parts of commands: make an environment from a command line, and show errors as messages."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import docstring_parser
import gymnasium

from ..env import TextEnv
from ..options import import_named
from ..registry import EnvironmentSpec, constructor, describe, list_environments, make, parameters
from ..sandbox import SandboxUnavailable
from ..tool_env import ToolEnv

#: Folders of files that are not a person's own environment: this package, other packages, Python itself.
_NOT_THEIRS = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
    "<",
)
#: An option that may name a function of the user's, ``module:function``.
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: Python's spellings of JSON's literals, which docstrings use.
_LITERALS = {"None": None, "True": True, "False": False}


class CommandError(Exception):
    """A mistake of the user (status 2) or of the outside world (1), shown without a traceback."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def expected_errors(
    *cannot: type[Exception], mistakes: tuple[type[Exception], ...] = (), where: str = ""
) -> Iterator[None]:
    """Within the block these exceptions are shown without a traceback: status 1, or 2 for ``mistakes``."""
    try:
        yield
    except (*cannot, *mistakes) as error:
        raise CommandError(f"{where}{error}", 1 if isinstance(error, cannot) else 2) from error


def import_from_here() -> None:
    """Let ``module:name`` name a module in the current folder, as ``python -m`` does but a console script does not."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)


def parse_options(words: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words as keyword arguments; a value is JSON, or ``None``, ``True``, ``False``, or else text.

    ``user.model=NAME`` is an entry of the mapping ``user``.
    """
    options: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        *outer, last = name.split(".")
        if not all(part.isidentifier() for part in (*outer, last)):
            raise CommandError(f"{word!r}: {name!r} is no option's name; options are key=value", 2)
        place = options
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise CommandError(f"option {name!r} is an entry of {part!r}, which is given as a whole", 2)
        if last in place:
            raise CommandError(f"option {name!r} is given twice", 2)
        place[last] = _value(value)
    return options


def show_value(value: Any) -> str:
    """Return a value as it can be typed after ``key=``."""
    if isinstance(value, str):
        plain = value and _value(value) == value and value.isprintable() and not set(value) & set(" '\"\\$`;&|<>()*?")
        return value if plain else repr(value)
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return repr(value)


def full_id(env_id: str) -> str:
    """Return the id with its namespace: ``gsm8k`` is ``textenv/gsm8k``, unless something is registered as ``gsm8k``."""
    full = f"textenv/{env_id}"
    return full if env_id not in gymnasium.registry and full in list_environments(with_arguments=True) else env_id


def class_of(env_id: str) -> Callable[..., Any]:
    """Return the creator of the environment ``env_id``: mostly its class."""
    module = env_id.rpartition(":")[0]
    if module:
        import_from_here()
        with expected_errors(mistakes=(ValueError,), where=f"{env_id!r}: "):
            import_named(module)
    with expected_errors(mistakes=(gymnasium.error.Error,)), expected_errors(ImportError, where=f"{env_id}: "):
        return constructor(env_id)


def registered(env_id: str) -> EnvironmentSpec | None:
    """Return the registry's entry; ``None`` for an environment that does not ship with textenvs."""
    return describe(env_id) if env_id in list_environments(with_arguments=True) else None


class Option(NamedTuple):
    """An option of a constructor; its default is ``inspect.Parameter.empty`` where it must be given."""

    default: Any
    doc: str


def options_of(maker: Callable[..., Any]) -> tuple[dict[str, Option], bool]:
    """Return a constructor's options, documented by its class or bases, and whether these are all."""
    descriptions: dict[str, str] = {}
    for owner in inspect.getmro(maker) if inspect.isclass(maker) else (maker,):
        for param in docstring_parser.parse(inspect.cleandoc(owner.__doc__ or "")).params:
            descriptions.setdefault(param.arg_name, param.description or "")
    arguments, complete = parameters(maker)
    return {
        name: Option(parameter.default, descriptions.get(name, "")) for name, parameter in arguments.items()
    }, complete


def open_environment(env_id: str, options: Mapping[str, Any]) -> TextEnv[Any]:
    """Make an environment with options from the command line; what is refused is a ``CommandError``."""
    class_of(env_id)
    if any(isinstance(value, str) and _FUNCTION.fullmatch(value) for value in options.values()):
        import_from_here()
    try:
        return make(env_id, **options)
    except Exception as raised:
        # Gymnasium raises a TypeError anew, with words of its own.
        again = isinstance(raised, TypeError) and isinstance(raised.__context__, TypeError)
        error = raised.__context__ if again and raised.__context__ is not None else raised
        if isinstance(error, SandboxUnavailable):
            raise CommandError(f"{env_id}: {error}") from raised
        place, expected_types = _outside(error), (ValueError, TypeError, ImportError, OSError, gymnasium.error.Error)
        if not (place or isinstance(error, expected_types)):
            raise
        words = str(error) if isinstance(error, expected_types) else f"{type(error).__name__}: {error}"
        settings = "".join(f" {name}={show_value(value)}" for name, value in options.items())
        status = 1 if isinstance(error, (ImportError, OSError)) else 2
        raise CommandError(f"{env_id}{settings}: {words}{place}{_hint(words)}", status) from raised


def _outside(error: BaseException) -> str:
    """Return the file and line of a person's own module that raised, or called what did; empty within textenvs."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    return f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


def _hint(words: str) -> str:
    """Suggest names for an argument that an environment's base class does not take."""
    match = re.search(r"unexpected keyword argument '(\w+)'", words)
    names = {name for base in (TextEnv, ToolEnv) for name in inspect.signature(base.__init__).parameters}
    near = difflib.get_close_matches(match[1], names - {"self"}) if match else []
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _value(text: str) -> Any:
    if text in _LITERALS:
        return _LITERALS[text]
    try:
        return json.loads(text, parse_constant=lambda name: name)  # NaN and Infinity are text
    except ValueError:
        return text
