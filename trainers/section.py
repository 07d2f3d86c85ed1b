"""The base of every group of keys, and field types that several groups share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

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


#: Bounds of the numbers that have none of their own: of integers, and of seconds.
_LARGEST, _LONGEST_S = 2**31 - 1, 1e9


def frozen(value: Any) -> Any:
    """Turn a list, which YAML and JSON read, into a tuple, which frozen models hold."""
    return tuple(value) if isinstance(value, list) else value


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
        return frozen(value)

    @field_validator("*")
    @classmethod
    def _numbers_are_bounded(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if isinstance(value, float) and name.endswith("_s") and value > _LONGEST_S:
            raise ValueError(f"at most {_LONGEST_S:,.0f} seconds are possible")
        bounded = any(hasattr(constraint, "le") for constraint in cls.model_fields[name].metadata)
        if isinstance(value, int) and value > _LARGEST and not bounded:
            raise ValueError(f"an integer is at most {_LARGEST}")
        return value


#: Fields of optimizers, of which each section has its own default.
LearningRate: TypeAlias = Annotated[float, Field(gt=0)]
WarmupSteps: TypeAlias = Annotated[int, Field(ge=0, description="Optimizer steps of linear rise to `lr`.")]
Betas: TypeAlias = Annotated[tuple[DecayRate, DecayRate], Field(description="AdamW's decay rates of the two moments.")]
Schedule: TypeAlias = Annotated[
    Literal["constant", "cosine"],
    Field(description="After the warm-up: constant at `lr`, or falling to a tenth of it by the last iteration."),
]


class OptimizerSection(Section):
    """AdamW of one model. Where a section does not offer one of these keys, it fixes it as a ``ClassVar``."""

    lr: LearningRate = Field(1e-6, description="Learning rate.")
    lr_warmup_steps: WarmupSteps = 0
    lr_schedule: Schedule = "constant"
    betas: Betas = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(1.0, gt=0, description="Maximum norm of the gradient.")


class ActorSection(OptimizerSection):
    """Training of the policy, by whatever loss."""

    max_tokens_per_micro_batch: int | None = Field(None, ge=1)
    """Maximum tokens in one forward and backward pass of a rank. null is 2048 on CPUs; on a GPU, what its free memory
    holds at the first update, at most 16384. A longer episode is a pass of its own. Where a GPU's memory runs out, a
    single rank continues with half of it."""


def value_of(section: Section, key: str) -> Any:
    """Return the value of a dotted key; ``None`` for one of another variant of its section."""
    value: Any = section
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def changed(section: Section, name: str) -> bool:
    """Return whether a value differs from its default; writing out a default (a dumped file does) changes nothing."""
    return bool(getattr(section, name) != type(section).model_fields[name].get_default(call_default_factory=True))
