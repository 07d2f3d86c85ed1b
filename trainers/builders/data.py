"""Digest of a run's tasks, for its checkpoints: a resumed run must not take other tasks for them.

Groups are numbered, and a number selects a task by its position. If rows were added or a file was replaced, the same
numbers select other tasks: some would be repeated, and others never played.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from textenvs.evaluate.plan import fingerprint
from textenvs.registry import describe, list_environments
from textenvs.task import Rows, TaskSet
from textenvs.text import plural

from ..checkpoints import Checkpoint, CheckpointError
from ..config import PPOConfig
from .environments import Component, played, validation_tasks

_GENERATED = 4  #: tasks of an endless set that are read
_LAZY = 256  #: tasks, evenly spaced, of a finite set that is not in memory


def data_of(config: PPOConfig) -> dict[str, Any]:
    """Return, for ``training`` and ``validation``, the :func:`_identity` of each component's tasks."""
    data: dict[str, Any] = {"training": {}, "validation": {}}
    for component in played(config):
        with closing(component.make(component.training)) as env:
            size = env.tasks.size
            limits = [limit for limit in (size, component.train_size) if limit is not None]
            data["training"][component.name] = _identity(component, env.tasks, range(min(limits)) if limits else None)
        with closing(component.make(component.validation)) as env:
            data["validation"][component.name] = _identity(component, env.tasks, validation_tasks(config, component))
    return data


def _identity(component: Component, tasks: TaskSet, chosen: range | None) -> dict[str, Any]:
    """Return the set's name, the number of tasks (``None``: endless), their digest, and the environment's version.

    Rows in memory are all read; of a generated set, the first or some tasks represent the rest.
    """
    own = component.id.rpartition(":")[2]
    return {
        "name": tasks.name,
        "tasks": None if tasks.size is None or chosen is None else len(chosen),
        "digest": fingerprint(tasks, _looked_at(tasks, chosen)),
        "version": describe(own).version if own in list_environments(with_arguments=True) else None,
    }


def _looked_at(tasks: TaskSet, chosen: range | None) -> Sequence[int]:
    if tasks.size is None or chosen is None:
        first = 0 if chosen is None else chosen.start
        return range(first, first + _GENERATED)
    if isinstance(tasks, Rows) or len(chosen) <= _LAZY:
        return chosen
    return [chosen[place * (len(chosen) - 1) // (_LAZY - 1)] for place in range(_LAZY)]


def check_data(config: PPOConfig, checkpoint: Checkpoint, data: Mapping[str, Any]) -> Iterator[str]:
    """Raise ``CheckpointError`` if the training tasks differ from the checkpoint's, or yield lines on the differences.

    The lines are on validation, whose tasks may differ, and on all tasks if ``trainer.resume_other_data`` is set.
    """
    before = checkpoint.state.get("data")
    if before is None:
        yield "an older version wrote the checkpoint, without its tasks, which cannot be compared"
        return
    other = list(_differences(config, before, data, "training"))
    if other and not (config.trainer.resume_other_data or config.trainer.val_only):
        raise CheckpointError(
            f"{checkpoint.path} cannot be resumed from, because the tasks differ: {'; '.join(other)}. Tasks have "
            "their numbers by position, so some would be repeated and others never played. Restore the tasks, give "
            "this run a folder of its own (trainer.experiment_name=NAME), or resume with the present tasks "
            "(trainer.resume_other_data=true)"
        )
    for line in (*other, *_differences(config, before, data, "validation")):
        yield f"the tasks are not the checkpoint's: {line}"


def _differences(config: PPOConfig, before: Mapping[str, Any], now: Mapping[str, Any], part: str) -> Iterator[str]:
    for component in played(config):
        old, new = before[part].get(component.name), now[part][component.name]
        if old is None or old == new:
            continue
        what = component.qualified(part)
        if old["tasks"] != new["tasks"]:
            sizes = ["endless tasks" if one["tasks"] is None else plural(one["tasks"], "task") for one in (old, new)]
            yield f"{what} had {sizes[0]} and has {sizes[1]}{_kept(component, old, part)}"
        elif old["digest"] != new["digest"]:
            names = f" ({old['name']} then, {new['name']} now)" if old["name"] != new["name"] else f" ({new['name']})"
            yield f"{what} has tasks with another content{names}"
        elif old["version"] != new["version"]:
            yield f"{what} was in version {old['version']} of {component.id} and is in version {new['version']}"


def _kept(component: Component, old: Mapping[str, Any], part: str) -> str:
    """Return whether the earlier tasks are now the first ones, in words."""
    if part != "training" or old["tasks"] is None:
        return ""
    with closing(component.make(component.training)) as env:
        tasks, count = env.tasks, old["tasks"]
        if not isinstance(tasks, Rows) or tasks.size < count:
            return ""
        same = fingerprint(tasks, range(count)) == old["digest"]
        return f", the first {count} {'as they were' if same else 'not as they were'}"
