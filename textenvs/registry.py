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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import gymnasium
import yaml
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from .compaction import Compact
from .env import TextEnv
from .options import PositiveInt, import_named
from .text import nearest

FILE_NAME = "envs_registry.yaml"
_PACKAGE = Path(__file__).resolve().parent
#: Where the file may be: inside the installed package, or at the root of a checkout.
PLACES: tuple[Path, ...] = (_PACKAGE / FILE_NAME, _PACKAGE.parent / FILE_NAME)

#: Arguments that ``gymnasium.make`` keeps to itself, and one that any class may be given.
_GYMNASIUM_OPTIONS = ("max_episode_steps", "disable_env_checker", "render_mode")


class RegistryError(ValueError):
    """The registry file is missing or malformed; the message names the file and the entry."""


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class EnvironmentSpec:
    """One entry of the registry."""

    id: Annotated[str, Field(pattern=r"^textenv/[a-z0-9]+(-[a-z0-9]+)*$")]
    version: PositiveInt  # raised whenever the same actions may give other rewards or observations than before
    entry_point: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]  # module:Class
    description: Annotated[str, Field(pattern=r"\S")]
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the constructor; arguments to ``make`` win over them
    nondeterministic: bool = False  # whether equal seeds and actions may give different episodes
    extras: tuple[str, ...] = ()  # those of textenvs that it needs as it is registered
    requires: tuple[str, ...] = ()  # arguments that ``make`` must be given


def load(path: Path) -> dict[str, EnvironmentSpec]:
    read, specs = TypeAdapter(EnvironmentSpec), {}
    env_id = ""
    try:
        for env_id, entry in yaml.safe_load(path.read_text(encoding="utf-8"))["environments"].items():
            # As JSON, which Gymnasium's spec.to_json() needs.
            specs[env_id] = read.validate_json(json.dumps({"id": env_id, **entry}, allow_nan=False))
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise RegistryError(f"{path}: {env_id}: {error}") from error
    return specs


def register_all(specs: Mapping[str, EnvironmentSpec] | None = None) -> None:
    """Register environments (by default, those of the file) with Gymnasium; what is registered already stays.

    Without ``max_episode_steps``: limits are kept inside the environment, where the last action is judged first.
    """
    for spec in (_shipped() if specs is None else specs).values():
        current = gymnasium.registry.get(spec.id)
        if current is not None and (current.entry_point, current.kwargs) == (spec.entry_point, spec.kwargs):
            continue
        gymnasium.register(
            id=spec.id,
            entry_point=spec.entry_point,
            vector_entry_point=f"textenvs.vector:{spec.id}",  # see ``__getattr__`` there
            kwargs=dict(spec.kwargs),
            nondeterministic=spec.nondeterministic,
        )


def list_environments(*, with_arguments: bool = False) -> tuple[str, ...]:
    """Return the ids of the environments of textenvs, in the file's order; by default those without arguments."""
    return tuple(env_id for env_id, spec in _shipped().items() if with_arguments or not spec.requires)


def describe(env_id: str) -> EnvironmentSpec:
    """Return the registry's entry for ``env_id``; ``NameNotFound`` names the nearest ids."""
    if env_id not in _shipped():
        raise unknown_id(env_id, _shipped())
    return _shipped()[env_id]


