"""What a chat service answers: the part of it that we read, however the rest of it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from ..messages import Message, ToolCall, clean_text


@dataclass(frozen=True)
class Usage:
    """Tokens as the service counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Completion:
    """An answer."""

    text: str  # what the model says; empty where it only calls tools
    message: Message  # the same, with tool calls and the service's ``reasoning_content``, if any
    finish_reason: str  # ``stop``, ``length`` (cut off at ``max_tokens``), ``tool_calls`` or what else the service says
    usage: Usage | None  # the tokens it took when it was made; ``None`` where the service does not say
    cached: bool = False  # it came from the cache: it cost nothing now
    attempts: int = 1  # how often the service was asked for it now; 0 when ``cached``
    cost: float = 0.0  # dollars spent on it now, failed attempts included, as far as the spec's ``price`` says


def read_answer(body: str) -> Completion:
    """The completion in the body of an answer; ``ValueError`` says where it is none."""
    problem = ""
    try:
        return _completion(_Answer.model_validate_json(body))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        problem = f"{'.'.join(map(str, detail['loc'])) or 'the body'}: {detail['msg']}"
    raise ValueError(problem)  # outside of `except`: pydantic's error holds the whole body


class _Function(BaseModel):
    name: str
    arguments: str = ""


class _Call(BaseModel):
    id: str = ""
    function: _Function


class _Said(BaseModel):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None  # the same, by its newer name
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Said
    finish_reason: str | None = None


class _Details(BaseModel):
    cached_tokens: int | None = None


class _Used(BaseModel):
    prompt_tokens: int | None = Field(default=0, ge=0)
    completion_tokens: int | None = Field(default=0, ge=0)
    prompt_tokens_details: _Details | None = None


class _Answer(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Used | None = None


def _completion(answer: _Answer) -> Completion:
    choice, used = answer.choices[0], answer.usage
    said = choice.message
    reasoning = said.reasoning_content or (said.reasoning if isinstance(said.reasoning, str) else "")
    if said.content is None and not (said.refusal or reasoning or said.tool_calls):
        # A model that says nothing has said "": this is a service that broke off, and no reply to score.
        raise ValueError("choices.0.message: content is null, and there are no tool calls, no reasoning and no refusal")
    text = clean_text(said.content or said.refusal or "")
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = clean_text(reasoning)
    if said.tool_calls:
        message["tool_calls"] = tuple(_tool_call(i, call) for i, call in enumerate(said.tool_calls))
    usage = None
    if used is not None:
        asked, details = used.prompt_tokens or 0, used.prompt_tokens_details
        cached = (details.cached_tokens if details is not None else None) or 0
        usage = Usage(asked, used.completion_tokens or 0, min(cached, asked))
    return Completion(text, message, choice.finish_reason or "stop", usage)


def _tool_call(position: int, call: _Call) -> ToolCall:
    function = {"name": clean_text(call.function.name), "arguments": clean_text(call.function.arguments)}
    return {"id": clean_text(call.id) or f"call_{position}", "type": "function", "function": function}  # type: ignore[typeddict-item]
