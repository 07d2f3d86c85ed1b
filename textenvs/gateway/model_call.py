"""A call of a model and its reply, whatever the protocol they came in; and how a request is read."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ..messages import Message, Messages, check_conversation, clean_messages, has_images, text_of, visible_text
from ..text import quoted

FinishReason = Literal["stop", "tool_calls", "length", "stop_sequence"]
Protocol = Literal["openai-chat", "openai-responses", "anthropic"]
_MOST_LEVELS = 100  #: of a tool's schema: what writes it for the policy calls itself for each
#: Messages and tools of a call, at most: some of what reads them takes the square of their number.
_MOST_MESSAGES, _MOST_TOOLS = 10_000, 1_000
ToolSchemas = tuple[Mapping[str, Any], ...]
#: What of a message counts in comparisons: its role, its content, its calls, and the call that it answers.
MessageKey = tuple[Any, ...]


class RequestError(Exception):
    """A request that is refused.

    ``status`` is the HTTP status, ``code`` a short machine-readable name of the problem.
    """

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message, status, code)
        self.message, self.status, self.code = message, status, code

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Sampling:
    """A program's wishes on how its reply is sampled, which the policy may not follow; ``None``: no wish."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True)
class ModelCall:
    """One call of the model.

    Args:
        protocol: The protocol that it came in.
        model: The model's name, as the program wrote it.
        messages: The conversation, at least one message, the last one not the assistant's.
        tools: The schemas of its tools in OpenAI's form, ``{"type": "function", "function": {...}}``.
        tool_choice: ``"auto"``, ``"none"``, ``"required"``, or ``"function:NAME"``.
        parallel_tool_calls: Whether one reply may have several calls.
        sampling: How to sample.
        stream: Whether the reply comes as server-sent events.
        include_usage: Whether a stream ends with the usage (OpenAI's chat completions).
        instructions: Whether the first message belongs to this call alone (OpenAI's responses).
        reasoning: Whether the program asked to see the reasoning (Anthropic's messages).
        namespaces: By the name of a tool that has one: its namespace and its name there (OpenAI's responses).
        role: Who is to reply, of the session's roles; empty where it has none.
    """

    protocol: Protocol
    model: str
    messages: Messages
    tools: ToolSchemas = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    sampling: Sampling = field(default_factory=Sampling)
    stream: bool = False
    include_usage: bool = False
    instructions: bool = False
    reasoning: bool = False
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    role: str = ""

    @cached_property
    def message_keys(self) -> tuple[MessageKey, ...]:
        """The part of each message that counts in comparisons."""
        return tuple(map(message_key, self.messages))

    @cached_property
    def tools_key(self) -> str:
        """The tools, written for comparisons."""
        return _canonical(self.tools)


@dataclass(frozen=True)
class Usage:
    """Counts of tokens."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class TokenLogprob:
    """A sampled token, its log-probability, and the most probable tokens at its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ModelReply:
    """The reply to a call.

    Args:
        message: An assistant message: its visible text, ``reasoning_content``, and its calls.
        finish_reason: Why it ended; ``"stop_sequence"``: at one of the program's own.
        stop_sequence: The sequence, where it ended at one.
        usage: Counts of tokens; 0 where they are unknown, because many clients cannot do without them.
        logprobs: The sampled tokens, where they are known.
        token_ids: Their ids, likewise.
    """

    message: Message
    finish_reason: FinishReason = "stop"
    stop_sequence: str | None = None
    usage: Usage = Usage(0, 0)
    logprobs: tuple[TokenLogprob, ...] | None = None
    token_ids: tuple[int, ...] | None = None


# ------------------------------------------------------------------ comparing messages


