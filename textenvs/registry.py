"""``envs_registry.yaml`` to ``gymnasium.register``: the one list of the environments that ship here.

Importing ``textenvs`` registers every id with string entry points, so that no environment is imported before it is
made. The ids are exactly those of the file, ``textenv/<name>``; an environment's version is a field of its entry.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import gymnasium
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from .env import TextEnv
from .options import PositiveInt
from .text import nearest

FILE_NAME = "envs_registry.yaml"
_PACKAGE = Path(__file__).resolve().parent
#: Where the file may be: inside the installed package, or at the root of a checkout.
PLACES: tuple[Path, ...] = (_PACKAGE / FILE_NAME, _PACKAGE.parent / FILE_NAME)

_ID = re.compile(r"textenv/[a-z0-9]+(-[a-z0-9]+)*")
_VERSIONED = re.compile(r".*-v\d+")
#: Arguments that ``gymnasium.make`` keeps to itself, and one that any class may be given.
_GYMNASIUM_OPTIONS = ("max_episode_steps", "disable_env_checker", "render_mode")
_FIELDS = {"version", "entry_point", "kwargs", "description", "nondeterministic", "extras", "requires"}


class RegistryError(ValueError):
    """The registry file is missing or malformed; the message names the file and the entry."""


@dataclass(frozen=True, config=ConfigDict(strict=True))
class EnvironmentSpec:
    """One entry of the registry.

    Args:
        id: ``textenv/<name>``.
        version: Raised whenever the same actions may give other rewards or observations than before.
        entry_point: ``module:Class`` of the :class:`~textenvs.env.TextEnv`.
        description: One line for people.
        kwargs: Arguments of the constructor, as in JSON; arguments to ``make`` win over them.
        nondeterministic: Whether equal seeds and actions may give different episodes.
        extras: The extras of textenvs that it needs as it is registered: ``pip install 'textenvs[<extra>]'``.
        requires: Arguments that ``make`` must be given.
    """

    id: str
    version: PositiveInt
    entry_point: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]  # module:Class
    description: Annotated[str, Field(pattern=r"\S")]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    nondeterministic: bool = False
    extras: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def vector_entry_point(self) -> str:
        """Makes a :class:`~textenvs.vector.TextVectorEnv` of this environment (see ``__getattr__`` there)."""
        return f"textenvs.vector:{self.id}"


def find_file(places: Sequence[Path] = PLACES) -> Path:
    """The first of ``places`` that is there.

    Raises:
        RegistryError: None is; the message lists them.
    """
    for place in places:
        if place.is_file():
            return place
    looked = " and ".join(str(place) for place in places)
    raise RegistryError(f"{FILE_NAME} was not found; looked at {looked}. Reinstall textenvs, or restore the file.")


def load(path: Path) -> dict[str, EnvironmentSpec]:
    """Read and check a registry file.

    Raises:
        RegistryError: It is not YAML, or an entry is malformed.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        raise RegistryError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, dict) or set(content) != {"environments"}:
        raise RegistryError(f"{path}: expected a mapping with the one key 'environments'")
    if not isinstance(content["environments"], dict):
        raise RegistryError(f"{path}: 'environments' must map ids to entries")
    return {env_id: _spec(path, env_id, entry) for env_id, entry in content["environments"].items()}


def register_all(specs: Mapping[str, EnvironmentSpec] | None = None) -> None:
    """Register environments (by default, those of the file) with Gymnasium; what is registered already stays.

    Without ``max_episode_steps``: limits are kept inside the environment, where the last action is judged first.
    """
    for spec in (_shipped() if specs is None else specs).values():
        known = gymnasium.registry.get(spec.id)
        if known is not None and (known.entry_point, known.kwargs) == (spec.entry_point, spec.kwargs):
            continue
        gymnasium.register(
            id=spec.id,
            entry_point=spec.entry_point,
            vector_entry_point=spec.vector_entry_point,
            kwargs=dict(spec.kwargs),
            nondeterministic=spec.nondeterministic,
        )


def list_environments(*, with_arguments: bool = False) -> tuple[str, ...]:
    """The ids of the environments that ship with textenvs and can be made without arguments, in the file's order.

    Args:
        with_arguments: Also those that must be given some (``describe(env_id).requires``).
    """
    return tuple(env_id for env_id, spec in _shipped().items() if with_arguments or not spec.requires)


def describe(env_id: str) -> EnvironmentSpec:
    """The registry's entry for ``env_id``.

    Raises:
        gymnasium.error.NameNotFound: No such environment ships; the message names the nearest ids.
    """
    if env_id not in _shipped():
        raise unknown_id(env_id, _shipped())
    return _shipped()[env_id]