def make(env_id: str, *, compact: Mapping[str, Any] | None = None, **kwargs: Any) -> TextEnv[Any]:
    """Make the environment itself, without Gymnasium's wrappers: for collectors, which need ``astep`` and ``fork``.

    Args:
        env_id: An id registered with Gymnasium, ours or your own; ``module:id`` imports the module first, and
            ``module:Class`` is an environment's class in it.
        compact: Options of :class:`textenvs.compaction.Compact`, such as ``{"tokens": 2000}``: the policy summarises
            long conversations. ``None``: it does not.
        **kwargs: Arguments of the environment's constructor.

    Raises:
        gymnasium.error.NameNotFound: Nothing has this id; the message names the nearest ones.
        TypeError: The constructor does not take an argument, or it makes something else than a ``TextEnv``.
        ValueError: A value of an option is not allowed.
    """
    if compact is not None:
        if not isinstance(compact, Mapping):
            raise ValueError(f"compact is a mapping of options, such as {{'tokens': 2000}}, not {compact!r}")
        options = sorted(set(parameters(Compact)[0]) - {"env"})
        if unknown := sorted(set(compact) - set(options)):
            raise TypeError(f"compact has no option {unknown[0]!r}; it has {', '.join(options)}")
        return Compact(make(env_id, **kwargs), **compact)
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
    """Return the creator of the environment of this id, mostly its class; see :func:`make` for ids and errors."""
    module, _, name = env_id.rpartition(":")
    imported = importlib.import_module(module) if module else None
    if name not in gymnasium.registry:
        environment_class = getattr(imported, name, None)
        if inspect.isclass(environment_class) and issubclass(environment_class, TextEnv):
            return environment_class
        own = [
            registered_id
            for registered_id, spec in gymnasium.registry.items()
            if not str(spec.entry_point).startswith("gymnasium.")
        ]
        raise unknown_id(name, own)
    entry_point = gymnasium.registry[name].entry_point
    if not isinstance(entry_point, str):
        assert entry_point is not None  # Gymnasium's specs of vector environments alone have none
        return entry_point
    return _at_entry_point(name, entry_point)


def _at_entry_point(name: str, entry_point: str) -> Callable[..., Any]:
    place, _, attribute = entry_point.partition(":")
    try:
        target: Any = import_named(place)
    except ValueError as error:
        raise gymnasium.error.Error(f"{name!r} has the entry point {entry_point!r}, and {error}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            names = [
                class_name
                for class_name, value in vars(target).items()
                if inspect.isclass(value) and not class_name.startswith("_")
            ]
            hint = nearest(part, names, f"its classes are {', '.join(names) or 'none'}")
            raise gymnasium.error.Error(f"{name!r} has the entry point {entry_point!r}, which has no {part!r}; {hint}")
        target = getattr(target, part)
    return target  # type: ignore[no-any-return]


@functools.cache
def parameters(maker: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], bool]:
    """Return a constructor's named arguments (its bases', too, where it passes ``**options`` on); are those all?"""
    accepted: dict[str, inspect.Parameter] = {}
    makers: tuple[Any, ...] = inspect.getmro(maker) if inspect.isclass(maker) else (maker,)
    for number, creator in enumerate(makers):
        if number and "__init__" not in vars(creator):
            continue
        passes_on = False
        for name, parameter in inspect.signature(creator).parameters.items():
            if parameter.kind == parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.kind == parameter.KEYWORD_ONLY or (
                parameter.kind == parameter.POSITIONAL_OR_KEYWORD
                and not (number and parameter.default is parameter.empty)
            ):
                accepted.setdefault(name, parameter)
        if not passes_on:
            return MappingProxyType(accepted), True
    return MappingProxyType(accepted), False


@functools.cache
def _shipped() -> Mapping[str, EnvironmentSpec]:
    path = next((place for place in PLACES if place.is_file()), None)
    if path is None:
        looked = " and ".join(map(str, PLACES))
        raise RegistryError(f"{FILE_NAME} was not found; looked at {looked}. Reinstall textenvs, or restore the file.")
    return MappingProxyType(load(path))


def unknown_id(env_id: str, known_ids: Iterable[str]) -> gymnasium.error.NameNotFound:
    """Return the error for an id that is not among ``known_ids``; its message names the nearest ones."""
    known_ids = list(known_ids)
    near = difflib.get_close_matches(env_id, known_ids, n=3, cutoff=0.5)
    near += [other for other in known_ids if other.split("/")[-1] == env_id and other not in near]
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are: {', '.join(_shipped())}."
    return gymnasium.error.NameNotFound(f"no environment has the id {env_id!r}. {hint}")