def message_key(message: Message) -> MessageKey:
    """Return what a client sends back of a message: reasoning may be left out, JSON written anew, a text stripped."""
    content = message["content"]
    if not isinstance(content, str):
        return message["role"], _canonical(content), (), message.get("tool_call_id")
    text = visible_text(message) if message["role"] == "assistant" else content
    calls = tuple(
        (call["id"], call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    )
    return message["role"], text, calls, message.get("tool_call_id")


def _arguments(text: str) -> str:
    value = arguments_object(text)
    return text if value is None else _canonical(value)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# ------------------------------------------------------------------ reading requests


class Fields:
    """The fields of a JSON object, read with their types; every problem is a :class:`RequestError`."""

    def __init__(self, body: Any, where: str = "") -> None:
        if not isinstance(body, Mapping):
            raise RequestError(f"{where or 'the body'} must be a JSON object, not {quoted(body, 60)}")
        self.where = where
        self._body, self._prefix = body, f"{where}." if where else ""

    def __contains__(self, name: str) -> bool:
        return self._body.get(name) is not None

    def get(self, name: str) -> Any:
        return self._body.get(name)

    def refuse(self, refused: Mapping[str, str]) -> None:
        """Raise for a field among ``refused`` that is there; the values say what is not offered, and what is."""
        for name, problem in refused.items():
            if self._body.get(name):
                raise RequestError(f"{self._prefix}{name}: {problem}", code="unsupported_parameter")

    def allow(self, names: Sequence[str]) -> None:
        """Raise for a field that is none of ``names``."""
        for name in self._body:
            if name not in names:
                raise RequestError(f"{self._prefix}{quoted(name, 60)} is no field; there are {', '.join(names)}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._body.get(name, default)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self._problem(name, "a string")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._problem(name, "true or false")
        return value

    def integer(self, name: str, least: int = 0) -> int | None:
        value = self._body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._problem(name, f"an integer of at least {least}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self._body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self._problem(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def items(self, name: str) -> Sequence[Any]:
        value = self._body.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._problem(name, "a list")
        return value

    def _problem(self, name: str, expected: str) -> RequestError:
        return RequestError(f"{self._prefix}{name} must be {expected}, not {quoted(self._body.get(name), 60)}")


def read_content(content: Any, where: str, part: Callable[[Fields], Any]) -> Any:
    """Return a message's content: a text, or parts as ``part`` reads them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or a list of parts, not {quoted(content, 60)}")
    return [part(Fields(item, f"{where}[{i}]")) for i, item in enumerate(content)] or ""


def read_stop(value: Any, name: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"{name} must be a text or a list of texts that are not empty, not {quoted(value, 60)}")
    return tuple(texts)


def function_schema(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """Return a tool's schema in OpenAI's form; arguments are a JSON schema of an object."""
    if not isinstance(name, str) or not 0 < len(name) <= 128:
        raise RequestError(f"{where}: a function has a name of 1 to 128 characters, not {quoted(name, 60)}")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}: description must be a string, not {quoted(description, 60)}")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(f"{where}: the arguments' schema must be a JSON object, not {quoted(parameters, 60)}")
    if _is_deeper(parameters, _MOST_LEVELS):
        raise RequestError(f"{where}: the arguments' schema has more than {_MOST_LEVELS} levels")
    schema = {"type": "object", "properties": {}} if not parameters else dict(parameters)
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": schema}}


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, (Mapping, list))
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not layer:
            return False
    return any(isinstance(inner, (Mapping, list)) for inner in layer)


def checked_tools(schemas: Iterable[dict[str, Any]]) -> ToolSchemas:
    tools = tuple(itertools.islice(schemas, _MOST_TOOLS + 1))
    if len(tools) > _MOST_TOOLS:
        raise RequestError(f"tools: a call has at most {_MOST_TOOLS}")
    counts = Counter(tool["function"]["name"] for tool in tools)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise RequestError(f"tools: the name {min(twice)!r} is there twice")
    return tools


def checked_choice(choice: str, tools: ToolSchemas) -> str:
    """Return a ``tool_choice``, or raise: it names no tool of the call, or there are none."""
    kind, _, name = choice.partition(":")
    if kind == "function" and name not in [tool["function"]["name"] for tool in tools]:
        raise RequestError(f"tool_choice names {quoted(name, 80)}, which is not among tools")
    if kind in ("required", "function") and not tools:
        raise RequestError("tool_choice asks for a call, and there are no tools")
    return choice


def conversation(messages: Iterable[Any]) -> Messages:
    """Return the messages of a call in this package's form, or raise in words.

    A content without images is one text.
    """
    listed = list(itertools.islice(messages, _MOST_MESSAGES + 1))
    if len(listed) > _MOST_MESSAGES:
        raise RequestError(f"messages: a call has at most {_MOST_MESSAGES}")
    try:
        read = clean_messages(check_conversation(listed, "messages"))
    except ValueError as error:
        raise RequestError(str(error)) from error
    if not read:
        raise RequestError("messages: there is no message; a call has at least one")
    if read[-1]["role"] == "assistant":
        raise RequestError("messages: the last one is the assistant's; a reply cannot be begun for the model")
    return tuple(message if has_images(message) else {**message, "content": text_of(message)} for message in read)


def arguments_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object of a call's arguments; ``None`` where the text is none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def logprob_entries(call: ModelCall, reply: ModelReply) -> list[dict[str, Any]] | None:
    """Return the log-probabilities of a reply as OpenAI writes them; ``None``: not wanted, or unknown."""
    if not call.sampling.logprobs or reply.logprobs is None:
        return None

    def entry(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}

    most = call.sampling.top_logprobs
    return [
        {**entry(one.token, one.logprob), "top_logprobs": [entry(*top) for top in one.top[:most]]}
        for one in reply.logprobs
    ]


def event(data: Any, name: str | None = None) -> bytes:
    """Return a server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, allow_nan=False)  # ASCII holds half a character, too
    return (f"event: {name}\n" if name else "").encode() + b"data: " + text.encode() + b"\n\n"
