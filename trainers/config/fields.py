"""Types that fields of several sections have."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field


def _one_or_many(value: Any) -> Any:
    """Let a single name stand for a list of one."""
    return (value,) if isinstance(value, str) else value


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), Field(min_length=1)]
Loggers: TypeAlias = Annotated[
    tuple[Literal["console", "jsonl", "tensorboard", "wandb", "mlflow"], ...], BeforeValidator(_one_or_many)
]
#: Every so many iterations, or -1 for never.
Frequency: TypeAlias = Literal[-1] | Annotated[int, Field(ge=1)]
DecayRate: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]