def make(env_id: str, **kwargs: Any) -> TextEnv[Any]:
    """The environment itself, without Gymnasium's wrappers: for collectors, which need ``astep`` and ``fork``.

    Args:
        env_id: An id registered with Gymnasium, ours or your own; ``module:id`` imports the module first, and
            ``module:Class`` is an environment's class in it.
        **kwargs: Arguments of the environment's constructor.

    Raises:
        gymnasium.error.NameNotFound: Nothing has this id; the message names the nearest ones.
        ImportError: A module that the id or its entry point names cannot be imported.
        TypeError: The constructor does not take an argument (the message names the nearest one that it takes), or it
            makes something else than a :class:`~textenvs.env.TextEnv`.
    """
    maker = constructor(env_id)
    names, complete = parameters(maker)
    for name in kwargs if complete else ():
        if name not in names and name not in _GYMNASIUM_OPTIONS:
            hint = nearest(name, names, f"it has {', '.join(names) or 'none'}")
            raise TypeError(f"{env_id} has no option {name!r}; {hint}")
    if env_id.rpartition(":")[2] not in gymnasium.registry:
        return maker(**kwargs)  # type: ignore[no-any-return]
    env = gymnasium.make(env_id, disable_env_checker=True, **kwargs).unwrapped
    if not isinstance(env, TextEnv):
        raise TypeError(f"{env_id!r} is a {type(env).__name__}, not a TextEnv; use gymnasium.make for it")
    return env


def constructor(env_id: str) -> Callable[..., Any]:
    """What makes the environment of this id, its class mostly; see :func:`make` for ids.

    Raises:
        gymnasium.error.NameNotFound: Nothing has this id; the message names the nearest ones.
        ImportError: The module, or that of the entry point, cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    imported = importlib.import_module(module) if module else None
    if name not in gymnasium.registry:
        found = getattr(imported, name, None)
        if inspect.isclass(found) and issubclass(found, TextEnv):
            return found
        own = [each for each, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("gymnasium.")]
        raise unknown_id(name, own)
    entry_point = gymnasium.registry[name].entry_point
    if not isinstance(entry_point, str):
        assert entry_point is not None  # Gymnasium's specs of vector environments alone have none
        return entry_point
    place, _, attribute = entry_point.partition(":")
    return getattr(importlib.import_module(place), attribute)  # type: ignore[no-any-return]


@functools.cache
def parameters(maker: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], bool]:
    """The named arguments that a constructor takes, and whether those are all of them.

    Where a class passes ``**options`` on, those of the class above it belong to it, too, but for what has no default
    and may be positional.
    """
    found: dict[str, inspect.Parameter] = {}
    makers: tuple[Any, ...] = inspect.getmro(maker) if inspect.isclass(maker) else (maker,)
    for number, each in enumerate(makers):
        if number and "__init__" not in vars(each):
            continue
        passes_on = False
        for name, parameter in inspect.signature(each).parameters.items():
            if parameter.kind == parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.kind == parameter.KEYWORD_ONLY or (
                parameter.kind == parameter.POSITIONAL_OR_KEYWORD
                and not (number and parameter.default is parameter.empty)
            ):
                found.setdefault(name, parameter)
        if not passes_on:
            return MappingProxyType(found), True
    return MappingProxyType(found), False


@functools.cache
def _shipped() -> Mapping[str, EnvironmentSpec]:
    return MappingProxyType(load(find_file()))


def unknown_id(env_id: str, known: Iterable[str]) -> gymnasium.error.NameNotFound:
    """The error for an id that is not among ``known``; its message names the nearest ones."""
    known = list(known)
    near = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
    near += [other for other in known if other.split("/")[-1] == env_id and other not in near]
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are: {', '.join(_shipped())}."
    return gymnasium.error.NameNotFound(f"no environment has the id {env_id!r}. {hint}")


def _spec(path: Path, env_id: Any, entry: Any) -> EnvironmentSpec:
    where = f"{path}: {env_id!r}"
    if not isinstance(env_id, str) or not _ID.fullmatch(env_id) or _VERSIONED.fullmatch(env_id):
        raise RegistryError(f"{where}: an id is textenv/<name>, in lower case with hyphens, without a version")
    if not isinstance(entry, dict):
        raise RegistryError(f"{where}: expected a mapping with {sorted(_FIELDS)}")
    if unknown := set(entry) - _FIELDS:
        raise RegistryError(f"{where}: unknown fields {sorted(map(str, unknown))}; known are {sorted(_FIELDS)}")
    if missing := {"version", "entry_point", "description"} - set(entry):
        raise RegistryError(f"{where}: missing fields {sorted(missing)}")
    try:
        text = json.dumps({"id": env_id, **entry}, allow_nan=False)
    except (TypeError, ValueError) as error:  # Gymnasium's spec.to_json() needs it
        raise RegistryError(f"{where}: all of it must be plain JSON values: {error}") from error
    try:
        return TypeAdapter(EnvironmentSpec).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RegistryError(f"{where}: {place} {first['msg'].removeprefix('Input ')}, not {first['input']!r}") from None


class _Loader(yaml.SafeLoader):
    """YAML lets a repeated key replace the earlier one silently; in a registry that loses an environment."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if repeated := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{repeated[0]!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)
