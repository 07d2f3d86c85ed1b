"""Trainers by name: ``trainers.make("ppo", ["rollout.n=4"])``. Nothing heavy is imported before one is made.

Other packages add trainers by an entry point of the group ``textenvs.trainers``, whose name is the trainer's and whose
object is a class (or function) that :func:`make` can call; see :class:`Trainer` and docs/trainers-registry.md.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, Self, cast, runtime_checkable

GROUP = "textenvs.trainers"

#: Trainers of this package: location and description.
BUILT_IN = {"ppo": ("trainers.ppo_trainer:PPOTrainer", "our own loop, as `python -m trainers.ppo` runs it")}


class TrainerNotFoundError(ValueError):
    """No trainer has this name, or it cannot be used; the message lists the trainers."""


@dataclass(frozen=True)
class Result:
    """The result of training."""

    #: The last metrics. Every trainer defines the same way ``train/reward`` (the mean reward of the last
    #: batch's episodes) and ``val/reward`` (that of the last validation), if there are any.
    metrics: Mapping[str, float]
    #: A folder that transformers loads: the trained policy with its tokenizer; ``None`` if nothing was trained, and
    #: no checkpoint resumed from
    model: Path | None
    checkpoint: Path | None = None  #: a checkpoint to resume from; ``None`` if none was written
    iterations: int = 0  #: batches trained on, over all resumptions
    stopped: bool = False  #: it was interrupted before the end


@runtime_checkable
class Trainer(Protocol):
    """A trainer of :func:`make`, with its configuration checked and nothing started."""

    def fit(self) -> Result:
        """Train to the configured end, or resume an earlier run."""

    def evaluate(self) -> Mapping[str, float]:
        """Play the validation tasks with the policy: as trained, after :meth:`fit`."""

    def close(self) -> None:
        """Release all resources; safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


def names() -> dict[str, str]:
    """Return the available trainers by name, with a description or the package; nothing of them is imported."""
    descriptions = {name: what for name, (_, what) in BUILT_IN.items()}
    for point in _offered():
        descriptions.setdefault(point.name, f"of the package {_package(point)} ({point.value})")
    return dict(sorted(descriptions.items()))


def make(name: str, config: Any = ()) -> Trainer:
    """Return a new trainer of this name, one of :func:`names`.

    ``config`` is its configuration. ``key=value`` texts as on a command line, or a mapping of keys, nested or dotted,
    to values, reach the trainer as a tuple of ``key=value`` texts; anything else as it is (a ``PPOConfig``, say).
    Raises TrainerNotFoundError: nothing, or more than one thing, has this name, or it cannot be imported or is no
    trainer; TypeError: a mapping's key is not text, or a value is not JSON; and the trainer's own errors on its
    configuration.
    """
    made = _target(name)(arguments(config))
    if missing := [method for method in ("fit", "evaluate", "close") if not callable(getattr(made, method, None))]:
        raise TrainerNotFoundError(f"the trainer {name!r} is a {type(made).__name__} without {', '.join(missing)}")
    return cast(Trainer, made)


def arguments(config: Any) -> Any:
    """Return ``config`` in the form that a trainer receives; see :func:`make`."""
    if isinstance(config, str):
        raise TypeError(f"give a list of arguments, [{config!r}], not one text")
    if isinstance(config, Mapping):
        return tuple(_text(*entry) for entry in flattened(config))
    if not isinstance(config, Sequence):
        return config
    if wrong := [argument for argument in config if not isinstance(argument, str)]:
        raise TypeError(f"a configuration's arguments are texts (key=value), not {type(wrong[0]).__name__}")
    return tuple(config)


def flattened(tree: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if not isinstance(key, str):
            raise TypeError(f"a configuration's keys are texts, not {key!r}")
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _text(key: str, value: Any) -> str:
    try:
        return f"{key}={json.dumps(value)}"
    except TypeError as error:
        raise TypeError(f"{key}: {error}") from None


def _target(name: str) -> Any:
    offers = [point for point in _offered() if point.name == name]
    if name in BUILT_IN:
        if offers:
            raise TrainerNotFoundError(
                f"the trainer {name!r} is one of textenvs, and the package {_package(offers[0])} offers another of "
                "that name: it must choose a different one"
            )
        return EntryPoint(name, BUILT_IN[name][0], GROUP).load()
    if not offers:
        near = difflib.get_close_matches(name, names(), 3, 0.5)
        suggestion = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise TrainerNotFoundError(f"there is no trainer {name!r}{suggestion} (there are {', '.join(names())})")
    if len(offers) > 1:
        packages = ", ".join(sorted(_package(point) for point in offers))
        raise TrainerNotFoundError(f"several packages offer a trainer {name!r}: {packages}; uninstall all but one")
    try:
        return offers[0].load()
    except (ImportError, AttributeError) as error:
        raise TrainerNotFoundError(
            f"the trainer {name!r} of the package {_package(offers[0])} ({offers[0].value}) cannot be imported: {error}"
        ) from error


def _offered() -> list[EntryPoint]:
    """Return the entry points of all packages; one that is twice on the path counts once."""
    return list({(point.name, point.value, _package(point)): point for point in entry_points(group=GROUP)}.values())


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "?"
