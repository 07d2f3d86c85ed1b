"""The base of every group of keys, and field types that several groups share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

#: Conflicts: pairs of a key and the problem.
Problems: TypeAlias = Iterator[tuple[str, str]]


def _one_or_many(value: Any) -> Any:
    """Turn a single name into a list of one."""
    return (value,) if isinstance(value, str) else value


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), Field(min_length=1)]
Loggers: TypeAlias = Annotated[
    tuple[Literal["console", "jsonl", "tensorboard", "wandb", "mlflow", "trackio"], ...], BeforeValidator(_one_or_many)
]
#: A period in iterations, or -1 for never.
Frequency: TypeAlias = Literal[-1] | Annotated[int, Field(ge=1)]
DecayRate: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class ConflictError(ValueError):
    """Conflict of values that are allowed one by one; ``conflicts`` are pairs of a key and the problem."""

    def __init__(self, conflicts: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {text}" for key, text in conflicts))
        self.conflicts = conflicts


class Section(BaseModel):
    """A group of keys: frozen, without unknown keys or conversions. The ``description`` or docstring explains a key."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: Any) -> Any:
        """Turn YAML's lists into tuples, as frozen models need."""
        return tuple(value) if isinstance(value, list) else value


def changed(section: Section, name: str) -> bool:
    """Return whether a value differs from its default; writing out a default (a dumped file does) changes nothing."""
    return bool(getattr(section, name) != type(section).model_fields[name].get_default(call_default_factory=True))
