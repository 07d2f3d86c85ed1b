"""What every group of keys is, and the types of fields that several of them have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

#: What does not go together: pairs of a key and what is wrong with it.
Problems: TypeAlias = Iterator[tuple[str, str]]


def _one_or_many(value: Any) -> Any:
    """Let a single name stand for a list of one."""
    return (value,) if isinstance(value, str) else value


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), Field(min_length=1)]
Loggers: TypeAlias = Annotated[
    tuple[Literal["console", "jsonl", "tensorboard", "wandb", "mlflow", "trackio"], ...], BeforeValidator(_one_or_many)
]
#: Every so many iterations, or -1 for never.
Frequency: TypeAlias = Literal[-1] | Annotated[int, Field(ge=1)]
DecayRate: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A group of keys: frozen, no unknown keys, no conversions. A key's meaning is its ``description`` or docstring."""

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
        """YAML has lists, and what is frozen has tuples."""
        return tuple(value) if isinstance(value, list) else value


def changed(section: Section, name: str) -> bool:
    """Whether a value differs from its default (being written out does not count: a dumped configuration loads)."""
    return bool(getattr(section, name) != type(section).model_fields[name].get_default(call_default_factory=True))
