"""Which episode a row of another library's dataset stands for, as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..env import TextEnv
from ..registry import make
from ..trust import Environments, Trust

_FIELDS = frozenset({"env", "seed", "env_kwargs", "task_index"})


class SpecError(ValueError):
    """An episode's description is malformed; the message says where, and what was expected."""


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode: the same spec and the same replies give the same messages, rewards and end.

    Args:
        env: The environment's id.
        seed: What ``reset`` is given.
        env_kwargs: Arguments of the environment's constructor, as in JSON.
        task_index: A task of the set; ``None`` where the seed draws one.

    Raises:
        SpecError: A field has the wrong type, or ``env_kwargs`` is not JSON.
    """

    env: str
    seed: int
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    task_index: int | None = None

    def __post_init__(self) -> None:
        where = "an episode's description"
        if not isinstance(self.env, str) or not self.env:
            raise SpecError(f"{where}: env must be an environment's id, not {self.env!r}")
        for name, number in (("seed", self.seed), ("task_index", 0 if self.task_index is None else self.task_index)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise SpecError(f"{where}: {name} must be an integer of at least 0, not {number!r}")
        if not isinstance(self.env_kwargs, Mapping):
            raise SpecError(f"{where}: env_kwargs must be a mapping, not {type(self.env_kwargs).__name__}")
        try:
            json.dumps(dict(self.env_kwargs), allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise SpecError(f"{where}: env_kwargs must be JSON: {problem}") from None

    @property
    def options(self) -> dict[str, Any] | None:
        """What ``reset`` is given beside the seed."""
        return None if self.task_index is None else {"task_index": self.task_index}

    def make(self) -> TextEnv[Any]:
        """The environment, not yet reset."""
        return make(self.env, **self.env_kwargs)

    def to_row(self) -> dict[str, Any]:
        """Plain values with one type a column, as Arrow tables want them: ``env_kwargs`` is a JSON text."""
        kwargs = json.dumps(dict(self.env_kwargs), sort_keys=True, ensure_ascii=False)
        return {"env": self.env, "seed": self.seed, "env_kwargs": kwargs, "task_index": self.task_index}

    @classmethod
    def from_row(cls, row: Any, where: str = "the row", environments: Environments | None = None) -> EpisodeSpec:
        """The opposite of :meth:`to_row`; ``env_kwargs`` may be a mapping, too.

        Args:
            row: A mapping, or its JSON text.
            where: Named in errors.
            environments: What the person who runs the program allows rows beyond the environments that ship and their
                harmless options; see :class:`~textenvs.trust.Trust`.

        Raises:
            SpecError: It is not such a row, or it chooses what a row may not.
        """
        row = _parsed(row, where)
        if not isinstance(row, Mapping):
            raise SpecError(f"{where}: expected a mapping with {sorted(_FIELDS)}, not {type(row).__name__}")
        if unknown := set(row) - _FIELDS:
            raise SpecError(f"{where}: unknown fields {sorted(map(str, unknown))}; known are {sorted(_FIELDS)}")
        if missing := {"env", "seed"} - set(row):
            raise SpecError(f"{where}: missing fields {sorted(missing)}")
        kwargs = _parsed(row.get("env_kwargs") or {}, f"{where}: env_kwargs")
        try:
            spec = cls(row["env"], row["seed"], kwargs, row.get("task_index"))
        except SpecError as problem:
            raise SpecError(f"{where}: {problem}") from None
        if refused := Trust(environments or {}).problem(spec.env, spec.env_kwargs):
            raise SpecError(f"{where}: {refused}")
        return spec


def _parsed(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as problem:  # it may be nested too deeply, or have a number of too many digits
        raise SpecError(f"{where}: not JSON: {problem}") from None


def episode_specs(
    env: str, count: int | None, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None
) -> Iterator[EpisodeSpec]:
    """``count`` episodes of an environment (``None``: endless), with the seeds ``seed``, ``seed + 1``, ...

    Raises:
        SpecError: A count below 1.
    """
    if count is not None and (not isinstance(count, int) or count < 1):
        raise SpecError(f"count must be an integer of at least 1, not {count!r}")
    for number in itertools.count() if count is None else range(count):
        yield EpisodeSpec(env, seed + number, env_kwargs or {})
