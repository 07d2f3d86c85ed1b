"""The spec of a chat model: plain data, for a registry entry or a task row.

It never holds a key: only the *name* of the environment variable that does.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .answer import Usage

# Request fields that the client sets, or that reading whole answers rules out: they are refused in ``extra``.
_SENT_BY_US = {"model", "temperature", "max_tokens", "max_completion_tokens", "seed"}
_SENT_BY_US |= {"messages", "tools", "response_format", "n", "stream"}
_KEY_ADVICE = "a key never stands in a spec; put it in an environment variable and its name in 'api_key_env'"
_SECRET = re.compile(r"api.?key|^key$|secret|password|authoriz|bearer|^token$|access.?token", re.IGNORECASE)

#: The longest wait of the openai client before a retry, in seconds: the limit of ``Retry-After``.
LONGEST_WAIT_S = 120.0


class _Options(BaseModel):
    """Frozen, strict options; errors name the option, and the nearest one for an unknown name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
            return
        except ValidationError as error:
            problem = _explain(type(self), error)
        raise ValueError(problem)  # outside of `except`: pydantic's own message would show values, perhaps a key


class Price(_Options):
    """Dollars per million tokens."""

    input: float = Field(ge=0, description="tokens of the request")
    output: float = Field(ge=0, description="tokens of the answer")
    cached_input: float | None = Field(
        default=None, ge=0, description="tokens of the request that the service had cached; None: as `input`"
    )

    def of(self, usage: Usage) -> float:
        cached_price = self.input if self.cached_input is None else self.cached_input
        prompt_price = (usage.input_tokens - usage.cached_tokens) * self.input + usage.cached_tokens * cached_price
        return (prompt_price + usage.output_tokens * self.output) / 1e6


class Budget(_Options):
    """A process's spending limit; at least one of ``tokens`` and ``dollars``."""

    tokens: int | None = Field(default=None, gt=0, description="of requests and answers together")
    dollars: float | None = Field(default=None, gt=0, description="by the spec's `price`")
    name: str | None = Field(
        default=None, min_length=1, description="specs with budgets of one name share it; None: the spec's own"
    )

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.tokens is None and self.dollars is None:
            raise ValueError("give 'tokens', 'dollars' or both")
        return self


class ChatSpec(_Options):
    """A model behind an OpenAI-compatible service, and the options of requests; a ``ValueError`` names a bad option."""

    model: str = Field(min_length=1, description="the model's name at the service")
    base_url: str | None = Field(
        default=None, description="for example http://localhost:8000/v1; None: $OPENAI_BASE_URL, or OpenAI itself"
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        default=None,
        description="the environment variable with the key; None: OPENAI_API_KEY without `base_url`, no key with it",
    )
    temperature: float | None = Field(default=None, ge=0, le=2, description="None: the service's default")
    max_tokens: int = Field(default=1024, ge=1, description="the longest answer, in tokens")
    max_tokens_key: Literal["max_completion_tokens", "max_tokens"] = Field(
        default="max_completion_tokens", description="what the service calls it; old ones know only max_tokens"
    )
    seed: int | None = Field(default=None, ge=0, description="sent with every request, plus its sample index")
    structured: Literal["json_schema", "json_object", "none"] = Field(
        default="json_schema", description="how the service is told that the answer must be JSON"
    )
    timeout_s: float = Field(default=60.0, gt=0, description="for one attempt, in seconds")
    max_retries: int = Field(default=5, ge=0, description="attempts after the first")
    concurrency: int = Field(default=64, ge=1, description="requests under way at once, per event loop")
    cache: str | None = Field(default=None, min_length=1, description="an SQLite file on a local disk; None: no cache")
    budget: Budget | None = Field(default=None, strict=False, description="what a process may spend")
    price: Price | None = Field(default=None, strict=False, description="of a million tokens, for costs and budgets")
    extra: dict[str, Any] = Field(default_factory=dict, description="more fields of the request, as the service wants")

    @field_validator("cache", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any) -> Any:
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @field_validator("base_url")
    @classmethod
    def _usable_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urllib.parse.urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must look like http://host:port/v1")
        if parts.username or parts.password:
            raise ValueError(f"has a user or a password in it; {_KEY_ADVICE}")
        return value.rstrip("/")

    @field_validator("extra")
    @classmethod
    def _json(cls, value: dict[str, Any]) -> dict[str, Any]:
        if reserved := sorted(value.keys() & _SENT_BY_US):
            raise ValueError(f"has {reserved}, which the client sends by itself; see the other options")
        try:
            return json.loads(json.dumps(value, allow_nan=False))  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            raise ValueError(f"must be JSON: {error}") from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.budget is not None and self.budget.dollars is not None and self.price is None:
            raise ValueError("a budget in dollars needs 'price', for example {'input': 0.15, 'output': 0.6}")
        return self

    @classmethod
    def of(cls, value: SpecLike, **options: Any) -> ChatSpec:
        """Return the spec of a model's name, a mapping of options or a spec; ``options`` override its own."""
        if isinstance(value, ChatSpec):
            return cls(**(value.to_dict() | options)) if options else value
        if isinstance(value, str):
            return cls(**({"model": value} | options))
        if isinstance(value, Mapping):
            return cls(**({str(name): option for name, option in value.items()} | options))
        raise TypeError(f"a chat model is a name, a mapping of options or a ChatSpec, not a {type(value).__name__}")

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)

    @property
    def key(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)


SpecLike: TypeAlias = ChatSpec | Mapping[str, Any] | str


def _explain(options: type[BaseModel], error: ValidationError) -> str:
    """Describe a validation error, without any value that might be a secret."""
    problems = []
    for detail in error.errors(include_url=False, include_context=False):
        name = ".".join(str(part) for part in detail["loc"] if not str(part).startswith("constrained"))
        if detail["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, options.model_fields, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(options.model_fields)}"
            hint = _KEY_ADVICE if _SECRET.search(name) else hint
            problems.append(f"unknown option {name!r}; {hint}")
        elif name == "api_key_env":
            problems.append("api_key_env is not the name of an environment variable; put the key in one, and name it")
        else:
            value = "" if detail["type"] in ("missing", "value_error") else f", not {detail['input']!r:.60}"
            problems.append(f"{name or 'options'}: {detail['msg'].removeprefix('Value error, ')}{value}")
    return f"{options.__name__}: {'; '.join(problems)}"
